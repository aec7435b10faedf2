// The connection to the gateway: JSON-RPC over a WebSocket that comes back by itself, and the subscriptions on it.

const TOKEN = "warren.token";
const TENANT = "warren.tenant";
const CALL_LIMIT = 30_000;
const PING_EVERY = 15_000;
const PING_LIMIT = 10_000;
/** Milliseconds for the handshake: a gateway that stands still takes connections, and answers none. */
const HANDSHAKE_LIMIT = 10_000;
const LONGEST_PAUSE = 8_000;
/** The close code for a client whose token has expired or was revoked. */
const UNAUTHORIZED = 4401;
/** The close code for a message that has more bytes than the gateway takes. */
const TOO_BIG = 1009;

/** An error of a call: of the server, with its code, or `DISCONNECTED` and `TIMEOUT` of this page. */
export class CallError extends Error {
  constructor({ code, message, details }) {
    super(message);
    this.code = code;
    this.details = details ?? {};
  }
}

const tooLong = (bytes, most) => new CallError({ code: "", message: `this is too long: ${bytes.toLocaleString("en")} bytes as a message, and the gateway takes at most ${most.toLocaleString("en")}` });
const disconnected = () => new CallError({ code: "DISCONNECTED", message: "the connection was lost before the answer; the outcome is unknown" });

/**
 * The connection of a page.
 *
 * `state` is `connecting`, `open`, `lost` (it is tried again at `retryAt`) or `refused` (the server is there, and lets
 * nobody in without another token; `tokenEnded` if it did before). `silent` if it took the last connection and answered
 * nothing. Listeners are called with each change.
 */
export class Connection {
  constructor(url = socketUrl()) {
    this.url = url;
    this.state = "connecting";
    this.retryAt = 0;
    this.opened = 0;
    this.tokenEnded = false;
    this.silent = false;
    this.greeting = null;
    this.listeners = new Set();
    this.subscriptions = new Map();
    this.notified = new Map();
    this.waiting = new Map();
    this.queue = [];
    this.number = 0;
    this.tries = 0;
    addEventListener("online", () => this.retry());
  }

  get token() {
    return sessionStorage.getItem(TOKEN) ?? "";
  }

  /** The tenant of others that this page works in; empty for that of the token. */
  get tenant() {
    return sessionStorage.getItem(TENANT) ?? "";
  }

  /** Connect with another token; an empty one forgets it. */
  signIn(token) {
    if (token) sessionStorage.setItem(TOKEN, token);
    else sessionStorage.removeItem(TOKEN);
    this.workIn("");
  }

