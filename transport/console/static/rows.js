// The list of sessions as this page has it: kept fresh while somebody looks at it.

const PAGE = 1000;
/** Rows of the first page, which is drawn at once: no screen shows more. */
const FIRST = 100;
/** Milliseconds between two looks at the whole list, for what no watch tells of: commands beside the gateway. */
const EVERY = 60_000;
const AFTER_ERROR = 3_000;

/** The state that a person sees, of a row of `session/list`. */
export function stateOf(row) {
  if (row.lifecycle === "archived") return "archived";
  if (row.pending_approvals || row.turn?.state === "waiting") return "waiting";
  if (row.is_active || row.turn?.state === "running") return "running";
  if (row.turn?.state === "parked") return "parked";
  return row.lifecycle === "live" || row.node ? "idle" : "stored";
}

export const STATES = { waiting: "To approve", running: "Running", parked: "Parked", idle: "Idle", stored: "Stored", archived: "Archived" };

/**
 * The rows by their ids. While somebody looks at them the gateway tells which ones change; the whole list is read once,
 * after each lost connection, if changes were missed, and seldom besides.
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
    this.opened = 0;
    this.tenant = connection.tenant;
    connection.on("session/changed", (changes) => this.take(changes));
    connection.listen(() => this.watch());
  }

  listen(listener) {
    this.listeners.add(listener);
    this.watch();
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size) return;
      this.opened = 0;
      clearTimeout(this.timer);
      this.connection.call("session/unwatch").catch(() => {});
    };
  }

  /** Watch on this connection, if somebody looks and it is not done yet; then read the list: nothing falls between. */
  watch() {
    const { state, opened, tenant } = this.connection;
    if (this.tenant !== tenant) {
      this.rows.clear();
      Object.assign(this, { tenant, whole: false, opened: 0 });
    }
    if (state !== "open" || !this.listeners.size || this.opened === opened) return;
    this.opened = opened;
    for (const row of this.rows.values()) row.told = false;
    this.connection.call("session/watch", { include_archived: true }).catch((error) => this.fail(error));
    this.look();
  }

  take({ sessions = [], gone = [], missed = false }) {
    for (const row of sessions) this.keep(row, true);
    for (const id of gone) this.rows.delete(id);
    if (missed) this.look();
    this.change();
  }

  /** Read the whole list, page by page. */
  async look() {
    clearTimeout(this.timer);
    const turn = (this.looking = {});
    const current = () => this.looking === turn && this.listeners.size > 0;
    const before = new Set(this.rows.keys());
    let damaged = 0;
    try {
      for (let offset = 0, limit = this.whole ? PAGE : FIRST, more = true; more; offset += limit, limit = PAGE) {
        const page = await this.connection.read("session/list", { offset, limit, include_archived: true });
        if (!current()) return;
        for (const row of page.sessions) {
          before.delete(row.session_id);
          this.keep(row, false);
        }
        damaged += page.damaged?.length ?? 0;
        more = page.sessions.length + (page.damaged?.length ?? 0) === limit;
        if (!this.whole) this.change();
      }
    } catch (error) {
      this.fail(error);
      return;
    }
    for (const id of before) if (!this.rows.get(id)?.told) this.rows.delete(id);
    Object.assign(this, { whole: true, error: null, damaged });
    this.timer = setTimeout(() => this.look(), EVERY);
    this.change();
  }

  fail(error) {
    if (error.code === "DISCONNECTED") return;
    this.error = error;
    this.change();
    clearTimeout(this.timer);
    if (error.code !== "PERMISSION_DENIED") this.timer = setTimeout(() => this.look(), AFTER_ERROR);
  }

  /** Take a row: the list does not know what runs at other nodes, so what was told of such a turn counts for more. */
  keep(row, told) {
    const before = this.rows.get(row.session_id);
    if (!told && before?.told && before.is_active && before.updated_at >= row.updated_at) return;
    if (row.is_active) row.since = (before?.is_active && before.since) || Date.now();
    row.told = told;
    this.rows.set(row.session_id, row);
  }

  remove(session_id) {
    if (this.rows.delete(session_id)) this.change();
  }

  change() {
    this.version += 1;
    for (const listener of [...this.listeners]) listener();
  }
}

/** Return the rows that fit a filter, the newest first. */
export function fitting(rows, { state, model, node, label, text }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const [name, value] = label.includes("=") ? [label.slice(0, label.indexOf("=")).trim(), label.slice(label.indexOf("=") + 1).trim()] : [label.trim(), null];
  const fits = (row) => {
    if (state ? stateOf(row) !== state : row.lifecycle === "archived") return false;
    if (model && row.model !== model) return false;
    if (node && row.node !== node) return false;
    if (name && !(name in row.labels && (value === null || row.labels[name] === value))) return false;
    if (!words.length) return true;
    const all = `${row.title ?? ""} ${row.session_id} ${row.model} ${Object.entries(row.labels).flat().join(" ")}`.toLowerCase();
    return words.every((word) => all.includes(word));
  };
  const found = [...rows.values()].filter(fits);
  return found.sort((one, other) => (one.updated_at < other.updated_at ? 1 : one.updated_at > other.updated_at ? -1 : one.session_id < other.session_id ? 1 : -1));
}
