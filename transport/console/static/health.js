// The screen of the store, the nodes and the settings.
import { html, useState } from "./vendor/preact.js";
import { ago, bytes, count, duration, plural, when } from "./format.js";
import { Ask, Failure, Loading, State, sentence, useChanges, useFresh, useLoaded, useNow, useTitle } from "./parts.js";
import { linkTo } from "./route.js";

/** Seconds after which the gateway ends an examination, and milliseconds for which this page waits for it. */
const LONGEST = 300;
const CHECK_LIMIT = (LONGEST + 15) * 1000;
const NAMED = 5;

export function Health({ connection }) {
  useTitle("Store and nodes");
  useChanges(connection);
  const sees = connection.can("metrics:read");
  const config = useLoaded(() => connection.read("config/get"), []);
  const capabilities = useLoaded(() => connection.read("capabilities/get"), []);
  const health = useFresh(sees && (() => connection.read("health")), [sees]);
  const { value, error, again } = health;
  return html`<main class="screen" id="main" tabindex="-1"><div class="head"><h1>Store and nodes</h1>${value && html`<${State} state=${TONE[value.status]}>${value.status}<//>`}</div>
    ${connection.greeting && !sees && html`<p class="notice">This token may not see the health, the nodes and the store: that needs the scope metrics:read.</p>`}
    ${error && html`<${Failure} error=${error} again=${again} />`}
    ${sees && !value && !error && html`<${Loading} what="the health" />`}
    ${value && html`<div class="cards">
      <${Card} title="Runtime" facts=${[["Turns that run", `${count(value.running_turns)} of ${count(value.max_sessions)}`], ["Turns parked", count(value.parked_turns ?? 0)], ["Turns that wait", count(value.waiting_turns ?? 0)], ["Sessions in memory", count(value.live_sessions)], ["Processes", count(value.processes ?? 1)]]}>
        <meter min="0" max=${value.max_sessions} value=${value.running_turns} aria-label="Turns that run"></meter><//>
      <${Card} title="Event loop" status=${value.loop?.status ?? "ok"} facts=${[["Timers late, p99", ms(value.loop?.lag_p99_ms)]]} />
      ${value.store ? html`<${Card} title="Store" status=${value.store.status} error=${value.store.last_error} facts=${[["Kind", KINDS[value.store.kind] ?? "of the program"], ["Commit, median", ms(value.store.commit_p50_ms)], ["Commit, p99", ms(value.store.commit_p99_ms)]]} />` : html`<${Card} title="Store" facts=${[["Kind", "none: sessions end with the process"]]} />`}
      ${value.memory && html`<${Card} title="Memory" status=${value.memory.status} error=${value.memory.last_error} facts=${[["Entries not in the index yet", count(value.memory.behind ?? 0)]]} />`}
      ${value.projector && html`<${Card} title="Projections" status=${value.projector.status} error=${value.projector.last_error} facts=${[["Behind", value.projector.behind === null ? "another process writes" : count(value.projector.behind ?? 0)]]} />`}
      ${value.access && html`<${Card} title="Tokens" status=${value.access.status} error=${value.access.last_error} facts=${[["The newest list", value.access.status === "ok" ? "in use" : "cannot be used"]]} />`}
      ${value.files && html`<${Card} title="Open files" status=${value.files.status} error=${value.files.last_error} facts=${[["For clients", "too few"]]} />`}
      ${(value.mcp ?? []).map((each) => html`<${Card} key=${each.name} title=${`MCP: ${each.name}`} status=${each.status} error=${each.last_error} facts=${[["State", each.state], ["Restarts", count(each.restarts ?? 0)]]} />`)}
      ${(value.tools ?? []).map((each) => html`<${Card} key=${each.what} title="Tools that are left out" status=${each.status} error=${each.why} facts=${[["Tools", each.what]]} />`)}
    </div>`}
    ${sees && html`<${Nodes} connection=${connection} />`}
    ${sees && capabilities.value?.session_store && html`<${Check} connection=${connection} />`}
    ${capabilities.value && html`<div class="cards">
      <${Card} title="Capabilities" facts=${[["Store", onOff(capabilities.value.session_store)], ["Compaction", onOff(capabilities.value.session_compaction)], ["Memory", onOff(capabilities.value.memory_store)]]} />
      <${Card} title="Kinds of tools" facts=${Object.entries(capabilities.value.tools ?? {})} /></div>`}
    ${config.error && html`<${Failure} error=${config.error} again=${config.again} />`}
    ${config.value && html`<details class="card"><summary>Settings</summary><pre class="plain" tabindex="0">${JSON.stringify(config.value, null, 2)}</pre></details>`}
  </main>`;
}

const STATE_OF = { serving: "good", full: "waiting", draining: "waiting", alive: "idle" };
/** A node with the fields that the gateway leaves out, as they are what they mostly are. */
const whole = (node) => ({ ...node, draining: node.draining ?? false, load: { live_sessions: 0, running_turns: 0, max_sessions: 0, ...node.load } });
const stateOf = (node) => (node.address === null ? "alive" : node.draining ? "draining" : node.load.max_sessions && node.load.running_turns >= node.load.max_sessions ? "full" : "serving");

/** The processes that have the store open. */
function Nodes({ connection }) {
  const now = useNow();
  const [asked, setAsked] = useState(null);
  const [told, setTold] = useState(null);
  const { value, error, again } = useFresh(() => connection.read("nodes/list"), []);
  const nodes = (value?.nodes ?? []).map(whole);
  const may = connection.can("tenant:admin");
  const served = nodes.filter((each) => each.address !== null);
  const ask = (node) => setAsked({ title: `Drain ${node.name}`, text: drainText(node, served.length > 1),
    word: node.name, action: "Drain", danger: true, act: async () => {
      await connection.call("nodes/drain", { name: node.name });
      setTold(`${node.name} is asked to drain: it ends when its turns have ended.`);
      again();
    } });
  return html`<section class="card wide" aria-labelledby="nodes"><h2 id="nodes">Nodes</h2>
    ${error && html`<${Failure} error=${error} again=${again} />`}
    ${!value && !error && html`<${Loading} what="the nodes" />`}
    ${told && html`<div class="notice" role="status"><span>${told}</span><button class="quiet" onClick=${() => setTold(null)}>Dismiss</button></div>`}
    ${nodes.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of the nodes"><table>
      <thead><tr><th>Node</th><th>State</th><th class="figure">Turns</th><th class="figure">Sessions</th><th class="more">Since</th><th class="more">Release</th><th class="more">Address</th>${may && html`<th><span class="hidden">Action</span></th>`}</tr></thead>
      <tbody>${nodes.map((node) => html`<tr key=${node.key} data-node=${node.name}>
        <th scope="row">${node.name}</th>
        <td><${State} state=${STATE_OF[stateOf(node)]}>${stateOf(node)}<//></td>
        <td class="figure" data-label="Turns">${node.load.max_sessions ? `${count(node.load.running_turns)} of ${count(node.load.max_sessions)}` : "–"}</td>
        <td class="figure" data-label="Sessions">${node.load.max_sessions ? html`<a href=${`${linkTo()}?node=${encodeURIComponent(node.name)}`}>${count(node.load.live_sessions)}</a>` : "–"}</td>
        <td class="more" title=${when(node.started_at)}>${ago(node.started_at, now)}</td><td class="more">${node.release || "–"}</td><td class="more id">${node.address ?? "–"}</td>
        ${may && html`<td class="act">${node.address !== null && !node.draining && html`<button class="danger" onClick=${() => ask(node)} aria-label=${`Drain ${node.name}…`}>Drain…</button>`}</td>`}
      </tr>`)}</tbody></table></div>`}
    ${value && !served.length && html`<p class="quiet">${nodes.length ? "No process of these is a node: each serves its own sessions alone." : "This server is no node: it serves its sessions alone."}</p>`}
    ${served.length > 0 && !may && html`<p class="quiet">To drain a node here a token needs the scope tenant:admin. At the store itself <code>warren nodes drain NAME</code> does it.</p>`}
    ${asked && html`<${Ask} ...${asked} close=${() => setAsked(null)} />`}
  </section>`;
}

function drainText({ load }, others) {
  const turns = load.running_turns ? ` Its ${plural(load.running_turns, "running turn")} may end.` : "";
  const sessions = load.live_sessions ? ` Its ${plural(load.live_sessions, "session")} ${others ? "can go on at the other nodes" : "wait in the store: no other node is there"}.` : "";
  return `It takes no new sessions.${turns}${sessions} Then its process ends.`;
}

/** What the doctor says of the store: asked for with a button, as it reads all of it. */
function Check({ connection }) {
  const [began, setBegan] = useState(null);
  const [found, setFound] = useState({});
  const check = async () => {
    setBegan(Date.now());
    setFound({});
    try {
      setFound({ value: await connection.call("store/check", {}, { limit: CHECK_LIMIT }), at: Date.now() });
    } catch (error) {
      setFound({ error });
    }
    setBegan(null);
  };
  const { value, error, at } = found;
  const findings = (value?.findings ?? []).map((each) => ({ level: "problem", sessions: [], ...each }));
  const problems = findings.filter((each) => each.level === "problem");
  return html`<section class="card wide" aria-labelledby="check" aria-busy=${began !== null}><div class="head"><h2 id="check">Examination of the store</h2>
      ${value && html`<${State} state=${value.healthy ? "good" : "failed"}>${value.healthy ? "healthy" : plural(problems.length, "problem")}<//>`}
      <button disabled=${began !== null} onClick=${check}>${value ? "Examine again" : "Examine the store"}</button></div>
    ${began !== null && html`<${Elapsed} began=${began} />`}
    ${error && html`<p class="notice bad" role="alert">${sentence(error)}</p>`}
    ${!value && !error && began === null && html`<p class="quiet">Reads the whole store, as <code>warren doctor</code> does, and changes nothing. Turns go on meanwhile.</p>`}
    ${value && html`<p class="quiet" role="status">Examined at ${when(at)}, in ${duration(value.seconds * 1000)}.</p><${Findings} findings=${findings} />
      <div class="cards">${cardsOf(value).map(([title, facts]) => html`<${Card} key=${title} title=${title} facts=${facts.filter((fact) => fact[1] !== null)} />`)}</div>
      <${Holders} holders=${value.holders ?? []} />`}
  </section>`;
}

function Elapsed({ began }) {
  const now = useNow(500);
  const seconds = Math.max(0, Math.floor((now - began) / 1000));
  return html`<p role="status">Examining… <span class="figure">${seconds} s</span> so far. It ends after ${LONGEST / 60} minutes at most.</p>
    <progress max=${LONGEST} value=${seconds} aria-label="Time of the examination, of the most that it may take"></progress>`;
}

function Findings({ findings }) {
  if (!findings.length) return html`<p>Nothing was found that is not as it should be.</p>`;
  return html`<ul class="findings">${findings.map((each) => html`<li class=${each.level}>
    <${State} state=${each.level === "problem" ? "failed" : "waiting"}>${each.level}<//>
    <span>${each.message}${each.fixable ? html`. <code>warren doctor --fix</code> mends it` : ""}${each.sessions.slice(0, NAMED).map((id) => html` <a class="id" href=${linkTo("session", id)}>${id}</a>`)}${each.sessions.length > NAMED ? ` and ${count(each.sessions.length - NAMED)} more` : ""}</span></li>`)}</ul>`;
}

function cardsOf({ file, database, memory, projection }) {
  const store = { sessions: 0, archived: 0, deleted: 0, messages: 0, events: 0, files: 0, file_bytes: 0, ...(file ?? database) };
  return [
    file ? ["File", [["Size", bytes(file.bytes)], ["Free in it", bytes(file.free_pages * file.page_size)], ["Log beside it", bytes(file.log_bytes)], ["Left on the disk", bytes(file.disk_free)], ["Version of the tables", file.version]]]
      : ["Database", [["Size", bytes(database.bytes)], ["PostgreSQL", database.server], ["synchronous_commit", database.synchronous_commit], ["Standbys", count(database.standbys)], ["pgvector", database.pgvector ?? "none"], ["Dead rows", count(database.dead_rows)], ["Version of the tables", database.version]]],
    ["Contents", [["Sessions", count(store.sessions)], ["Archived", count(store.archived)], ["Deleted", count(store.deleted)], ["Messages", count(store.messages)], ["Rows of events", count(store.events)], ["Files of messages", `${count(store.files)}, ${bytes(store.file_bytes)}`]]],
    memory && ["Memory", [["Texts", count(memory.entries)], ["Size", bytes(memory.bytes)], ["Index", memory.index === "none" ? "none, as it needs none" : memory.index], ["Size of the index", memory.index_bytes ? bytes(memory.index_bytes) : null]]],
    projection && ["Projections", [["Changed since its checkpoint", count(projection.behind)]]],
  ].filter(Boolean);
}

/** The leases: which process has how many sessions, and which have lapsed. */
function Holders({ holders }) {
  if (!holders.length) return null;
  return html`<h3>Leases</h3><div class="scroll" tabindex="0" role="region" aria-label="Table of the leases"><table>
    <thead><tr><th>Process</th><th>State</th><th class="figure">Sessions</th><th>Lease until</th></tr></thead>
    <tbody>${holders.map((each) => html`<tr><th scope="row">${each.name ?? "a process of which nothing is left"}</th>
      <td><${State} state=${each.alive ? "good" : "failed"}>${each.alive ? "alive" : "lapsed"}<//></td>
      <td class="figure" data-label="Sessions">${count(each.sessions)}</td><td data-label="Lease until">${each.expires_at ? when(each.expires_at) : "–"}</td></tr>`)}</tbody></table></div>`;
}

const KINDS = { file: "files (SQLite)", database: "PostgreSQL" };
const TONE = { ok: "good", degraded: "waiting", failed: "failed" };
const ms = (value) => (value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(2) : Math.round(value)} ms`);
const onOff = (on) => (on ? "on" : "off");

function Card({ title, status, facts, error, children }) {
  return html`<section class="card"><h2>${title} ${status && html`<${State} state=${TONE[status]}>${status}<//>`}</h2>${children}
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${error && html`<p class="notice bad">${error}</p>`}</section>`;
}
