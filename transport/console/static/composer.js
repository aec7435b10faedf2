// What a person says to a session: a prompt, a word to the running turn, a text for the context; and what waits.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { Attach, Chosen, sendWith, useFiles } from "./files.js";
import { Failure } from "./parts.js";
import { ago } from "./format.js";

const MODES = {
  queue: ["Say", "Queue", "Begins a turn; if one runs, after it."],
  steer: ["Steer", "Steer", "Enters the running turn at its next step; if none runs, it begins one."],
  context: ["Tell", "Tell", "A text for the model that is no prompt: no turn begins."],
};

/** First prompts of new sessions, as `{words, files}` by session: the composer of each sends its own. */
export const drafts = new Map();

export function Composer({ at, id, running, inputs, say, withdraw, connection }) {
  const [text, setText] = useState("");
  const [mode, setMode] = useState("queue");
  const [error, setError] = useState(null);
  const [sent, setSent] = useState(null);
  const context = useRef(null);
  const asked = () => (context.current ??= connection.read("session/context", { session_id: id }).catch(() => {
    context.current = null; // the gateway refuses what the model does not take
  }));
  const { files, add, remove, set, check, over, drag, paste } = useFiles(setError, asked);
  const send = (event) => {
    event?.preventDefault();
    if (text.trim() && sent === null) deliver(text, files);
  };
  const deliver = async (words, files) => {
    if (mode === "context" && files.length) {
      setError({ message: "A text for the context has no files: say it, or steer." });
      return;
    }
    setError(null);
    setText("");
    set([]);
    // Under a key of its own a prompt that is sent again after a lost connection is taken once.
    const idempotency_key = key();
    const prompt = { prompt: words, mode, idempotency_key };
    const withFiles = (attachments) => {
      setSent(null);
      return say("turn/start", { ...prompt, attachments }, { limit: 0 });
    };
    try {
      if (mode === "context") await say("session/inject_context", { text: words, idempotency_key }, { again: true });
      else if (files.length) {
        setSent(0);
        await check(files);
        await sendWith(connection, files, withFiles, setSent);
      }
      else await say("turn/start", prompt, { again: true, limit: 0 });
    } catch (failure) {
      if (!ENDED.has(failure.code) || failure.details?.cause === "inbox_full") {
        setError({ ...failure, message: named(failure.message, files) });
        setText((now) => now || words);
        set((now) => (now.length ? now : files));
      }
    }
    setSent(null);
  };
  useEffect(() => {
    const draft = drafts.get(id);
    drafts.delete(id);
    if (draft) deliver(draft.words, draft.files);
  }, [id]);
  const press = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    else if (event.key === "Escape") event.target.blur();
  };
  const [say_, queue_, help] = MODES[mode];
  return html`<form class=${`composer ${over ? "over" : ""}`} onSubmit=${send} ...${drag}>
    ${inputs.length > 0 && html`<ul class="waiting" aria-label="Inputs that wait">${inputs.map((each) => html`<li key=${each.input_id}><b>${each.kind}</b> <span class="words">${each.text.slice(0, 300)}</span> <span class="quiet">${ago(each.created_at, Date.now())}</span>
      <button type="button" class="quiet" onClick=${() => withdraw(each.input_id)}>Withdraw</button></li>`)}</ul>`}
    ${error && html`<${Failure} error=${error} />`}
    ${sent !== null && html`<p class="quiet" role="status">Sending the files: ${Math.round(sent * 100)} %</p>`}
    <${Chosen} files=${files} remove=${remove} />
    ${connection.state !== "open" && html`<p class="quiet">The connection is away; what you send leaves when it is back.</p>`}
    <label class="hidden" for="words">Message</label>
    <textarea id="words" ref=${at} rows="2" placeholder=${running && mode === "queue" ? "A turn runs; your message waits for it. Enter sends, Shift+Enter begins a line." : "Message. Enter sends, Shift+Enter begins a line."} value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${press} onPaste=${paste}></textarea>
    <div class="buttons">
      <label for="mode" class="hidden">How</label>
      <select id="mode" value=${mode} onChange=${(event) => setMode(event.target.value)} title=${help}>
        <option value="queue">${running ? "Queue" : "Say"}</option><option value="steer">Steer</option><option value="context">Context</option>
      </select>
      <${Attach} add=${add} />
      <span class="quiet help">${help}</span>
      <button class="primary" type="submit" disabled=${!text.trim() || sent !== null}>${running ? queue_ : say_}</button>
    </div>
  </form>`;
}

/** Errors of a turn that has begun: the conversation shows them. */
const ENDED = new Set(["AGENT_ERROR", "PROVIDER_ERROR", "BUDGET_EXHAUSTED"]);

/** Return the words of an error with the name of the file that they are about. */
const named = (text, files) => text.replace(/^\$\.attachments\[(\d+)\](\.\w+)?: /, (all, index) => (files[index] ? `The file ${files[index].name}: ` : all));

/** An idempotency key. `crypto.randomUUID` is only for pages over TLS or of this machine. */
export const key = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
