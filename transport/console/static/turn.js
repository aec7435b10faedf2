// One turn of a conversation: the prompt, and what the model and its tools did.
import { Component, html, useState } from "./vendor/preact.js";
import { delegated, waiting } from "./conversation.js";
import { clock, compact, count, dollars, duration, plural, shortId, when } from "./format.js";
import { Attachments } from "./files.js";
import { LongText, Markdown } from "./markdown.js";
import { Ask, Failure, useLoaded } from "./parts.js";
import { linkTo } from "./route.js";

const MOST = 200;

/** Drawn again only when its turn has changed, or runs: a page has hundreds of them. */
export class Turn extends Component {
  shouldComponentUpdate(next, state) {
    return state.whole !== this.state.whole || next.version !== this.props.version || next.turn !== this.props.turn || next.now !== this.props.now;
  }

  render({ turn, awaited, now, fork, decide, connection, id }) {
    const time = (turn.ended ?? now) - turn.time;
    const from = this.state.whole ? 0 : Math.max(0, turn.entries.length - MOST);
    return html`<article class=${`turn ${turn.state}`} id=${`turn-${turn.seq}`} aria-label=${`Turn of ${clock(turn.time)}`}>
      ${turn.prompt === null ? html`<p class="gap">The beginning of this turn is not shown.</p>`
        : html`<div class="said user"><p class="who">User <time title=${when(turn.time)}>${clock(turn.time)}</time></p><${LongText} text=${turn.prompt} /><${Attachments} files=${turn.files} connection=${connection} id=${id} /></div>`}
      ${from > 0 && html`<p class="gap"><button onClick=${() => this.setState({ whole: true })}>Show ${plural(from, "earlier part")} of this turn</button></p>`}
      ${turn.entries.slice(from).map((entry, index) => html`<${Entry} key=${from + index} entry=${entry} awaited=${awaited} now=${now} decide=${decide} connection=${connection} id=${id} />`)}
      ${turn.state === "failed" && html`<p class=${`notice ${turn.cause === "cancelled" ? "warn" : "bad"}`}>${turn.cause === "cancelled" ? "Interrupted" : `Failed (${turn.cause})`}: ${turn.error}</p>`}
      <p class="foot">
        ${turn.state === "running" ? html`<span class="working">${worksOn(turn, awaited)} ${duration(Math.max(0, time))}</span>` : duration(time)}
        ${turn.steps.length > 0 && ` · ${plural(turn.steps.length, "step")}`}
        ${turn.usage && ` · ${compact(turn.usage.input_tokens)} in, ${compact(turn.usage.output_tokens)} out`}
        ${turn.usage?.cost !== undefined && ` · ${dollars(turn.usage.cost)}`}
        ${fork && turn.state !== "running" && turn.prompt !== null && html` · <button class="link" onClick=${() => fork(turn)}>Fork here</button>`}
      </p>
    </article>`;
  }
}

function worksOn(turn, awaited) {
  if (waiting(turn).length) return "Waits for approval, after";
  const children = delegated(turn, awaited).length;
  return children ? `Waits for ${plural(children, "child", "children")}, after` : "Working for";
}

function Entry({ entry, awaited, now, decide, connection, id }) {
  switch (entry.kind) {
    case "text":
      return html`<div class="said model"><p class="who">Model</p><${Markdown} text=${entry.text} /></div>`;
    case "files":
      return html`<div class="said model"><${Attachments} files=${entry.files} connection=${connection} id=${id} /></div>`;
    case "reasoning":
      return html`<details class="reasoning"><summary>Reasoning <span class="quiet">· ${count(entry.text.length)} characters</span></summary><${Markdown} text=${entry.text} /></details>`;
    case "tool":
      return html`<${Tool} entry=${entry} awaited=${awaited} now=${now} decide=${decide} connection=${connection} id=${id} />`;
    case "input":
      return html`<div class="said input"><p class="who">${INPUTS[entry.how] ?? entry.how}${entry.source ? ` from ${entry.source}` : ""} <time>${clock(entry.time)}</time></p><${LongText} text=${entry.text} /><${Attachments} files=${entry.files} connection=${connection} id=${id} /></div>`;
    case "compaction":
      return html`<${Compaction} entry=${entry} connection=${connection} id=${id} />`;
    case "resumed":
      return html`<p class="resumed">The turn goes on after an interruption (${entry.times}).</p>`;
    case "data":
      return html`<${Data} data=${entry.data} />`;
    default:
      return html`<p class=${`notice ${entry.tone}`}>${entry.text}</p>`;
  }
}

function Data({ data }) {
  return html`<details class="reasoning"><summary>The answer as data</summary><${LongText} text=${JSON.stringify(data, null, 2)} /></details>`;
}

const INPUTS = { steer: "Steered", context: "Context", queue: "Queued", peer: "Message" };

