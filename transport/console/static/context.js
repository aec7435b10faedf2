// What the model sees of a session now, by part, as the gateway counts it.
import { html } from "./vendor/preact.js";
import { count, plural } from "./format.js";
import { modelName } from "./list.js";
import { Failure, Loading, useLoaded } from "./parts.js";
import { Message } from "./turn.js";

const PARTS = { system: "System prompt", tools: "Tools", summary: "Summary", prompts: "Prompts", answers: "Answers", tool_results: "Tool results", context: "Context" };

export function Context({ connection, id, version }) {
  const { value, error, again } = useLoaded(() => connection.read("session/context", { session_id: id }), [id, version]);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} what="the context" />`;
  const { parts = [], tools = [], messages = [], summary, window, room, tokens, model } = value;
  const free = window ? Math.max(0, window - tokens) : 0;
  const share = (size) => `${((100 * size) / (window || tokens || 1)).toFixed(1)} %`;
  const shown = ({ position, message }) => html`<${Message} key=${position} each=${{ message }} connection=${connection} id=${id} />`;
  const said = parts.map(({ name, tokens: size }) => `${PARTS[name]} ${count(size)}`);
  return html`<div class="context scroll" tabindex="0" aria-label="Context">
    <p>About <b>${count(tokens)}</b> ${window ? html`of <b>${count(window)}</b> tokens in the window of ${modelName(model)}` : html`tokens; the window of ${modelName(model)} is not known`}.
      ${window ? html` <span class=${tokens > room ? "bad" : "quiet"}>${tokens > room ? "The next request has no room: the context will be compacted, or refused." : `${count(Math.max(0, room - tokens))} are left before the answer's share.`}</span>` : ""}</p>
    <div class="bar" role="img" aria-label=${[...said, ...(free ? [`free ${count(free)}`] : [])].join(", ")}>
      ${parts.map(({ name, tokens: size }) => html`<span class=${name} style=${{ flexGrow: size }}></span>`)}${free > 0 && html`<span class="free" style=${{ flexGrow: free }}></span>`}</div>
    <table class="plain"><thead><tr><th>Part</th><th class="figure">Number</th><th class="figure">Tokens</th><th class="figure">${window ? "Of the window" : "Share"}</th></tr></thead><tbody>
      ${parts.map(({ name, tokens: size, count: number }) => html`<tr><td><span class=${`swatch ${name}`} aria-hidden="true"></span>${PARTS[name]}</td><td class="figure">${count(number)}</td><td class="figure">${count(size)}</td><td class="figure">${share(size)}</td></tr>`)}</tbody></table>
    ${!messages.length && html`<p class="empty">Nothing yet.</p>`}
    ${messages.filter(({ message }) => message.role === "system").map(shown)}
    ${tools.length > 0 && html`<details class="card"><summary>${plural(tools.length, "tool")}</summary>
      <dl class="facts">${tools.map((tool) => html`<div key=${tool.name}><dt><code>${tool.name}</code> ${tool.description}</dt><dd>${count(tool.tokens)}</dd></div>`)}</dl></details>`}
    ${summary && html`<div class="said input"><p class="who">Summary of the messages before</p><pre class="plain">${summary}</pre></div>`}
    ${messages.filter(({ message }) => message.role !== "system").map(shown)}
  </div>`;
}
