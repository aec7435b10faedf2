// The screen of all sessions: a live table of any length, its filters, and what is done to the chosen rows.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { ago, compact, count, duration, labelsOf, labelsText, plural, shortId, when } from "./format.js";
import { Ask, Failure, Loading, State, forEach, stepOf, useChanges, useKeys, useNow, useTitle, useWindow } from "./parts.js";
import { go, linkTo, putQuery } from "./route.js";
import { STATES, fitting, stateOf } from "./rows.js";

export function List({ connection, rows, query, create }) {
  useTitle("Sessions");
  useChanges(rows);
  useChanges(connection);
  const now = useNow();
  const [writes, admin] = [connection.can("session:write"), connection.can("session:admin")];
  const [filter, setFilter] = useState(() => filterOf(query));
  const [chosen, setChosen] = useState(new Set());
  const [asked, setAsked] = useState(null);
  const [report, setReport] = useState(null);
  const [at, setAt] = useState(0);
  useEffect(() => {
    setFilter(filterOf(query));
    setAt(0);
  }, [query]);
  const search = useRef();
  const found = useMemo(() => fitting(rows.rows, filter), [rows.version, filter]);
  const models = useMemo(() => [...new Set([...rows.rows.values()].map((row) => row.model))].sort(), [rows.version]);
  const nodes = useMemo(() => [...new Set([filter.node, ...[...rows.rows.values()].map((row) => row.node)])].filter(Boolean).sort(), [rows.version, filter.node]);
  const counts = useMemo(() => countStates(rows.rows), [rows.version]);
  const selected = [...chosen].filter((id) => rows.rows.has(id));
  const change = (values) => {
    const next = { ...filter, ...values };
    setFilter(next);
    setAt(0);
    putQuery(next);
  };
  const choose = (ids, on) => {
    const next = new Set(chosen);
    for (const id of ids) on ? next.add(id) : next.delete(id);
    setChosen(next);
  };
  const bulk = async (ids, method, params, said) => {
    setReport({ text: `Working on ${plural(ids.length, "session")}…` });
    const { done, errors } = await forEach(ids, (session_id) => connection.call(method, { session_id, ...params }, { limit: 60_000 }));
    if (method === "session/delete") ids.filter((id) => !errors.some(({ item }) => item === id)).forEach((id) => rows.remove(id));
    const failed = errors.length ? ` ${plural(errors.length, "session")} not: ${[...new Set(errors.map(({ error }) => error.message))].slice(0, 3).join("; ")}.` : "";
    setReport({ text: `${plural(done, "session")} ${said}.${failed}`, bad: errors.length > 0 });
  };
  const running = selected.filter((id) => rows.rows.get(id).is_active);
  const ask = {
    interrupt: () => bulk(running, "turn/interrupt", {}, "interrupted"),
    archive: () => setAsked({ title: "Archive", text: `${plural(selected.length, "session")} will be hidden from lists and take no more turns. Running turns end first.`, action: "Archive", act: () => { bulk(selected, "session/archive", {}, "archived"); } }),
    label: () => setAsked({ title: "Label", text: `${plural(selected.length, "session")} will get these labels.`, field: "Labels, as name=value, with commas between them", action: "Label", act: async (text) => { const labels = labelsOf(text); bulk(selected, "session/label", { labels }, "labelled"); } }),
    delete: () => setAsked({ title: `Delete ${plural(selected.length, "session")}`, text: "Their messages, events and remembered texts are deleted. This cannot be undone.", word: `delete ${selected.length}`, action: "Delete", danger: true, act: () => { bulk(selected, "session/delete", {}, "deleted"); setChosen(new Set()); } }),
  };
  const move = (by) => setAt(Math.max(0, Math.min(found.length - 1, at + by)));
  useKeys({
    "/": () => search.current.focus(),
    n: () => create?.(),
    j: () => move(1),
    k: () => move(-1),
    x: () => found[at] && (writes || admin) && choose([found[at].session_id], !chosen.has(found[at].session_id)),
    o: () => found[at] && go("session", found[at].session_id),
  });
  const all = found.length > 0 && found.every((row) => chosen.has(row.session_id));
  return html`<main class="screen list" id="main" tabindex="-1">
    <div class="head">
      <h1>Sessions</h1>
      <p class="quiet" role="status" data-testid="count">${rows.whole ? `${count(found.length)} of ${count(rows.rows.size)}` : `${count(rows.rows.size)} so far…`}</p>
      ${create && html`<button class="primary" onClick=${create}>New session</button>`}
    </div>
    <div class=${`filters ${nodes.length > 0 || connection.can("tenant:admin") ? "many" : ""}`} role="search">
      <div class="tabs" role="group" aria-label="State">
        ${[["", "Current"], ...Object.entries(STATES)].map(([state, name]) => html`<button aria-pressed=${filter.state === state} onClick=${() => change({ state })}>${name} <span class="number">${compact(counts[state] ?? 0)}</span></button>`)}
      </div>
      <input ref=${search} type="search" placeholder="Title, id, label…  ( / )" aria-label="Text" value=${filter.text} onInput=${(event) => change({ text: event.target.value })} />
      <input class="short" placeholder="Label, name=value" aria-label="Label" value=${filter.label} onInput=${(event) => change({ label: event.target.value })} />
      <select aria-label="Model" value=${filter.model} onChange=${(event) => change({ model: event.target.value })}>
        <option value="">Every model</option>${models.map((model) => html`<option value=${model}>${modelName(model)}</option>`)}
      </select>
      ${nodes.length > 0 && html`<select aria-label="Node" value=${filter.node} onChange=${(event) => change({ node: event.target.value })}>
        <option value="">Every node</option>${nodes.map((node) => html`<option value=${node}>${node}</option>`)}
      </select>`}
      ${connection.can("tenant:admin") && html`<${Tenant} connection=${connection} />`}
    </div>
    ${filter.delegated_by && html`<div class="notice" role="status"><span>Only the children of <a href=${linkTo("session", filter.delegated_by, "children")}>${rows.rows.get(filter.delegated_by)?.title ?? shortId(filter.delegated_by)}</a></span><button onClick=${() => change({ delegated_by: "" })}>All sessions</button></div>`}
    ${rows.error && html`<${Failure} error=${rows.error} again=${() => rows.look()} />`}
    ${rows.damaged > 0 && html`<p class="notice warn">Some sessions are damaged and not shown: run <code>warren doctor</code>.</p>`}
    ${report && html`<div class=${`notice ${report.bad ? "bad" : ""}`} role="status"><span>${report.text}</span><button class="quiet" onClick=${() => setReport(null)}>Dismiss</button></div>`}
    ${selected.length > 0 && html`<div class="bulk" role="group" aria-label="Chosen sessions">
      <b>${count(selected.length)} chosen</b>
      ${writes && html`<button disabled=${!running.length} onClick=${ask.interrupt}>Interrupt${running.length ? ` ${running.length}` : ""}</button>
      <button onClick=${ask.label}>Label…</button>`}
      ${admin && html`<button onClick=${ask.archive}>Archive…</button>
      <button class="danger" onClick=${ask.delete}>Delete…</button>`}
      <button class="quiet" onClick=${() => setChosen(new Set())}>Clear</button>
    </div>`}
    ${!rows.whole && !found.length && !rows.error && html`<${Loading} what="sessions" />`}
    ${rows.whole && !found.length && html`<div class="empty"><p>${rows.rows.size ? "No session fits the filter." : "No session yet."}</p>
      ${rows.rows.size ? html`<button onClick=${() => change({ state: "", model: "", node: "", label: "", text: "", delegated_by: "" })}>Clear the filter</button>` : create && html`<button class="primary" onClick=${create}>Begin the first one</button>`}</div>`}
    ${found.length > 0 && html`<${Table} found=${found} now=${now} chosen=${chosen} choose=${choose} all=${all} may=${writes || admin} at=${at} setAt=${setAt} />`}
    ${asked && html`<${Ask} ...${asked} close=${() => setAsked(null)} />`}
  </main>`;
}

