// What a person says to a session: a prompt, a word to the running turn, a text for the context; and what waits.
import { html, useState } from "./vendor/preact.js";
import { Failure } from "./parts.js";
import { ago } from "./format.js";

const MODES = {
  queue: ["Say", "Queue", "Begins a turn; if one runs, after it."],
  steer: ["Steer", "Steer", "Enters the running turn at its next step; if none runs, it begins one."],
  context: ["Tell", "Tell", "A text for the model that is no prompt: no turn begins."],
};

export function Composer({ at, running, inputs, say, withdraw, connection }) {
  const [text, setText] = useState("");
  const [mode, setMode] = useState("queue");
  const [error, setError] = useState(null);
  const send = async (event) => {
    event?.preventDefault();
    const words = text;
    if (!words.trim()) return;
    setError(null);
    setText("");
    // Under a key of its own a prompt that is sent again after a lost connection is taken once.
    const idempotency_key = key();
    const sent = mode === "context" ? say("session/inject_context", { text: words, idempotency_key }, { again: true })
      : say("turn/start", { prompt: words, mode, idempotency_key }, { again: true, limit: 0 });
    try {
      await sent;
    } catch (problem) {
      if (!ENDED.has(problem.code) || problem.details?.cause === "inbox_full") {
        setError(problem);
        setText((now) => now || words);
      }
    }
  };
  const press = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    else if (event.key === "Escape") event.target.blur();
  };
  const [say_, queue_, help] = MODES[mode];
  return html`<form class="composer" onSubmit=${send}>
    ${inputs.length > 0 && html`<ul class="waiting" aria-label="Inputs that wait">${inputs.map((each) => html`<li key=${each.input_id}><b>${each.kind}</b> <span class="words">${each.text.slice(0, 300)}</span> <span class="quiet">${ago(each.created_at, Date.now())}</span>
      <button type="button" class="quiet" onClick=${() => withdraw(each.input_id)}>Withdraw</button></li>`)}</ul>`}
    ${error && html`<${Failure} error=${error} />`}
    ${connection.state !== "open" && html`<p class="quiet">The connection is away; what you send leaves when it is back.</p>`}
    <label class="hidden" for="words">Message</label>
    <textarea id="words" ref=${at} rows="2" placeholder=${running && mode === "queue" ? "A turn runs; your message waits for it. Enter sends, Shift+Enter begins a line." : "Message. Enter sends, Shift+Enter begins a line."} value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${press}></textarea>
    <div class="buttons">
      <label for="mode" class="hidden">How</label>
      <select id="mode" value=${mode} onChange=${(event) => setMode(event.target.value)} title=${help}>
        <option value="queue">${running ? "Queue" : "Say"}</option><option value="steer">Steer</option><option value="context">Context</option>
      </select>
      <span class="quiet help">${help}</span>
      <button class="primary" type="submit" disabled=${!text.trim()}>${running ? queue_ : say_}</button>
    </div>
  </form>`;
}

/** Errors of a turn that has begun: the conversation shows them. */
const ENDED = new Set(["AGENT_ERROR", "PROVIDER_ERROR", "BUDGET_EXHAUSTED"]);

/** An idempotency key. `crypto.randomUUID` is only for pages over TLS or of this machine. */
export const key = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
