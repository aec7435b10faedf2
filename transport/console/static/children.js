// The sessions that work for one: a tree that asks for a level when it is opened, and stays fresh while it is shown.
import { html, useEffect, useState } from "./vendor/preact.js";
import { ago, compact, count, plural, shortId, when } from "./format.js";
import { Failure, Loading, State, stepOf, useChanges, useKeys, useNow, useWindow } from "./parts.js";
import { go, linkTo, linkToList } from "./route.js";
import { STATES, markTold, outdated, stateOf } from "./rows.js";

/** Children that are asked for when a level is opened, and when somebody wants more of them. */
const FIRST = 100;
const PAGE = 1000;
/** Milliseconds between two looks at what is open, for what no watch tells of. */
const EVERY = 60_000;

/**
 * The open levels of the tree below a session, by the session that they are the children of.
 *
 * A level has its `rows` by their ids, in the order in which they were found, so that none moves while somebody reads: the
 * child that changed last comes first, and children that are made later come before it. `more` says that there are others.
 */
class Tree {
  constructor(connection, watch, root) {
    this.connection = connection;
    this.root = root;
    this.levels = new Map();
    this.listeners = new Set();
    this.levels.set(root, newLevel());
    this.timer = setInterval(() => this.look(), EVERY);
    this.end = watch.follow({ began: () => this.began(), take: (changes) => this.take(changes), failed: (error) => this.fail(root, error) });
  }