const filterOf = (query) => Object.fromEntries(["state", "model", "node", "label", "text", "delegated_by"].map((name) => [name, query.get(name) ?? ""]));

const TENANT = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

/** The tenant to work in, for whoever may work in those of others: the known ones are those of the ledger. */
function Tenant({ connection }) {
  const [known, setKnown] = useState([]);
  const [asked, setAsked] = useState(false);
  const { tenant } = connection;
  const caller = connection.greeting?.caller;
  const own = tenant ? caller?.name.split("/")[0] : caller?.tenant; // there it is called by both names
  const look = () => connection.read("usage/get", { by: "tenant", all_tenants: true, limit: 1000 }).then(({ rows }) => setKnown(rows.map((row) => row.key)), () => {});
  const names = [...new Set([tenant, ...known])].filter((name) => name && name !== own).sort();
  const choose = (event) => {
    if (event.target.value === "?") {
      event.target.value = tenant;
      setAsked(true);
    } else connection.workIn(event.target.value);
  };
  return html`<select class="tenant" aria-label="Tenant" value=${tenant} onFocus=${look} onChange=${choose}>
      <option value="">Own tenant${own && `: ${own}`}</option>${names.map((name) => html`<option value=${name}>Tenant ${name}</option>`)}<option value="?">Another tenant…</option>
    </select>
    ${asked && html`<${Ask} title="Work in another tenant" text="This page then shows the sessions of that tenant alone. The audit of the tenant notes it." field="Tenant" action="Go there" close=${() => setAsked(false)} act=${async (text) => {
      const name = text.trim();
      if (!TENANT.test(name)) throw new Error("a tenant has 1 to 64 letters, digits, _, . or -, the first a letter or digit");
      connection.workIn(name);
    }} />`}`;
}

