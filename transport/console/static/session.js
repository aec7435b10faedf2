// The screen of one session: the conversation as it streams, and everything that can be done to it.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { Children } from "./children.js";
import { Composer } from "./composer.js";
import { Context } from "./context.js";
import { Conversation, WINDOW, beginsTurn, delegated, earlier, positions } from "./conversation.js";
import { save, asMarkdown, transcript } from "./export.js";
import { compact, count, dollars, labelsOf, labelsText, plural, shortId, when } from "./format.js";
import { modelName } from "./list.js";
import { Ask, Failure, Loading, Menu, State, useChanges, useKeys, useLoaded, useNow, useTitle } from "./parts.js";
import { go, linkTo } from "./route.js";
import { Timeline } from "./timeline.js";
import { Message, Turn } from "./turn.js";

const SHOWN = 120;
/** Events that are asked for when a session is opened; when they are drawn, those of the WINDOW. */
const FIRST = 2_000;
/** Milliseconds for the drawing of the first ones. */
const SOON = 100;
const LONGEST_EVENT = 20_000;
/** Milliseconds without an event after which the rest of a log is taken to be missing. */
const SILENCE = 5_000;
/** Milliseconds between two looks at what no event tells of while a turn runs: prompts in the inbox, children that have ended. */
const UNTOLD_EVERY = 3_000;

/** The live state of an open session: its events as a conversation, and its record. */
class Followed {
  constructor(connection, session_id) {
    this.connection = connection;
    this.session_id = session_id;
    this.listeners = new Set();
    this.delegations = 0; // calls that children were made for since this was opened
    this.begin(null);
    this.load();
  }

  /** Read the log above `after`; with `behind` show what is there until as much has come as is shown. */
  begin(after, behind = false) {
    const coming = new Conversation();
    if (!behind) this.conversation = coming;
    this.ended = this.error = null;
    this.from = after;
    const shown = () => this.conversation === coming;
    this.widening = behind;
    this.show = () => {
      this.widening = false;
      this.conversation = coming;
      this.change();
    };
    this.stop = this.connection.subscribe(this.session_id, after, {
      event: (envelope) => {
        coming.take(envelope);
        if (!shown()) {
          this.expect();
          if (coming.last >= this.conversation.last) this.show();
          return;
        }
        if (this.loading) {
          this.expect();
          if (coming.count % 1000 === 0) this.change();
          return;
        }
        clearTimeout(this.silence);
        if (this.partial) setTimeout(() => this.widen(), SOON);
        if (envelope.event.child && envelope.seq > (this.newest ?? 0)) this.delegations += 1;
        if (ENDS.has(envelope.event.type)) this.load();
        else if (envelope.event.type === "input_taken") this.loadInputs();
        this.change();
      },
      began: (seq) => this.began(seq),
      ended: () => {
        this.ended = true;
        this.load();
      },
      failed: (error) => {
        // A log that ends before what was seen is another one: begin again.
        if (error.code === "INVALID_PARAMS" && this.from !== 0) this.begin(0);
        else this.error = error;
        this.change();
      },
    });
  }

  /** The first answer says where the log ends: read its last part from there, the end of it first. */
  began(seq) {
    if (this.from === null) {
      this.newest = seq;
      this.widest = Math.max(0, seq - WINDOW);
      this.begin(Math.max(0, seq - FIRST));
      this.expect();
    }
    this.change();
  }

  /** Read more of a log whose end is shown. */
  widen() {
    if (!this.partial || this.widening || !this.listeners.size || this.conversation.last < this.newest) return;
    this.begin(this.widest, true);
    this.expect();
  }

  /** Whether only the end of the part that is to be shown is here. */
  get partial() {
    return this.from === null || this.widening || this.from > (this.widest ?? 0);
  }

