// What the model sees of a session now, by part.
import { html } from "./vendor/preact.js";
import { count } from "./format.js";
import { transcript } from "./export.js";
import { Failure, Loading, useLoaded } from "./parts.js";
import { Message } from "./turn.js";

const PER_TOKEN = 4;
const PARTS = { system: "System prompt", summary: "Summary", user: "Prompts", assistant: "Answers", tool_results: "Tool results", context: "Context" };

export function Context({ connection, id, version }) {
  const { value, error, again } = useLoaded(() => transcript(connection, id), [id, version]);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} what="the context" />`;
  const { messages, summary } = seen(value);
  const sizes = {};
  if (summary) sizes.summary = tokens(summary.summary);
  for (const { message } of messages) sizes[message.role] = (sizes[message.role] ?? 0) + tokens(textOf(message));
  const total = Object.values(sizes).reduce((sum, size) => sum + size, 0);
  const kinds = Object.keys(PARTS).filter((kind) => sizes[kind]);
  return html`<div class="context scroll" tabindex="0" aria-label="Context">
    <p>About <b>${count(total)}</b> tokens of ${count(messages.length)} messages, as four characters a token count; the definitions of tools come on top.</p>
    <div class="bar" role="img" aria-label=${kinds.map((kind) => `${PARTS[kind]} ${count(sizes[kind])}`).join(", ")}>${kinds.map((kind) => html`<span class=${kind} style=${{ flexGrow: sizes[kind] }}></span>`)}</div>
    <table class="plain"><thead><tr><th>Part</th><th class="figure">Tokens</th><th class="figure">Share</th></tr></thead><tbody>
      ${kinds.map((kind) => html`<tr><td><span class=${`swatch ${kind}`} aria-hidden="true"></span>${PARTS[kind]}</td><td class="figure">${count(sizes[kind])}</td><td class="figure">${Math.round((100 * sizes[kind]) / total)} %</td></tr>`)}</tbody></table>
    ${!messages.length && html`<p class="empty">Nothing yet.</p>`}
    ${messages.filter(({ message }) => message.role === "system").map(show)}
    ${summary && html`<div class="said input"><p class="who">Summary of the messages before ${count(summary.head)}</p><pre class="plain">${summary.summary}</pre></div>`}
    ${messages.filter(({ message }) => message.role !== "system").map(show)}
  </div>`;
}

const show = ({ position, message, created_at }) => html`<${Message} key=${position} each=${{ message, time: Date.parse(created_at) }} />`;

/** Return the messages from the newest summary on, with the system prompt, and the summary. */
export function seen({ messages, compactions }) {
  const summary = compactions.reduce((newest, each) => (!newest || each.head >= newest.head ? each : newest), null);
  const head = summary?.head ?? 0;
  return { summary, messages: messages.filter(({ position, message, left_out }) => !left_out && (position >= head || (position === 0 && message.role === "system"))) };
}

const tokens = (text) => Math.ceil(text.length / PER_TOKEN);

function textOf(message) {
  if (message.role === "assistant") return (message.blocks ?? []).map((block) => block.text ?? JSON.stringify(block.args ?? "")).join("");
  if (message.role === "tool_results") return message.results.map((result) => result.content).join("");
  return message.content;
}
