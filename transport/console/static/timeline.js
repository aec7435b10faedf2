// The turns on a line of time: steps of the model, tools, waits for approval; the time between turns is folded.
import { html } from "./vendor/preact.js";
import { clock, duration } from "./format.js";

const TURNS = 30;
const SEGMENTS = 60;

export function Timeline({ turns, now }) {
  if (!turns.length) return null;
  const shown = turns.slice(-TURNS);
  const parts = shown.map((turn, index) => {
    const before = shown[index - 1];
    const idle = before ? turn.time - (before.ended ?? before.latest) : 0;
    return { turn, idle, length: Math.max(1, (turn.ended ?? now) - turn.time) };
  });
  const longest = Math.max(...parts.map(({ length }) => length));
  return html`<ol class="timeline" aria-label="Timeline" tabindex="0">
    ${parts.map(({ turn, idle, length }) => html`
      ${idle > 1000 && html`<li class="idle" key=${`i${turn.seq}`} title=${`idle for ${duration(idle)}`}>${duration(idle)}</li>`}
      <li key=${turn.seq} style=${{ flexGrow: 1 + Math.round(9 * Math.sqrt(length / longest)) }}>
        <button class=${turn.state} onClick=${() => document.getElementById(`turn-${turn.seq}`)?.scrollIntoView({ block: "start" })} aria-label=${label(turn, length)} title=${label(turn, length)}>
          ${segments(turn, now).map((part, index) => html`<span key=${index} class=${part.kind} style=${{ left: `${(100 * part.from) / length}%`, width: `${Math.max(1.5, (100 * (part.to - part.from)) / length)}%` }}></span>`)}
        </button></li>`)}
  </ol>`;
}

function label(turn, length) {
  const tools = turn.entries.filter((entry) => entry.kind === "tool");
  const words = [`Turn of ${clock(turn.time)}`, turn.state === "running" ? `runs for ${duration(length)}` : `${turn.state === "done" ? "took" : "failed after"} ${duration(length)}`, `${turn.steps.length} steps`];
  if (tools.length) words.push(tools.map((tool) => `${tool.name}${tool.duration === undefined ? "" : ` ${duration(tool.duration)}`}`).slice(0, 8).join(", "));
  return words.join(" · ");
}

function segments(turn, now) {
  const found = turn.steps.map((step) => ({ kind: "step", from: step.time - turn.time, to: (step.ended ?? turn.ended ?? now) - turn.time }));
  for (const entry of turn.entries) {
    if (entry.kind === "tool" && entry.asked) found.push({ kind: "wait", from: entry.asked - turn.time, to: (entry.resolved ?? turn.ended ?? now) - turn.time });
    if (entry.kind === "tool" && entry.started) found.push({ kind: entry.isError ? "tool failed" : "tool", from: entry.started - turn.time, to: (entry.ended ?? turn.ended ?? now) - turn.time });
    if (entry.kind === "compaction") found.push({ kind: "compacting", from: entry.time - turn.time, to: (entry.ended ?? turn.ended ?? now) - turn.time });
  }
  const length = (part) => part.to - part.from;
  return found.length > SEGMENTS ? found.sort((one, other) => length(other) - length(one)).slice(0, SEGMENTS) : found;
}
