// The screen of the store, the nodes and the settings.
import { html, useEffect } from "./vendor/preact.js";
import { count } from "./format.js";
import { Failure, Loading, State, useLoaded, useTitle } from "./parts.js";

export function Health({ connection }) {
  useTitle("Store and nodes");
  const health = useLoaded(() => connection.read("health"), []);
  const config = useLoaded(() => connection.read("config/get"), []);
  const capabilities = useLoaded(() => connection.read("capabilities/get"), []);
  useEffect(() => {
    const timer = setTimeout(health.again, 2000);
    return () => clearTimeout(timer);
  });
  const { value, error, again } = health;
  return html`<main class="screen" id="main" tabindex="-1"><div class="head"><h1>Store and nodes</h1>${value && html`<${State} state=${TONE[value.status]}>${value.status}<//>`}</div>
    ${error && html`<${Failure} error=${error} again=${again} />`}
    ${!value && !error && html`<${Loading} what="the health" />`}
    ${value && html`<div class="cards">
      <${Card} title="Runtime" facts=${[["Turns that run", `${count(value.running_turns)} of ${count(value.max_sessions)}`], ["Sessions in memory", count(value.live_sessions)], ["Processes", count(value.processes ?? 1)]]}>
        <meter min="0" max=${value.max_sessions} value=${value.running_turns} aria-label="Turns that run"></meter><//>
      <${Card} title="Event loop" status=${value.loop?.status ?? "ok"} facts=${[["Timers late, p99", ms(value.loop?.lag_p99_ms)]]} />
      ${value.store ? html`<${Card} title="Store" status=${value.store.status} error=${value.store.last_error} facts=${[["Commit, median", ms(value.store.commit_p50_ms)], ["Commit, p99", ms(value.store.commit_p99_ms)]]} />` : html`<${Card} title="Store" facts=${[["", "none: sessions are in memory alone"]]} />`}
      ${value.memory && html`<${Card} title="Memory" status=${value.memory.status} error=${value.memory.last_error} facts=${[["Entries not in the index yet", count(value.memory.behind ?? 0)]]} />`}
      ${value.projector && html`<${Card} title="Projections" status=${value.projector.status} error=${value.projector.last_error} facts=${[["Behind", value.projector.behind === null ? "another process writes" : count(value.projector.behind ?? 0)]]} />`}
      ${(value.mcp ?? []).map((each) => html`<${Card} key=${each.name} title=${`MCP: ${each.name}`} status=${each.status} error=${each.last_error} facts=${[["State", each.state], ["Restarts", count(each.restarts ?? 0)]]} />`)}
      ${capabilities.value && html`<${Card} title="Capabilities" facts=${[["Store", onOff(capabilities.value.session_store)], ["Compaction", onOff(capabilities.value.session_compaction)], ["Memory", onOff(capabilities.value.memory_store)], ...Object.entries(capabilities.value.tools ?? {}).map(([kind, how]) => [`Tools: ${kind}`, how])]} />`}
    </div>`}
    ${config.error && html`<${Failure} error=${config.error} again=${config.again} />`}
    ${config.value && html`<details class="card"><summary>Settings</summary><pre class="plain" tabindex="0">${JSON.stringify(config.value, null, 2)}</pre></details>`}
  </main>`;
}

const TONE = { ok: "good", degraded: "waiting", failed: "failed" };
const ms = (value) => (value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(2) : Math.round(value)} ms`);
const onOff = (on) => (on ? "on" : "off");

function Card({ title, status, facts, error, children }) {
  return html`<section class="card"><h2>${title} ${status && html`<${State} state=${TONE[status]}>${status}<//>`}</h2>${children}
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${error && html`<p class="notice bad">${error}</p>`}</section>`;
}