function Tool({ entry, awaited, now, decide, connection, id }) {
  const waits = entry.approval === "waits";
  const [open, setOpen] = useState(waits);
  const denied = ["deny", "timeout", "cancelled"].includes(entry.approval);
  const ended = entry.state === "ended" || entry.state === "done";
  const state = waits ? "waiting" : denied ? "denied" : entry.isError ? "failed" : ended ? "done" : entry.state === "running" ? "running" : "asked";
  const words = { waiting: "waits for approval", denied: { timeout: "not approved in time", cancelled: "no longer asked" }[entry.approval] ?? "denied", failed: "failed", done: "done", running: !entry.child ? "runs" : awaited && !awaited.has(entry.child) ? "its child has ended" : "waits for its child", asked: "asked for" }[state];
  const spent = entry.duration ?? (entry.started && now ? now - entry.started : null);
  return html`<div class=${`tool ${state}`}>
    <details open=${open || waits} onToggle=${(event) => setOpen(event.target.open)}>
      <summary><span class="mark" aria-hidden="true"></span><code>${entry.name}</code> <span class="brief">${brief(entry.args)}</span>
        <span class="result">${words}${spent !== null && ended ? ` in ${duration(spent)}` : ""}</span></summary>
      ${(open || waits) && html`<div class="inside">
        <p class="label">Arguments</p><pre class="plain" tabindex="0">${shorten(JSON.stringify(entry.args ?? {}, null, 2))}</pre>
        ${entry.reason && html`<p class="label">Reason</p><p>${entry.reason}</p>`}
        ${entry.result !== undefined && html`<p class="label">Result${entry.isError ? " (error)" : ""}</p><${LongText} text=${entry.result} />`}
        <${Attachments} files=${entry.files} connection=${connection} id=${id} />
      </div>`}
    </details>
    ${entry.child && html`<p class="child"><a href=${linkTo("session", entry.child)}>Child session ${entry.args?.title ?? shortId(entry.child)}</a></p>`}
    ${waits && decide && html`<${Approval} entry=${entry} now=${now} decide=${decide} />`}
  </div>`;
}

function Approval({ entry, now, decide }) {
  const [asked, setAsked] = useState(false);
  const left = entry.until - (now || Date.now());
  return html`<div class="approval" role="group" aria-label=${`Approval of ${entry.name}`}>
    ${entry.mayHaveRun && html`<strong>It may have run already: the process ended during it.</strong>`}
    <span>${left > 0 ? `Waits for your decision, for ${duration(Math.ceil(left / 1000) * 1000)} more.` : "The time for a decision is over."}</span>
    <button class="primary" onClick=${() => decide(entry.id, "allow")}>Approve</button>
    ${!entry.standsAlone && html`<button onClick=${() => decide(entry.id, "allow", { remember: true })}>Always in this session</button>`}
    <button onClick=${() => decide(entry.id, "deny")}>Deny</button>
    <button class="quiet" onClick=${() => setAsked(true)}>Deny with a reason…</button>
    ${asked && html`<${Ask} title="Deny" field="The reason, which the model reads" action="Deny" act=${(reason) => decide(entry.id, "deny", { reason })} close=${() => setAsked(false)} />`}
  </div>`;
}

function Compaction({ entry, connection, id }) {
  const [open, setOpen] = useState(false);
  if (entry.state === "running") return html`<p class="compaction">Compacting ${plural(entry.before, "message")}…</p>`;
  if (entry.state === "failed") return html`<p class="notice warn">The compaction failed, and the turn went on: ${entry.error}</p>`;
  return html`<div class="compaction"><button class="link" aria-expanded=${open} onClick=${() => setOpen(!open)}>Compacted: ${count(entry.before)} messages became ${count(entry.after)}</button>
    ${open && html`<${Summary} entry=${entry} connection=${connection} id=${id} />`}</div>`;
}

function Summary({ entry, connection, id }) {
  const { value, error, again } = useLoaded(async () => {
    const found = [];
    for (let offset = 0, total = 1; offset < total; offset += 1000) {
      const page = await connection.read("session/history", { session_id: id, offset, limit: 1000 });
      found.push(...page.compactions);
      total = page.total;
    }
    return found.find((each) => Math.abs(Date.parse(each.created_at) - entry.ended) < 1000 && each.messages_before === entry.before) ?? found.find((each) => each.messages_before === entry.before && each.messages_after === entry.after);
  }, []);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  return value === undefined ? html`<p class="quiet" role="status">Loading the summary…</p>` : html`<div class="summary"><${Markdown} text=${value.summary} /></div>`;
}

/** A message of the history, where no event tells of it. */
export function Message({ each, connection, id }) {
  const { message, time, position } = each;
  const who = { system: "System", user: "User", context: "Context", assistant: "Model", tool_results: "Tool" }[message.role] ?? message.role;
  const head = html`<p class="who">${who} ${time && html`<time title=${when(time)}>${clock(time)}</time>`}</p>`;
  if (message.role === "assistant") {
    return html`<div class="said model">${head}${(message.blocks ?? []).map((block) => {
      if (block.type === "text") return html`<${Markdown} text=${block.text} />`;
      if (block.type === "reasoning") return block.text && html`<details class="reasoning"><summary>Reasoning</summary><${Markdown} text=${block.text} /></details>`;
      if (block.type === "file") return html`<${Attachments} files=${[block.file]} connection=${connection} id=${id} />`;
      return html`<div class="tool done"><details><summary><span class="mark" aria-hidden="true"></span><code>${block.name ?? block.type}</code> <span class="brief">${brief(block.args)}</span></summary><div class="inside"><pre class="plain" tabindex="0">${shorten(JSON.stringify(block.args ?? {}, null, 2))}</pre></div></details></div>`;
    })}${message.structured_output !== undefined && html`<${Data} data=${message.structured_output} />`}</div>`;
  }
  if (message.role === "tool_results") return message.results.map((result) => html`<details class="reasoning"><summary>Result${result.is_error ? " (error)" : ""}</summary><${LongText} text=${result.content} /><${Attachments} files=${result.attachments} connection=${connection} id=${id} /></details>`);
  if (message.role === "system") return html`<details class="reasoning"><summary>System prompt</summary><${LongText} text=${message.content} /></details>`;
  return html`<div class=${`said ${message.role === "user" ? "user" : "input"}`} id=${`message-${position}`}>${head}<${LongText} text=${message.content} /><${Attachments} files=${message.attachments} connection=${connection} id=${id} /></div>`;
}

const shorten = (text) => (text.length > 20_000 ? `${text.slice(0, 20_000)}…` : text);
const brief = (args) => Object.entries(args ?? {}).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ").slice(0, 120);
