// The screen of the approvals: every tool call and question that waits for a decision, in whichever session.
import { html, useState } from "./vendor/preact.js";
import { ago, duration, plural, shortId, when } from "./format.js";
import { Ask, Failure, Loading, useFresh, useNow, useTitle } from "./parts.js";
import { linkTo } from "./route.js";

const PAGE = 1000;

export function Approvals({ connection }) {
  useTitle("Approvals");
  const now = useNow();
  const [failed, setFailed] = useState(null);
  const [denied, setDenied] = useState(null);
  const { value, error, again } = useFresh(() => connection.read("approvals/list", { limit: PAGE }), []);
  const approvals = value?.approvals ?? [];
  const send = async ({ session_id, call_id }, decision, more = {}) => {
    await connection.call("tool/approve", { session_id, call_id, decision, ...more });
    again();
  };
  const decide = (...told) => send(...told).then(() => setFailed(null), setFailed);
  const may = connection.can("session:write");
  return html`<main class="screen" id="main" tabindex="-1"><div class="head"><h1>Approvals</h1></div>
    ${error && html`<${Failure} error=${error} again=${again} />`}
    ${failed && html`<${Failure} error=${failed} />`}
    ${!value && !error && html`<${Loading} what="the approvals" />`}
    ${value && html`<p class="quiet" role="status">${approvals.length ? `${plural(approvals.length, "call")} ${approvals.length === 1 ? "waits" : "wait"} for a decision.` : "Nothing waits for a decision."}</p>`}
    <ol class="hits">${approvals.map((each) => html`<li class="card" key=${`${each.session_id} ${each.call_id}`}>
      <div class="top-line"><p class="who"><a href=${linkTo("session", each.session_id)}>${each.title ?? `Session ${shortId(each.session_id)}`}</a></p>
        <span class="quiet" title=${when(each.since)}>asked ${ago(each.since, now)}</span></div>
      <p><code>${each.name}</code> ${each.question_of && html`<span class="quiet">asks a question</span>`}</p>
      <pre class="plain" tabindex="0">${JSON.stringify(each.args, null, 2)}</pre>
      <div class="approval" role="group" aria-label=${`Approval of ${each.name}`}>
        ${each.may_have_run && html`<strong>It may have run already: the process ended during it.</strong>`}
        <span>${left(each, now)}</span>
        ${may && html`<button class="primary" onClick=${() => decide(each, "allow")}>Approve</button>
        ${!each.question_of && !each.may_have_run && html`<button onClick=${() => decide(each, "allow", { remember: true })}>Always in this session</button>`}
        <button onClick=${() => decide(each, "deny")}>Deny</button>
        <button class="quiet" onClick=${() => setDenied(each)}>Deny with a reason…</button>`}
      </div></li>`)}</ol>
    ${denied && html`<${Ask} title="Deny" field="The reason, which the model reads" action="Deny" act=${(reason) => send(denied, "deny", { reason })} close=${() => setDenied(null)} />`}
  </main>`;
}

function left({ until }, now) {
  const rest = Date.parse(until) - now;
  return rest > 0 ? `Waits for your decision, for ${duration(Math.ceil(rest / 1000) * 1000)} more.` : "The time for a decision is over.";
}