  /** Connect anew to work in the tenant of others, which needs a scope; an empty one is that of the token. */
  workIn(tenant) {
    if (tenant !== this.tenant) this.opened = 0; // another place, not the same one again
    if (tenant) sessionStorage.setItem(TENANT, tenant);
    else sessionStorage.removeItem(TENANT);
    this.tries = 0;
    this.tokenEnded = false;
    this.greeting = null;
    this.drop();
    this.open();
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Whether the person may do what needs a scope, as the gateway says. It refuses the rest whatever a page shows. */
  can(scope) {
    return this.greeting?.caller?.scopes.includes(scope) ?? false;
  }

  /** Have `handle(params)` called for each notification of a method. */
  on(method, handle) {
    this.notified.set(method, handle);
  }

  open() {
    clearTimeout(this.timer);
    this.change("connecting");
    const protocols = ["warren", this.token && `bearer.${this.token}`, this.tenant && `tenant.${this.tenant}`].filter(Boolean);
    let socket;
    try {
      socket = new WebSocket(this.url, protocols);
    } catch { // a token with characters that no subprotocol may have
      this.change("refused");
      return;
    }
    this.socket = socket;
    let greeted = false;
    socket.onopen = async () => {
      if (socket !== this.socket) return;
      greeted = true;
      this.opened += 1;
      this.change("open");
      this.resume();
      let greeting = null;
      try {
        greeting = await this.call("initialize", { client_info: { name: "console", version: "1" } }, { limit: HANDSHAKE_LIMIT });
      } catch (error) {
        if (socket !== this.socket) return; // what happened to this connection is told already
        this.opened -= 1; // it was of no use
        this.silent = error.code === "TIMEOUT";
        this.drop();
        this.lose();
        return;
      }
      if (socket !== this.socket) return;
      this.greeting = greeting;
      this.tries = 0;
      this.silent = false;
      this.change("open");
    };
    socket.onmessage = ({ data }) => socket === this.socket && this.take(JSON.parse(data));
    socket.onclose = ({ code, reason }) => {
      if (socket !== this.socket) return;
      if (code === TOO_BIG) this.refuseLongest(reason);
      this.closed(greeted, code);
    };
    setTimeout(() => {
      if (greeted || socket !== this.socket) return;
      this.silent = true;
      this.drop();
      this.lose();
    }, HANDSHAKE_LIMIT);
  }

  retry() {
    if (this.state === "lost") this.open();
  }

  drop() {
    const socket = this.socket;
    this.socket = null;
    clearInterval(this.pinging);
    socket?.close();
    const waiting = [...this.waiting.values()];
    this.waiting.clear();
    for (const each of waiting) each.lost();
  }

  async closed(greeted, code) {
    this.drop();
    if (code === UNAUTHORIZED) {
      this.tokenEnded = true;
      this.change("refused");
      return;
    }
    // A browser does not say why a handshake failed. If the server sends this page, it has refused the WebSocket.
    if (!greeted && (await reachable())) {
      if (this.socket === null) this.change("refused");
      return;
    }
    if (this.socket !== null) return; // connected anew meanwhile
    this.silent = false;
    this.lose();
  }

  /** Try again after a pause. */
  lose() {
    const pause = Math.min(LONGEST_PAUSE, 250 * 2 ** this.tries++) * (0.75 + Math.random() / 2);
    this.retryAt = Date.now() + pause;
    this.timer = setTimeout(() => this.open(), pause);
    this.change("lost");
  }

  change(state) {
    this.state = state;
    if (state === "open") {
      clearInterval(this.pinging);
      this.pinging = setInterval(() => this.ping(), PING_EVERY);
    }
    for (const listener of [...this.listeners]) listener(this);
  }

  async ping() {
    const socket = this.socket;
    try {
      await this.call("initialized", {}, { limit: PING_LIMIT });
    } catch (error) {
      if (error.code === "TIMEOUT" && socket === this.socket) this.closed(true);
    }
  }

  /** Say again what was not answered and may be said twice, and go on with the subscriptions. */
  resume() {
    for (const each of this.subscriptions.values()) this.follow(each);
    const queue = this.queue;
    this.queue = [];
    for (const send of queue) send();
  }

  take(message) {
    if (message.method) {
      if (message.method === "session/event") this.event(message.params);
      else if (message.method === "session/unsubscribed") this.ended(message.params.session_id);
      else this.notified.get(message.method)?.(message.params);
      return;
    }
    const waiting = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (message.error) waiting?.fail(new CallError(message.error.data ?? { code: "", message: message.error.message }));
    else waiting?.answer(message.result);
  }

  /** Fail the call that the gateway has closed the connection for: it must not be made again on the next one. */
  refuseLongest(message) {
    const [longest] = [...this.waiting].sort(([, one], [, other]) => other.length - one.length);
    if (!longest) return;
    this.waiting.delete(longest[0]);
    longest[1].fail(new CallError({ code: "", message }));
  }

  /**
   * Call a method once. The promise fails with `DISCONNECTED` if the connection is lost before the answer.
   *
   * @param {string} method
   * @param {object} params
   * @param {{limit?: number, again?: boolean}} options `limit` in milliseconds, 0 for none; with `again` the call is
   *   made again on the next connection: for methods that only read, and those under an idempotency key.
   */
  call(method, params = {}, { limit = CALL_LIMIT, again = false } = {}) {
    return new Promise((answer, fail) => {
      let timer = 0;
      const end = (done) => (value) => {
        clearTimeout(timer);
        done(value);
      };
      const send = () => {
        const id = ++this.number;
        const lost = () => (again ? this.queue.push(send) : end(fail)(disconnected()));
        const message = JSON.stringify({ jsonrpc: "2.0", id, method, params });
        const most = this.greeting?.max_message_bytes ?? Infinity;
        const bytes = message.length * 3 > most ? new Blob([message]).size : 0;
        if (bytes > most) {
          end(fail)(tooLong(bytes, most));
          return;
        }
        if (this.state !== "open") {
          lost();
          return;
        }
        this.waiting.set(id, { answer: end(answer), fail: end(fail), lost, length: message.length });
        this.socket.send(message);
      };
      if (limit) {
        timer = setTimeout(() => fail(new CallError({ code: "TIMEOUT", message: `no answer within ${limit / 1000} s` })), limit);
      }
      send();
    });
  }

  /** Wait until the connection is open, and the gateway has said what it is. */
  whenOpen() {
    return new Promise((answer) => {
      const look = () => {
        if (this.state !== "open" || !this.greeting) return;
        this.listeners.delete(look);
        answer();
      };
      this.listeners.add(look);
      look();
    });
  }

  /** Call a method that only reads; it is called again if the connection is lost. */
  read(method, params = {}) {
    return this.call(method, params, { again: true });
  }

  /**
   * Follow the events of a session above `after`, over lost connections. Returns the function that ends it.
   *
   * @param {string} session_id
   * @param {number|null} after null begins with the next event.
   * @param {{event: Function, began?: Function, ended?: Function, failed?: Function}} reader
   */
  subscribe(session_id, after, reader) {
    const subscription = { session_id, after, reader };
    this.subscriptions.set(session_id, subscription);
    if (this.state === "open") this.follow(subscription);
    return () => {
      if (this.subscriptions.get(session_id) !== subscription) return;
      this.subscriptions.delete(session_id);
      if (this.state === "open") this.call("session/unsubscribe", { session_id }).catch(() => {});
    };
  }

  async follow(subscription) {
    const { session_id, reader } = subscription;
    subscription.begun = false; // what comes before the answer is of an earlier place in the log
    try {
      const { after_seq } = await this.call("session/subscribe", { session_id, after_seq: subscription.after });
      subscription.after ??= after_seq;
      subscription.begun = true;
      reader.began?.(after_seq);
    } catch (error) {
      if (error.code !== "DISCONNECTED") reader.failed?.(error);
    }
  }

  event(envelope) {
    const subscription = this.subscriptions.get(envelope.session_id);
    if (!subscription?.begun) return;
    subscription.after = Math.max(subscription.after ?? 0, envelope.seq);
    subscription.reader.event(envelope);
  }

  ended(session_id) {
    const subscription = this.subscriptions.get(session_id);
    this.subscriptions.delete(session_id);
    subscription?.reader.ended?.();
  }
}

function socketUrl() {
  const url = new URL("../ws", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.hash = url.search = "";
  return url.href;
}

async function reachable() {
  try {
    return (await fetch("./", { method: "HEAD", cache: "no-store", signal: AbortSignal.timeout(5_000) })).ok;
  } catch {
    return false;
  }
}
