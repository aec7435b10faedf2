// The list of sessions as this page has it: kept fresh while somebody looks at it.

const PAGE = 1000;
const FRONT = 100;
const EVERY = 1000;

/** The state that a person sees, of a row of `session/list`. */
export function stateOf(row) {
  if (row.lifecycle === "archived") return "archived";
  if (row.pending_approvals) return "waiting";
  if (row.is_active) return "running";
  return row.lifecycle === "live" ? "idle" : "stored";
}

export const STATES = { waiting: "Waits for approval", running: "Running", idle: "Idle", stored: "Stored", archived: "Archived" };

/**
 * The rows by their ids. While it is started it looks at the newest ones each second, and at one more page of the
 * others: a list of some ten thousand is whole after as many seconds as it has pages.
 */
export class Rows {
  constructor(connection) {
    this.connection = connection;
    this.rows = new Map();
    this.whole = false;
    this.error = null;
    this.damaged = 0;
    this.version = 0;
    this.listeners = new Set();
    this.users = 0;
  }

  listen(listener) {
    this.listeners.add(listener);
    if (this.users++ === 0) this.start();
    return () => {
      this.listeners.delete(listener);
      if (--this.users === 0) clearTimeout(this.timer);
    };
  }

  start() {
    this.offset = 0;
    this.seen = new Set();
    this.look();
  }

  /** Look at once: something was done here. */
  soon() {
    if (!this.users) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), 50);
  }

  async look() {
    clearTimeout(this.timer);
    if (this.looking) return;
    this.looking = true;
    let changed = this.error !== null;
    try {
      if (this.offset > 0 && this.whole) changed = this.put(await this.page(0, FRONT)) || changed;
      const page = await this.page(this.offset, PAGE);
      changed = this.put(page) || changed;
      for (const row of page.sessions) this.seen.add(row.session_id);
      this.offset += PAGE;
      if (page.sessions.length + (page.damaged?.length ?? 0) < PAGE) changed = this.finish() || changed;
      this.error = null;
    } catch (error) {
      this.error = error;
      changed = true;
    }
    this.looking = false;
    if (changed) this.change();
    if (!this.users) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), this.whole ? EVERY : this.error ? 3 * EVERY : 0);
  }

  /** End a look at all pages: rows that were on none of them are gone. */
  finish() {
    let changed = !this.whole;
    for (const id of this.rows.keys()) {
      if (!this.seen.has(id)) changed = this.rows.delete(id) || changed;
    }
    this.whole = true;
    this.offset = 0;
    this.seen = new Set();
    return changed;
  }

  page(offset, limit) {
    return this.connection.read("session/list", { offset, limit, include_archived: true });
  }

  put({ sessions, damaged = [] }) {
    let changed = damaged.length > this.damaged;
    this.damaged = Math.max(this.damaged, damaged.length);
    for (const row of sessions) {
      const before = this.rows.get(row.session_id);
      this.seen.add(row.session_id);
      if (before && same(before, row)) continue;
      if (row.is_active) row.since = before?.since ?? Date.now();
      this.rows.set(row.session_id, row);
      changed = true;
    }
    return changed;
  }

  remove(session_id) {
    if (this.rows.delete(session_id)) this.change();
  }

  change() {
    this.version += 1;
    for (const listener of [...this.listeners]) listener();
  }
}

const FIELDS = ["updated_at", "is_active", "pending_approvals", "lifecycle", "message_count", "total_tokens", "title", "model"];
const same = (one, other) => FIELDS.every((name) => one[name] === other[name]) && JSON.stringify(one.labels) === JSON.stringify(other.labels);

/** Return the rows that fit a filter, the newest first. */
export function fitting(rows, { state, model, label, text }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const [name, value] = label.includes("=") ? [label.slice(0, label.indexOf("=")).trim(), label.slice(label.indexOf("=") + 1).trim()] : [label.trim(), null];
  const fits = (row) => {
    if (state ? stateOf(row) !== state : row.lifecycle === "archived") return false;
    if (model && row.model !== model) return false;
    if (name && !(name in row.labels && (value === null || row.labels[name] === value))) return false;
    if (!words.length) return true;
    const all = `${row.title ?? ""} ${row.session_id} ${row.model} ${Object.entries(row.labels).flat().join(" ")}`.toLowerCase();
    return words.every((word) => all.includes(word));
  };
  const found = [...rows.values()].filter(fits);
  return found.sort((one, other) => (one.updated_at < other.updated_at ? 1 : one.updated_at > other.updated_at ? -1 : one.session_id < other.session_id ? 1 : -1));
}
