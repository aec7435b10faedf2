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
  if (row.pending_approvals) return "waiting";
  if (row.turn?.state === "waiting") return "waits";
  if (row.is_active || row.turn?.state === "running") return "running";
  if (row.turn?.state === "parked") return "parked";
  return row.lifecycle === "live" || row.node ? "idle" : "stored";
}

export const STATES = { waiting: "To approve", waits: "Waits", running: "Running", parked: "Parked", idle: "Idle", stored: "Stored", archived: "Archived" };

/** Whether a row of a page says less than what was told: the list does not know what runs at other nodes. */
export const outdated = (before, row) => before?.told && before.is_active && before.updated_at >= row.updated_at;

/** Mark a row that was told of: while its session is loaded it does not say what its turn waits for, which is as before. */
export function markTold(before, row) {
  row.told = true;
  const { turn } = row;
  if (turn?.state !== "waiting" || turn.waiting_for || before?.turn?.since !== turn.since) return;
  Object.assign(row, { turn: before.turn, pending_approvals: before.pending_approvals });
}

/** The watch of the list of sessions, of which a connection has one: what it tells goes to all who follow it. */
export class Watch {
  constructor(connection) {
    this.connection = connection;
    this.followers = new Set();
    this.watched = null;
    connection.on("session/changed", (changes) => this.tell((each) => each.take(changes)));
    connection.listen(() => this.begin());
  }

  /**
   * Tell somebody of the changes. Returns the function that ends it.
   *
   * @param {{began: Function, take: Function, failed: Function}} follower `began()` is called on each connection once it
   *   is watched: who then reads the list misses nothing. `take(changes)` has what has changed.
   */
  follow(follower) {
    this.followers.add(follower);
    if (this.watched !== null && this.watched === this.place) follower.began();
    else this.begin();
    return () => {
      this.followers.delete(follower);
      if (this.followers.size) return;
      this.watched = null;
      this.connection.call("session/unwatch").catch(() => {});
    };
  }

  /** What there is to watch now; null while there is no connection. */
  get place() {
    const { state, opened, tenant } = this.connection;
    return state === "open" ? `${opened} ${tenant}` : null;
  }

  begin() {
    const { place } = this;
    if (place === null || !this.followers.size || this.watched === place) return;
    this.watched = place;
    this.connection.call("session/watch", { include_archived: true }).catch((error) => this.tell((each) => each.failed(error)));
    this.tell((each) => each.began());
  }

  tell(how) {
    for (const each of [...this.followers]) how(each);
  }
}

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
    this.tenant = connection.tenant;
    connection.listen(() => this.belong());
    this.watch = new Watch(connection);
  }

  listen(listener) {
    this.listeners.add(listener);
    this.end ??= this.watch.follow({ began: () => this.began(), take: (changes) => this.take(changes), failed: (error) => this.fail(error) });
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size) return;
      clearTimeout(this.timer);
      this.end();
      this.end = null;
    };
  }

  /** Forget the rows of another tenant. */
  belong() {
    const { tenant } = this.connection;
    if (this.tenant === tenant) return;
    this.rows.clear();
    Object.assign(this, { tenant, whole: false });
  }

  began() {
    for (const row of this.rows.values()) row.told = false;
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

  keep(row, told) {
    const before = this.rows.get(row.session_id);
    if (told) markTold(before, row);
    else if (outdated(before, row)) return;
    else row.told = false;
    if (row.is_active) row.since = (before?.is_active && before.since) || Date.now();
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
export function fitting(rows, { state, model, node, label, text, delegated_by }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const [name, value] = label.includes("=") ? [label.slice(0, label.indexOf("=")).trim(), label.slice(label.indexOf("=") + 1).trim()] : [label.trim(), null];
  const fits = (row) => {
    if (state ? stateOf(row) !== state : row.lifecycle === "archived") return false;
    if (delegated_by && row.delegated_by !== delegated_by) return false;
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