/** The rows that are in sight, in a box as high as all of them. */
function Table({ found, now, chosen, choose, all, may, at, setAt }) {
  const { box, scrolled, row, first, last } = useWindow(at);
  const shown = found.slice(first, last);
  const keys = (event) => {
    const step = stepOf(event.key, found.length);
    if (step !== undefined && event.target === box.current) {
      event.preventDefault();
      setAt(Math.max(0, Math.min(found.length - 1, at + step)));
    } else if (event.target === box.current && event.key === "Enter" && found[at]) go("session", found[at].session_id);
    else if (event.target === box.current && event.key === " " && may && found[at]) {
      event.preventDefault();
      choose([found[at].session_id], !chosen.has(found[at].session_id));
    }
  };
  return html`<div class="rows" ref=${box} role="grid" aria-multiselectable="true" aria-activedescendant=${found[at] && `row-${at}`} aria-label="Sessions" aria-rowcount=${found.length + 1} tabindex="0" onKeyDown=${keys} onScroll=${scrolled}>
    <div class="row header" role="row" aria-rowindex="1">
      <span role="columnheader">${may && html`<input type="checkbox" aria-label="Choose all that fit" checked=${all} onChange=${(event) => choose(found.map((each) => each.session_id), event.target.checked)} />`}</span>
      <span role="columnheader">Session</span><span role="columnheader">State</span><span role="columnheader">Model</span>
      <span role="columnheader" class="figure">Messages</span><span role="columnheader" class="figure">Tokens</span><span role="columnheader" class="figure">Changed</span>
    </div>
    <div role="rowgroup" class="space" style=${{ height: `${found.length * row}px` }}>
      ${shown.map((each, index) => html`<${Row} key=${each.session_id} each=${each} index=${first + index} row=${row} now=${now} chosen=${chosen.has(each.session_id)} choose=${may ? choose : null} current=${first + index === at} />`)}
    </div>
  </div>`;
}

function Row({ each, index, row, now, chosen, choose, current }) {
  const id = each.session_id;
  const state = stateOf(each);
  return html`<div id=${`row-${index}`} class=${`row ${current ? "current" : ""} ${chosen ? "chosen" : ""}`} role="row" aria-rowindex=${index + 2} aria-selected=${chosen} style=${{ transform: `translateY(${index * row}px)` }}>
    <span role="gridcell">${choose && html`<input type="checkbox" aria-label=${`Choose ${each.title ?? id}`} checked=${chosen} onChange=${(event) => choose([id], event.target.checked)} />`}</span>
    <span role="gridcell" class="name"><a href=${linkTo("session", id)}>${each.title ?? html`<span class="quiet">${each.is_active ? "First turn" : "Untitled"}</span>`}</a>
      <span class="under"><span class="id">${shortId(id)}</span>${Object.keys(each.labels).length > 0 && html` <span class="labels">${labelsText(each.labels)}</span>`}${each.node && html` <span class="node">at ${each.node}</span>`}</span></span>
    <span role="gridcell"><${State} state=${state}>${STATES[state]}${state === "running" && now - each.since > 1500 ? ` ${duration(Math.floor((now - each.since) / 1000) * 1000)}` : ""}<//></span>
    <span role="gridcell" class="model" title=${each.model}>${modelName(each.model)}</span>
    <span role="gridcell" class="figure">${count(each.message_count)}</span>
    <span role="gridcell" class="figure">${compact(each.total_tokens)}</span>
    <span role="gridcell" class="figure" title=${when(each.updated_at)}>${ago(each.updated_at, now)}</span>
  </div>`;
}

/** A model without the folder of its file. */
export const modelName = (model) => model.replace(/^(scripted:).*\//, "$1");

function countStates(rows) {
  const counts = { "": 0 };
  for (const row of rows.values()) {
    const state = stateOf(row);
    counts[state] = (counts[state] ?? 0) + 1;
    if (state !== "archived") counts[""] += 1;
  }
  return counts;
}