  close() {
    clearInterval(this.timer);
    this.end();
    this.levels.clear();
    this.listeners.clear();
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  change() {
    for (const listener of [...this.listeners]) listener();
  }

  began() {
    for (const { rows } of this.levels.values()) for (const row of rows.values()) row.told = false;
    this.look();
  }

  look() {
    for (const id of this.levels.keys()) this.read(id);
  }

  /** Open a level, or close it with all that are open below. */
  toggle(id) {
    if (this.levels.has(id)) {
      this.shut(id);
      this.change();
      return;
    }
    this.levels.set(id, newLevel());
    this.read(id);
  }

  shut(id) {
    const level = this.levels.get(id);
    if (!level) return;
    this.levels.delete(id);
    for (const child of level.rows.keys()) this.shut(child);
  }

  widen(id) {
    this.levels.get(id).wanted += PAGE;
    this.read(id);
  }

  /** Read the wanted part of a level, page by page. */
  async read(id) {
    const level = this.levels.get(id);
    const round = (level.round = {});
    const current = () => this.levels.get(id) === level && level.round === round;
    const before = new Set(level.rows.keys());
    let [more, damaged] = [true, 0];
    this.change();
    try {
      for (let offset = 0, limit = FIRST; more && offset < level.wanted; offset += limit, limit = PAGE) {
        const page = await this.connection.read("session/list", { delegated_by: id, include_archived: true, offset, limit });
        if (!current()) return;
        for (const row of page.sessions) {
          before.delete(row.session_id);
          const known = level.rows.get(row.session_id);
          if (!outdated(known, row)) level.rows.set(row.session_id, row);
        }
        damaged += page.damaged?.length ?? 0;
        more = page.sessions.length + (page.damaged?.length ?? 0) === limit;
      }
    } catch (error) {
      if (current()) this.fail(id, error);
      return;
    }
    for (const gone of before) if (!level.rows.get(gone)?.told) this.drop(level, gone);
    Object.assign(level, { more, damaged, round: null, error: null, read: true });
    this.change();
  }

  fail(id, error) {
    if (error.code === "DISCONNECTED") return; // the next connection brings it
    const level = this.levels.get(id);
    if (!level) return;
    Object.assign(level, { error, round: null });
    this.change();
  }

  drop(level, id) {
    level.rows.delete(id);
    this.shut(id);
  }

  take({ sessions = [], gone = [], missed = false }) {
    const made = new Map();
    for (const row of sessions) {
      const level = this.levels.get(row.delegated_by);
      markTold(level?.rows.get(row.session_id), row);
      if (level?.rows.has(row.session_id)) level.rows.set(row.session_id, row);
      else if (level && isNew(level, row)) made.set(level, [row, ...(made.get(level) ?? [])]);
    }
    for (const [level, rows] of made) level.rows = new Map([...rows.map((row) => [row.session_id, row]), ...level.rows]);
    for (const id of gone) for (const level of this.levels.values()) this.drop(level, id);
    if (missed) this.look();
    this.change();
  }

  /** The rows and notes of what is open, from the top: each with its depth below the session. */
  get lines() {
    const found = [];
    const add = (id, depth) => {
      const level = this.levels.get(id);
      for (const row of level.rows.values()) {
        const open = this.levels.get(row.session_id);
        found.push({ key: row.session_id, above: id, depth, row, open: Boolean(open) });
        if (open) add(row.session_id, depth + 1);
      }
      const note = level.error ? "error" : level.round && !level.read ? "loading" : level.more ? "more" : level.rows.size ? null : "none";
      if (note && (id !== this.root || note === "more")) found.push({ key: `${note} ${id}`, above: id, depth, note });
    };
    add(this.root, 0);
    return found;
  }
}

const newLevel = () => ({ rows: new Map(), wanted: FIRST, more: false, damaged: 0, error: null, round: null, read: false });

/** Whether a child that was told of is none of those that are only not asked for yet. */
function isNew(level, row) {
  if (!level.more) return true;
  let newest = "";
  for (const { created_at } of level.rows.values()) if (created_at > newest) newest = created_at;
  return row.created_at > newest;
}

/** The state of a child, with the end of its newest turn, and the words for it. */
export function endOf(row) {
  const state = stateOf(row);
  if (state === "waits") {
    const children = row.turn.waiting_for?.filter(({ reason }) => reason === "child").length;
    return [state, children ? `Waits for ${plural(children, "child", "children")}` : STATES.waits];
  }
  if (state !== "idle" && state !== "stored") return [state, STATES[state]];
  if (!row.last_outcome) return ["stored", "Not begun"];
  if (row.last_outcome === "completed") return ["good", "Completed"];
  return row.last_outcome === "cancelled" ? ["stopped", "Interrupted"] : ["failed", "Failed"];
}

const NOTES = { loading: "Loading its children…", none: "It has no children." };

export function Children({ connection, watch, id }) {
  const [tree, setTree] = useState(null);
  useEffect(() => {
    const own = new Tree(connection, watch, id);
    setTree(own);
    return () => own.close();
  }, [id]);
  return tree?.root === id ? html`<${Shown} tree=${tree} />` : html`<${Loading} what="the children" />`;
}

function Shown({ tree }) {
  useChanges(tree);
  const { rows, more, damaged, error, read } = tree.levels.get(tree.root) ?? newLevel();
  if (error) return html`<${Failure} error=${error} again=${() => tree.look()} />`;
  if (!rows.size && !read) return html`<${Loading} what="the children" />`;
  if (!rows.size && !damaged) return html`<p class="empty">No child: this session has delegated no work.</p>`;
  const counts = new Map();
  for (const row of rows.values()) {
    const [state] = endOf(row);
    counts.set(state, (counts.get(state) ?? 0) + 1);
  }
  const words = [...Object.entries(COUNTED)].filter(([state]) => counts.has(state)).map(([state, name]) => `${count(counts.get(state))} ${name}`);
  return html`<p class="quiet"><span role="status">${more ? `The ${plural(rows.size, "child", "children")} that changed last` : plural(rows.size, "child", "children")}</span>: ${words.join(", ")}${damaged ? `; ${damaged} cannot be read` : ""}. <a href=${linkToList({ delegated_by: tree.root })}>In the list of sessions</a></p>
    ${rows.size > 0 && html`<${Lines} tree=${tree} />`}`;
}

const COUNTED = { waiting: "to approve", waits: "waiting", running: "running", parked: "parked", stored: "not begun", failed: "failed", stopped: "interrupted", good: "completed", archived: "archived" };

/** The open part of the tree as a table, of which the rows in sight are drawn. */
function Lines({ tree }) {
  const now = useNow();
  const [key, setKey] = useState(null);
  const { lines } = tree;
  const at = Math.max(0, lines.findIndex((each) => each.key === key));
  const { box, scrolled, row, first, last } = useWindow(at);
  const go_to = (index) => setKey(lines[Math.max(0, Math.min(lines.length - 1, index))].key);
  const line = lines[at];
  const enter = () => (line.row ? go("session", line.row.session_id) : act(tree, line));
  useKeys({ j: () => go_to(at + 1), k: () => go_to(at - 1), o: enter });
  const keys = (event) => {
    if (event.target !== box.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = stepOf(event.key, lines.length);
    if (step !== undefined) go_to(at + step);
    else if (event.key === "ArrowRight" && line.row) line.open ? go_to(at + 1) : tree.toggle(line.row.session_id);
    else if (event.key === "ArrowLeft" && line.open) tree.toggle(line.row.session_id);
    else if (event.key === "ArrowLeft" && line.depth > 0) setKey(line.above);
    else if (event.key === "Enter") enter();
    else return;
    event.preventDefault();
  };
  return html`<div class="rows tree" ref=${box} role="treegrid" aria-label="Children" aria-activedescendant=${`line-${at}`} aria-rowcount=${lines.length + 1} tabindex="0" onKeyDown=${keys} onScroll=${scrolled}>
    <div class="row header" role="row" aria-rowindex="1">
      <span role="columnheader">Session</span><span role="columnheader">State</span><span role="columnheader" class="figure">Tokens</span><span role="columnheader" class="figure">Changed</span>
    </div>
    <div role="rowgroup" class="space" style=${{ height: `${lines.length * row}px` }}>
      ${lines.slice(first, last).map((each, index) => html`<${Line} key=${each.key} tree=${tree} line=${each} index=${first + index} row=${row} now=${now} current=${first + index === at} />`)}
    </div>
  </div>`;
}

/** What a note is for: more of its level, or another try. */
function act(tree, { note, above }) {
  if (note === "more") tree.widen(above);
  else if (note === "error") tree.read(above);
}

function Line({ tree, line, index, row: height, now, current }) {
  const { row, note, depth, above, open } = line;
  const attributes = { id: `line-${index}`, class: `row ${current ? "current" : ""}`, role: "row", "aria-level": depth + 1, "aria-rowindex": index + 2, style: { transform: `translateY(${index * height}px)` } };
  const indent = { paddingLeft: `${0.6 + depth * 1.5}rem` };
  if (note) {
    return html`<div ...${attributes}><span role="gridcell" class="name note" style=${indent}>
      ${note === "more" ? html`<button onClick=${() => tree.widen(above)}>Show more</button>` : note === "error" ? html`<${Failure} error=${tree.levels.get(above).error} again=${() => tree.read(above)} />` : html`<span class="quiet">${NOTES[note]}</span>`}</span></div>`;
  }
  const id = row.session_id;
  const title = row.title ?? "Untitled";
  const [state, words] = endOf(row);
  return html`<div ...${attributes} aria-expanded=${open}>
    <span role="gridcell" class="name" style=${indent}><button class="quiet fold" aria-expanded=${open} aria-label=${`Children of ${title}`} onClick=${() => tree.toggle(id)}>${open ? "▾" : "▸"}</button>
      <span class="of"><a href=${linkTo("session", id)}>${title}</a><span class="under"><span class="id">${shortId(id)}</span>${row.node && html` <span class="node">at ${row.node}</span>`}</span></span></span>
    <span role="gridcell"><${State} state=${state}>${words}<//></span>
    <span role="gridcell" class="figure">${compact(row.total_tokens)}</span>
    <span role="gridcell" class="figure" title=${when(row.updated_at)}>${ago(row.updated_at, now)}</span>
  </div>`;
}
