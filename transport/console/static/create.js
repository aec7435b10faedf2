// The dialog for a new session.
import { html, useMemo, useState } from "./vendor/preact.js";
import { drafts, key } from "./composer.js";
import { Attach, Chosen, useFiles } from "./files.js";
import { labelsOf } from "./format.js";
import { Dialog, Failure, useLoaded } from "./parts.js";
import { go } from "./route.js";

const LIMITS = { max_tokens: "Tokens", max_seconds: "Seconds", max_tool_calls: "Tool calls", max_steps: "Steps" };

export function Create({ connection, rows, close }) {
  const [values, setValues] = useState({ prompt: "", model: "", system: "", labels: "", title: "", tools: "" });
  const [limits, setLimits] = useState({});
  const [switches, setSwitches] = useState({});
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const { files, add, remove, over, drag, paste } = useFiles(setError);
  const { value: config } = useLoaded(() => connection.read("config/get"), []);
  const { value: capabilities } = useLoaded(() => connection.read("capabilities/get"), []);
  const models = useMemo(() => [...new Set([...rows.rows.values()].map((row) => row.model))].sort(), []);
  const field = (name) => ({ id: `new-${name}`, value: values[name], onInput: (event) => setValues({ ...values, [name]: event.target.value }) });
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    if (files.length && !values.prompt.trim()) {
      setError({ message: "Files go with a prompt: write one." });
      return;
    }
    setBusy(true);
    setError(null);
    try {
      const budget = Object.fromEntries(Object.entries(limits).filter(([, text]) => text.trim()).map(([name, text]) => [name, Number(text)]));
      const tools = values.tools.split(",").map((each) => each.trim()).filter(Boolean);
      const overrides = Object.fromEntries(Object.entries(switches).filter(([, how]) => how));
      const options = {
        ...(values.model.trim() && { model: values.model.trim() }), ...(values.system.trim() && { system_prompt: values.system }),
        ...(values.title.trim() && { title: values.title.trim() }), ...(values.labels.trim() && { labels: labelsOf(values.labels) }),
        ...(tools.length && { tools }), ...(Object.keys(budget).length && { budget }), ...(Object.keys(overrides).length && { overrides }),
      };
      // First the session, so that its screen shows the first turn from the beginning, and says why there is none.
      const { session_id } = await connection.call("session/create", { prompt: null, ...options, idempotency_key: key() }, { again: true });
      if (values.prompt.trim()) drafts.set(session_id, { words: values.prompt, files });
      close();
      go("session", session_id);
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`<${Dialog} title="New session" close=${close}>
    <form class=${over ? "over" : ""} onSubmit=${submit} ...${drag}>
      <label for="new-prompt">First prompt</label><textarea rows="4" autofocus onPaste=${paste} ...${field("prompt")}></textarea>
      <${Chosen} files=${files} remove=${remove} />
      <label for="new-model">Model</label><input list="models" placeholder=${config?.model ?? "the runtime's"} ...${field("model")} />
      <datalist id="models">${models.map((model) => html`<option value=${model}></option>`)}</datalist>
      <label for="new-system">System prompt</label><textarea rows="2" placeholder="the runtime's" ...${field("system")}></textarea>
      <details><summary>More: title, labels, tools, budget</summary>
        <label for="new-title">Title</label><input placeholder="the first words of the prompt" ...${field("title")} />
        <label for="new-labels">Labels</label><input placeholder="name=value, name=value" ...${field("labels")} />
        <label for="new-tools">Tools, by name</label><input placeholder="all that there are" ...${field("tools")} />
        <fieldset><legend>Kinds of tools</legend><div class="grid">${Object.entries(capabilities?.tools ?? {}).filter(([, how]) => how !== "unavailable").map(([kind, how]) => html`<div><label for=${`kind-${kind}`}>${kind}</label>
          <select id=${`kind-${kind}`} value=${switches[kind] ?? ""} onChange=${(event) => setSwitches({ ...switches, [kind]: event.target.value })}><option value="">as usual (${how})</option><option value="enable">on</option><option value="disable">off</option></select></div>`)}</div></fieldset>
        <fieldset><legend>Budget</legend><div class="grid">${Object.entries(LIMITS).map(([name, label]) => html`<div><label for=${`limit-${name}`}>${label}</label><input id=${`limit-${name}`} type="number" min="1" step="any" placeholder="no limit" value=${limits[name] ?? ""} onInput=${(event) => setLimits({ ...limits, [name]: event.target.value })} /></div>`)}</div></fieldset>
      </details>
      ${error && html`<${Failure} error=${error} />`}
      <div class="buttons"><${Attach} add=${add} /><button type="button" onClick=${close}>Cancel</button><button class="primary" type="submit" disabled=${busy}>${busy ? "Creating…" : "Create"}</button></div>
    </form>
  <//>`;
}
