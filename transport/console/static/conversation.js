// A conversation as its events tell it: turns, each with its entries in order. No page and no network in here.

/** Events of an open session that the page has; earlier ones when somebody wants them. */
export const WINDOW = 20_000;

/**
 * The turns of a session.
 *
 * A turn has the `prompt`, its `entries` (`text`, `files`, `reasoning`, `tool`, `input`, `compaction`, `data`, `resumed`,
 * `note`), its `steps`, its `state` (`running`, `done`, `failed`) and a `version` that rises with each change.
 */
export class Conversation {
  constructor() {
    this.turns = [];
    this.last = 0;
    this.count = 0;
    this.gaps = [];
    this.raw = [];
  }

  get running() {
    const turn = this.turns.at(-1);
    return turn?.state === "running" ? turn : null;
  }

  /** The calls that wait for approval. */
  get approvals() {
    return this.running ? waiting(this.running) : [];
  }

  /** Take the next event; one that was taken before is passed over. */
  take(envelope) {
    const { seq, event, timestamp } = envelope;
    if (event.type === "stream_truncated") {
      this.gaps.push({ before: this.turns.length, dropped: event.dropped, cause: event.cause });
      this.last = Math.max(this.last, event.resume_after);
      return;
    }
    const time = Date.parse(timestamp);
    if (event.type === "session_moved") { // its number is that of the event before it
      this.moved(time);
      return;
    }
    if (seq <= this.last) return;
    this.last = seq;
    this.count += 1;
    this.raw.push(envelope);
    if (event.type === "run_started") {
      this.end(time, "failed", { error: "the turn did not end", cause: "crash" });
      this.turns.push(newTurn(seq, time, event.prompt, event.attachments));
      return;
    }
    let turn = this.turns.at(-1);
    // One that has ended goes on if the store went back to a state from before its end.
    if (event.type === "turn_resumed" && turn && (turn.state === "running" || (turn.seq <= event.kept_seq && event.kept_seq < turn.last))) {
      this.resume(turn, event.kept_seq);
    } else if (!turn || (turn.state !== "running" && !OUTSIDE.has(event.type))) {
      turn = newTurn(seq, time, null); // the beginning of the turn is not among the events
      this.turns.push(turn);
    }
    apply(turn, envelope);
  }

  moved(time) {
    const turn = this.running;
    if (!turn) return;
    note(turn, time, "The session goes on in another process; events that were shown here last were not stored.", "warn");
    turn.version += 1;
  }

  /** Make a turn anew of its events that count, as a process goes on with it from there. */
  resume(turn, kept_seq) {
    const first = this.raw.findLastIndex(({ seq }) => seq === turn.seq);
    let counted = [];
    for (const each of this.raw.slice(first)) {
      if (each.event.type === "turn_resumed") counted = counted.filter(({ seq }) => seq <= each.event.kept_seq);
      if (each.seq <= kept_seq && each.event.type !== "run_started") counted.push(each);
    }
    Object.assign(turn, { ...newTurn(turn.seq, turn.time, turn.prompt, turn.files), version: turn.version + 1 });
    for (const each of counted) apply(turn, each);
  }

  end(time, state, more) {
    const turn = this.running;
    if (turn) finish(turn, time, state, more);
  }
}

function apply(turn, { seq, event, timestamp }) {
  const time = Date.parse(timestamp);
  TAKE[event.type]?.(turn, event, time, seq);
  turn.latest = time;
  turn.last = seq;
  turn.version += 1;
}

/** Return the calls of a turn that wait for approval. */
export const waiting = (turn) => turn.entries.filter((entry) => entry.kind === "tool" && entry.approval === "waits");

/**
 * Return the calls of a turn that wait for the ends of child sessions, if it does nothing else.
 *
 * The results of all come once the last child has ended: until then `awaited` has the children that have not, if known.
 */
export function delegated(turn, awaited = null) {
  const open = turn.entries.filter((entry) => entry.kind === "tool" && entry.state === "running");
  return open.every((entry) => entry.child) ? open.filter((entry) => !awaited || awaited.has(entry.child)) : [];
}

/** Events that come between turns: a compaction that was asked for. */
const OUTSIDE = new Set(["compaction_started", "compaction_completed", "compaction_failed", "run_failed"]);