  /** Wait for the next event of the log's part that was asked for, and not for ever. */
  expect() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.newest = 0;
      this.show();
    }, SILENCE);
  }

  get loading() {
    return this.from === null || this.conversation.last < (this.newest ?? 0);
  }

  async load() {
    const { delegations } = this;
    try {
      this.view = await this.connection.read("session/read", { session_id: this.session_id, children: true });
      this.viewed = delegations;
    } catch (error) {
      this.error = error;
    }
    this.change();
    await this.loadInputs();
  }

  async loadInputs() {
    if (this.view?.state.lifecycle === "archived") return;
    try {
      this.inputs = (await this.connection.read("session/inputs", { session_id: this.session_id })).inputs;
    } catch {
      this.inputs = [];
    }
    this.change();
  }

  lookForUntold() {
    const { running } = this.conversation;
    if (running) delegated(running).length ? this.load() : this.loadInputs();
  }

  /** The children that the running turn waits for; null if that is not known, as the view is older than a call. */
  get awaited() {
    const { turn } = this.view?.state ?? {};
    return turn?.state === "waiting" && this.viewed === this.delegations ? new Set(turn.waiting_for?.map((each) => each.session_id)) : null;
  }

  /** Look for what was put into the inbox: no event tells of it before a turn takes it. */
  lookForInputs() {
    for (const pause of [100, 500, 2_000]) setTimeout(() => this.listeners.size && this.loadInputs(), pause);
  }

  change() {
    for (const listener of this.listeners) listener();
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  close() {
    this.stop();
    clearTimeout(this.silence);
    this.listeners.clear();
  }
}

const ENDS = new Set(["run_completed", "run_failed", "compaction_completed", "run_started", "turn_resumed", "stream_truncated"]);

export function Session({ connection, rows, id, part, turn }) {
  const [followed, setFollowed] = useState(null);
  const [, draw] = useState(0);
  useEffect(() => {
    const own = new Followed(connection, id);
    const looking = setInterval(() => own.lookForUntold(), UNTOLD_EVERY);
    let frame = 0;
    own.listen(() => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        draw((number) => number + 1);
      });
    });
    setFollowed(own);
    return () => {
      cancelAnimationFrame(frame);
      clearInterval(looking);
      own.close();
    };
  }, [id]);
  if (!followed || followed.session_id !== id) return html`<main class="screen" id="main"><${Loading} what="the session" /></main>`;
  if (isGone(followed.error) || (followed.error && !followed.view)) return html`<${Missing} followed=${followed} />`;
  return html`<${Opened} key=${id} connection=${connection} rows=${rows} followed=${followed} part=${part} turn=${turn} />`;
}

/** A session that is not there, or could not be read. */
function Missing({ followed }) {
  const { error, session_id } = followed;
  return html`<main class="screen" id="main" tabindex="-1">${isGone(error)
    ? html`<h1>This session is not there</h1><p role="alert">No session has the id ${session_id}: it was deleted, or the address is wrong.</p>`
    : html`<${Failure} error=${error} again=${() => { followed.begin(null); followed.load(); }} />`}<a href=${linkTo()}>All sessions</a></main>`;
}

const isGone = (error) => error?.code === "SESSION_NOT_FOUND";