function newTurn(seq, time, prompt, files = []) {
  return { seq, time, prompt, files, entries: [], steps: [], state: "running", ended: null, latest: time, last: seq, usage: null, error: null, cause: null, version: 0 };
}

function finish(turn, time, state, more = {}) {
  Object.assign(turn, { state, ended: time, ...more });
  for (const entry of turn.entries) entry.open = false;
  const step = turn.steps.at(-1);
  if (step) step.ended ??= time;
  turn.version += 1;
}

/** Return the entry that deltas of a kind go into: the last one, if it is of that kind and still open. */
function open(turn, kind, time) {
  const last = turn.entries.at(-1);
  if (last?.kind === kind && last.open) return last;
  const entry = { kind, text: "", time, open: true, step: turn.steps.length };
  turn.entries.push(entry);
  return entry;
}

const add = (turn, entry) => turn.entries.push(entry);
const note = (turn, time, text, tone = "") => add(turn, { kind: "note", time, text, tone });

function toolOf(turn, event, time) {
  for (let at = turn.entries.length - 1; at >= 0; at -= 1) {
    const entry = turn.entries[at];
    if (entry.kind === "tool" && entry.id === event.id && entry.state !== "done") return entry;
  }
  const entry = { kind: "tool", id: event.id, name: event.name, args: event.args ?? null, state: "asked", time, step: turn.steps.length };
  turn.entries.push(entry);
  return entry;
}

/** What each type of event does to the turn that it belongs to. */
const TAKE = {
  turn_started: (turn, _event, time) => {
    turn.steps.push({ time, ended: null, usage: null });
  },
  reasoning_delta: (turn, event, time) => {
    open(turn, "reasoning", time).text += event.delta;
  },
  text_delta: (turn, event, time) => {
    open(turn, "text", time).text += event.delta;
  },
  text_complete: (turn, event, time) => {
    // A call that was tried again leaves the deltas of the first one: the whole text counts.
    const own = turn.entries.filter((entry) => entry.kind === "text" && entry.step === turn.steps.length);
    const entry = own.at(-1) ?? open(turn, "text", time);
    if (own.map((each) => each.text).join("") !== event.content) {
      for (const each of own.slice(0, -1)) turn.entries.splice(turn.entries.indexOf(each), 1);
      entry.text = event.content;
    }
    entry.open = false;
  },
  files_complete: (turn, event, time) => {
    add(turn, { kind: "files", time, step: turn.steps.length, files: event.attachments });
  },
  tool_call_requested: (turn, event, time) => {
    const last = turn.entries.at(-1);
    if (last) last.open = false;
    toolOf(turn, event, time).args = event.args;
  },
  tool_approval_requested: (turn, event, time) => {
    const tool = toolOf(turn, event, time);
    Object.assign(tool, { args: event.args, approval: "waits", category: event.category, asked: time, until: time + event.timeout_ms, mayHaveRun: event.may_have_run ?? false, standsAlone: (event.may_have_run ?? false) || Boolean(event.question_of) });
  },
  tool_approval_resolved: (turn, event, time) => {
    const tool = toolOf(turn, event, time);
    Object.assign(tool, { approval: event.decision, reason: event.reason, resolved: time });
  },
  tool_execution_started: (turn, event, time) => {
    Object.assign(toolOf(turn, event, time), { state: "running", started: time, child: event.child });
  },
  tool_execution_timed_out: (turn, event, time) => {
    toolOf(turn, event, time).timedOut = event.timeout_ms;
  },
  tool_execution_completed: (turn, event, time) => {
    Object.assign(toolOf(turn, event, time), { state: "ended", result: event.result, isError: event.is_error, duration: event.duration_ms, ended: time, files: event.attachments });
  },
  tool_result_received: (turn, event, time) => {
    const ended = { state: "done", isError: event.is_error };
    Object.assign(toolOf(turn, event, time), event.result ? { ...ended, result: event.result } : ended);
  },
  turn_completed: (turn, event, time) => {
    const step = turn.steps.at(-1);
    if (step) Object.assign(step, { ended: time, usage: event.usage, stop: event.stop_reason });
    const last = turn.entries.at(-1);
    if (last) last.open = false;
  },
  input_taken: (turn, event, time) => {
    add(turn, { kind: "input", time, text: event.content, how: event.kind, source: event.source, files: event.attachments });
  },
  compaction_started: (turn, event, time) => {
    add(turn, { kind: "compaction", time, state: "running", before: event.message_count, tokens: event.input_tokens });
  },
  compaction_completed: (turn, event, time) => {
    const entry = compactionOf(turn, time);
    Object.assign(entry, { state: "done", ended: time, before: event.messages_before, after: event.messages_after, summaryTokens: event.summary_tokens });
  },
  compaction_failed: (turn, event, time) => {
    Object.assign(compactionOf(turn, time), { state: "failed", ended: time, error: event.error });
  },
  retrying: (turn, event, time) => {
    note(turn, time, `The model call failed (${event.error}); try ${event.attempt + 1} of ${event.max_attempts} follows.`, "warn");
  },
  request_repaired: (turn, event, time) => {
    note(turn, time, `${event.what} was ${event.action.replace("_", " ")} and the request sent again: ${event.why}`, "warn");
  },
  model_switched: (turn, event, time) => {
    if (event.discarded) {
      const ofStep = (entry) => (entry.kind === "text" || entry.kind === "reasoning") && entry.step === turn.steps.length;
      turn.entries = turn.entries.filter((entry) => !ofStep(entry));
    }
    note(turn, time, `${event.from_model} is overloaded or away (${event.error}); ${event.to_model} answers.`, "warn");
  },
  budget_warning: (turn, event, time) => {
    note(turn, time, `${Math.round(event.percent)} % of the budget of ${event.budget_type.replace("_", " ")} is used: ${event.used} of ${event.limit}.`, "warn");
  },
  extraction_completed: (turn, event, time) => {
    note(turn, time, `The answer is available as data, after ${event.attempts} model calls.`);
  },
  extraction_failed: (turn, event, time) => {
    note(turn, time, `The answer does not fit its schema: ${event.error}`, "bad");
  },
  turn_resumed: (turn, event, time) => {
    add(turn, { kind: "resumed", time, times: event.resumed });
  },
  run_completed: (turn, event, time) => {
    if (event.structured_output !== undefined) add(turn, { kind: "data", time, data: event.structured_output });
    finish(turn, time, "done", { usage: event.usage });
  },
  run_failed: (turn, event, time) => {
    if (turn.state === "running") finish(turn, time, "failed", { error: event.error, cause: event.cause });
  },
};