function Opened({ connection, rows, followed, part, turn: sought }) {
  const { session_id, view, conversation, error } = followed;
  const [asked, setAsked] = useState(null);
  const [report, setReport] = useState(null);
  const [places, setPlaces] = useState(null);
  const now = useNow(conversation.running ? 250 : 5000);
  const title = view?.state.title ?? conversation.turns[0]?.prompt?.slice(0, 80) ?? (view ? "Untitled" : shortId(session_id));
  useTitle(title);
  const running = conversation.running;
  useChanges(connection);
  const archived = view?.state.lifecycle === "archived";
  const [writes, admin] = [connection.can("session:write") && !archived, connection.can("session:admin")];
  const waiting = conversation.approvals;
  const { awaited } = followed;
  const children = running ? delegated(running, awaited).length : 0;
  const state = archived ? "archived" : waiting.length ? "waiting" : children || view?.state.turn?.state === "waiting" ? "waits" : view?.state.turn?.state === "parked" ? "parked" : running ? "running" : "idle";

  const call = async (method, params = {}, options) => {
    const sent = connection.call(method, { session_id, ...params }, { limit: 120_000, ...options });
    if (options?.again) followed.lookForInputs();
    const result = await sent;
    followed.load();
    return result;
  };
  const attempt = async (method, params, said) => {
    try {
      await call(method, params);
      setReport(said ? { text: said } : null);
    } catch (problem) {
      setReport({ error: problem });
    }
  };
  const history = async () => transcript(connection, session_id);
  // A fork has messages that no event tells of, and retention removes events before messages.
  const missing = view && !followed.loading && !followed.partial && (conversation.gaps.length > 0 || (conversation.turns[0]?.prompt ?? null) === null || Boolean(view.state.parent)) && view.state.message_count > 0;
  useEffect(() => {
    if (!missing || places) return;
    let left = false;
    history().then(({ messages }) => {
      if (!left) setPlaces(earlier(messages, conversation.turns, positions(conversation.turns, messages)));
    }, (problem) => left || setReport({ error: problem }));
    return () => {
      left = true;
    };
  }, [missing]);

  const [target, setTarget] = useState(null);
  const ready = view && !followed.loading && !followed.partial;
  useEffect(() => {
    if (!sought || !ready) return undefined;
    let left = false;
    history().then(({ messages }) => {
      if (left) return;
      const users = messages.filter(({ message }) => beginsTurn(message));
      const place = users[sought - 1]?.position;
      const index = place === undefined ? -1 : positions(conversation.turns, messages).indexOf(place);
      if (place === undefined) setReport({ text: `Turn ${sought} is not stored any more.` });
      else setTarget(index < 0 ? { element: `message-${place}` } : { element: `turn-${conversation.turns[index].seq}`, index });
    }, (problem) => left || setReport({ error: problem }));
    return () => {
      left = true;
    };
  }, [sought, Boolean(ready)]);

  const interrupt = () => attempt("turn/interrupt", {}, "The turn was interrupted.");
  const forkAt = (turn) => setAsked({
    title: "Fork here",
    text: "A new session begins with the conversation up to and including this turn. This one does not change.",
    field: "Title of the fork", value: `${title} (fork)`.slice(0, 200), action: "Fork",
    act: async (name) => {
      const { messages, total } = await history();
      const found = positions(conversation.turns, messages);
      const index = conversation.turns.indexOf(turn);
      if (found[index] === null) throw new Error("the messages of this turn are not stored any more");
      const next = found.slice(index + 1).find((place) => place !== null);
      const fork = await call("session/fork", { at: next ?? total, title: name });
      go("session", fork.state.session_id);
    },
  });
  const actions = {
    rename: () => setAsked({ title: "Rename", field: "Title", value: view?.state.title ?? "", action: "Rename", act: (text) => call("session/label", { title: text.trim() }) }),
    label: () => setAsked({ title: "Labels", text: "Labels that are left out are removed.", field: "Labels, as name=value, with commas between them", value: labelsText(view?.state.labels), required: false, action: "Save",
      act: (text) => call("session/label", { labels: { ...Object.fromEntries(Object.keys(view.state.labels).map((name) => [name, null])), ...labelsOf(text) } }) }),
    compact: () => setAsked({ title: "Compact", text: "The model summarises the context; the history keeps every message.", field: "Instructions for the summary (optional)", required: false, long: true, action: "Compact",
      act: (text) => call("session/compact", text.trim() ? { instructions: text } : {}) }),
    markdown: async () => attemptSave(async () => save(`${session_id}.md`, "text/markdown", asMarkdown(title, await history()))),
    json: async () => attemptSave(async () => save(`${session_id}.json`, "application/json", JSON.stringify({ session: view, ...(await history()) }, null, 2))),
    archive: () => setAsked({ title: "Archive", text: "The session can still be read; it takes no more turns and is hidden from lists.", action: "Archive", act: () => call("session/archive") }),
    delete: () => setAsked({ title: "Delete", text: "Its messages, events and remembered texts are deleted. This cannot be undone.", word: "delete", danger: true, action: "Delete", act: async () => {
      await connection.call("session/delete", { session_id }, { limit: 60_000 });
      rows.remove(session_id);
      go();
    } }),
  };
  const attemptSave = async (run) => {
    try {
      await run();
    } catch (problem) {
      setReport({ error: problem });
    }
  };
  const composer = useRef();
  useKeys({ i: () => composer.current?.focus(), "!": () => running && writes && interrupt(), c: () => go("session", session_id, ...(part === "context" ? [] : ["context"])), d: () => go("session", session_id, ...(part === "children" ? [] : ["children"])), u: () => go() });

  return html`<main class="screen session" id="main" tabindex="-1">
    <div class="head">
      <h1>${title}</h1>
      <${State} state=${state}>${{ archived: "Archived", waiting: "Waits for approval", waits: children ? `Waits for ${plural(children, "child", "children")}` : "Waits", parked: "Parked", running: "Running", idle: "Idle" }[state]}<//>
      <div class="buttons">
        ${running && writes && html`<button class="danger" onClick=${interrupt}>Interrupt</button>`}
        <${Menu} label="Actions" items=${[
          writes && ["Rename…", actions.rename], writes && ["Labels…", actions.label], writes && ["Compact…", actions.compact],
          ["Export as Markdown", actions.markdown], ["Export as JSON", actions.json],
          admin && !archived && ["Archive…", actions.archive], admin && ["Delete…", actions.delete]].filter(Boolean)} />
      </div>
    </div>
    ${view?.state.delegated_by && html`<${Above} connection=${connection} state=${view.state} />`}
    ${view && html`<${Facts} view=${view} id=${session_id} conversation=${conversation} />`}
    <nav class="tabs" aria-label="Parts of the session">
      <a href=${linkTo("session", session_id)} aria-current=${part ? undefined : "page"}>Conversation</a>
      <a href=${linkTo("session", session_id, "children")} aria-current=${part === "children" ? "page" : undefined}>Children${view?.state.children && html` <span class="number">${count(view.state.children.total)}</span>`}</a>
      <a href=${linkTo("session", session_id, "context")} aria-current=${part === "context" ? "page" : undefined}>Context</a>
      <a href=${linkTo("session", session_id, "events")} aria-current=${part === "events" ? "page" : undefined}>Events</a>
    </nav>
    ${error && html`<${Failure} error=${error} again=${() => { followed.begin(null); followed.load(); }} />`}
    ${report && html`<div class=${`notice ${report.error ? "bad" : ""}`} role="status"><span>${report.error ? report.error.message : report.text}</span><button class="quiet" onClick=${() => setReport(null)}>Dismiss</button></div>`}
    ${part === "children" ? html`<${Children} connection=${connection} watch=${rows.watch} id=${session_id} />`
      : part === "context" ? html`<${Context} connection=${connection} id=${session_id} view=${view} version=${view?.state.updated_at} />`
      : part === "events" ? html`<${Events} conversation=${conversation} />`
      : html`${!followed.loading && html`<${Timeline} turns=${conversation.turns} now=${now} />`}
        <${Stream} followed=${followed} target=${target} before=${places} now=${now} fork=${writes ? forkAt : null} decide=${writes && ((id, decision, more) => attempt("tool/approve", { call_id: id, decision, ...more }))} connection=${connection} />
        ${archived ? html`<p class="notice">An archived session can be read, not continued.</p>`
          : !writes ? html`<p class="notice">Your token may read this session, and not write to it.</p>`
          : html`<${Composer} key=${session_id} id=${session_id} at=${composer} running=${running} inputs=${followed.inputs ?? []} say=${call} withdraw=${(input_id) => attempt("session/withdraw", { input_id }, "The input was withdrawn.")} connection=${connection} />`}`}
    ${asked && html`<${Ask} ...${asked} close=${() => setAsked(null)} />`}
  </main>`;
}

/** The session that this one works for. */
function Above({ connection, state }) {
  const { delegated_by: parent, depth } = state;
  const { value } = useLoaded(() => connection.read("session/read", { session_id: parent }), [parent]);
  return html`<p class="above">Child of <a href=${linkTo("session", parent)}>${value?.state.title ?? shortId(parent)}</a>${depth > 1 ? `, level ${count(depth)}` : ""}</p>`;
}

function Facts({ view, id, conversation }) {
  const { state, billing } = view;
  const facts = [
    ["Model", modelName(state.model)],
    ["Tokens", `${compact(billing.usage.input_tokens)} in, ${compact(billing.usage.output_tokens)} out`],
    billing.usage.cost !== undefined && ["Cost", dollars(billing.usage.cost)],
    ["Messages", count(state.message_count)],
    state.compactions > 0 && ["Compactions", count(state.compactions)],
    Object.keys(state.labels).length > 0 && ["Labels", labelsText(state.labels)],
    state.parent && ["Fork of", html`<a href=${linkTo("session", state.parent.session_id)}>${shortId(state.parent.session_id)}</a> at ${state.parent.at}`],
    ["Created", when(state.created_at)],
    ["Id", html`<code class="id">${id}</code>`],
  ].filter(Boolean);
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** The turns, the newest in sight; it stays at the end while somebody looks at the end. */
function Stream({ followed, target, before, now, fork, decide, connection }) {
  const { conversation, awaited } = followed;
  const { gaps } = conversation;
  const turns = followed.loading ? [] : conversation.turns; // drawing them while they come would take longer than they do
  const [shown, setShown] = useState(SHOWN);
  const box = useRef();
  const top = useRef();
  const atEnd = useRef(true);
  const [away, setAway] = useState(false);
  const first = firstOf(turns, shown);
  useEffect(() => {
    if (!first) return undefined;
    const observer = new IntersectionObserver(([entry]) => entry.isIntersecting && setShown((number) => number + SHOWN), { root: box.current, rootMargin: "600px" });
    observer.observe(top.current);
    return () => observer.disconnect();
  }, [first, shown]);
  const reached = useRef(null);
  // The turn that was sought is drawn first if it is an early one, and then looked at once: nobody is held there.
  useEffect(() => {
    if (!target || reached.current === target) return;
    const entries = turns.slice(target.index ?? 0).reduce((sum, turn) => sum + turn.entries.length + 1, 0);
    if (entries > shown) {
      setShown(entries);
      return;
    }
    const element = document.getElementById(target.element);
    if (!element) return;
    reached.current = target;
    atEnd.current = false;
    setAway(true);
    element.classList.add("sought");
    element.tabIndex = -1;
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "start" });
  });
  useLayoutEffect(() => {
    if (atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const scrolled = () => {
    const own = box.current;
    atEnd.current = own.scrollHeight - own.scrollTop - own.clientHeight < 60;
    setAway(!atEnd.current);
  };
  const events = followed.from > 0 && !followed.partial ? html`<p class="gap">Events before the newest ${count(WINDOW)} are not shown here. <button onClick=${() => followed.begin(0)}>Show all</button></p>` : null;
  return html`<div class="streamed">
    <div class="stream" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-label="Conversation" aria-busy=${followed.loading}>
      ${followed.loading && html`<${Loading} what=${`the conversation (${plural(conversation.count, "event")} so far)`} />`}
      <div ref=${top} class="sentinel">${first > 0 ? `${plural(first, "earlier turn")}…` : ""}</div>
      ${first === 0 && events}
      ${first === 0 && followed.partial && html`<p class="gap" role="status">Earlier events are coming…</p>`}
      ${first === 0 && before?.map((each) => html`<${Message} key=${`m${each.position}`} each=${each} connection=${connection} id=${followed.session_id} />`)}
      ${turns.slice(first).map((turn, index) => html`
        ${gaps.filter((gap) => gap.before === first + index).map((gap) => html`<p class="gap">${plural(gap.dropped, "event")} ${gap.dropped === 1 ? "is" : "are"} missing: ${gap.cause === "damaged" ? "a damaged row of the store" : "no longer kept"}.</p>`)}
        <${Turn} key=${turn.seq} turn=${turn} awaited=${turn.state === "running" ? awaited : null} version=${turn.version} now=${turn.state === "running" ? now : 0} fork=${fork} decide=${decide} connection=${connection} id=${followed.session_id} />`)}
      ${!followed.loading && !turns.length && !before?.length && html`<p class="empty">No turn yet: say something.</p>`}
      ${followed.ended && html`<p class="gap">The events of this session have ended: it was archived or deleted.</p>`}
    </div>
    ${away && html`<button class="toend" onClick=${() => { box.current.scrollTop = box.current.scrollHeight; }}>To the end ↓</button>`}
  </div>`;
}

/** Return the first of the newest turns that have so many entries together. */
function firstOf(turns, entries) {
  let first = turns.length;
  for (let left = entries; first > 0 && left > 0; first -= 1) left -= turns[first - 1].entries.length + 1;
  return first;
}

/** The events as they came, the newest first. */
function Events({ conversation }) {
  const [shown, setShown] = useState(100);
  const newest = conversation.raw.slice(-shown).reverse();
  return html`<div class="events scroll" tabindex="0" aria-label="Events">
    ${newest.map((each) => html`<details key=${each.seq}><summary><span class="figure">${each.first_seq ? `${each.first_seq}–${each.seq}` : each.seq}</span> <time>${when(each.timestamp)}</time> <b>${each.event.type}</b></summary>
      <pre class="plain">${JSON.stringify(each.event, null, 2).slice(0, LONGEST_EVENT)}</pre></details>`)}
    ${conversation.raw.length > shown && html`<button onClick=${() => setShown(shown + 400)}>Earlier events (${count(conversation.raw.length - shown)})</button>`}
    ${!newest.length && html`<p class="empty">No event yet.</p>`}
  </div>`;
}