function compactionOf(turn, time) {
  for (let at = turn.entries.length - 1; at >= 0; at -= 1) {
    if (turn.entries[at].kind === "compaction" && turn.entries[at].state === "running") return turn.entries[at];
  }
  const entry = { kind: "compaction", time, state: "running" };
  turn.entries.push(entry);
  return entry;
}

/** Tell whether a stored message is the prompt with which a turn has begun. */
export const beginsTurn = (message) => message.role === "user" && !message.steered;

/**
 * Return, for each turn, the position of its prompt in the history; null if it is not there.
 *
 * Events do not have the positions of messages. Going back from the end, each prompt is the nearest user message of the
 * same text: what a fork copied and what a crash lost are in only one of the two.
 *
 * @param {Array} turns
 * @param {Array<{position: number, message: object}>} entries oldest first.
 */
export function positions(turns, entries) {
  const found = new Array(turns.length).fill(null);
  const users = entries.filter(({ message }) => beginsTurn(message));
  let at = users.length - 1;
  for (let index = turns.length - 1; index >= 0; index -= 1) {
    for (let place = at; place >= 0; place -= 1) {
      if (users[place].message.content === turns[index].prompt) {
        found[index] = users[place].position;
        at = place - 1;
        break;
      }
    }
  }
  return found;
}

/** Return the stored messages before the first turn that events tell of, as entries to show. */
export function earlier(entries, turns, places) {
  const first = places.find((each) => each !== null) ?? null;
  const before = turns.length && first === null ? [] : entries.filter(({ position }) => first === null || position < first);
  return before.map(({ position, message, created_at }) => ({ position, message, time: Date.parse(created_at) }));
}
