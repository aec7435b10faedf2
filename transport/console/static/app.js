// The console: its frame, the screen for each place, the state of the connection.
import { html, render, useEffect, useState } from "./vendor/preact.js";
import { Connection } from "./connection.js";
import { List } from "./list.js";
import { Dialog, Failure, Loading, useChanges, useKeys, useLoaded, useTitle } from "./parts.js";
import { go, linkTo, useRoute } from "./route.js";
import { Rows } from "./rows.js";

/** What the first page does not need: each is loaded when it is first shown. */
const LATER = {
  Approvals: () => import("./approvals.js"),
  Create: () => import("./create.js"),
  Health: () => import("./health.js"),
  Load: () => import("./load.js"),
  Memory: () => import("./memory.js"),
  Schedules: () => import("./schedules.js"),
  // The lexer lies deep below the session: it is asked for at once, not after three files.
  Session: () => Promise.all([import("./session.js"), import("./vendor/marked.js")]).then(([module]) => module),
};
/** Milliseconds for the modules of a screen. */
const MODULE_LIMIT = 30_000;
const arrived = {};

async function arrive(name) {
  let timer;
  const late = new Promise((_, fail) => { timer = setTimeout(fail, MODULE_LIMIT); });
  try {
    arrived[name] ??= (await Promise.race([LATER[name](), late]))[name];
  } catch {
    throw new Error("this part of the console could not be loaded: the gateway cannot be reached, or has another release; then reload the page");
  } finally {
    clearTimeout(timer);
  }
  return arrived[name];
}

/** A part of the console that is loaded when it is first shown. */
function Later({ name, frame, ...props }) {
  const { value, error, again } = useLoaded(() => arrive(name), [name]);
  const Part = arrived[name];
  if (Part) return html`<${Part} ...${props} />`;
  const told = error ? html`<${Failure} error=${error} again=${again} />` : value === undefined && html`<${Loading} what="this part of the console" />`;
  return frame ? html`<${frame} title=${props.title} close=${props.close}>${told}<div class="buttons"><button onClick=${props.close}>Cancel</button></div><//>` : html`<main class="screen" id="main" tabindex="-1">${told}</main>`;
}

const PARTS_OF_SESSIONS = [undefined, "children", "context", "events"];

/** Return the name of the screen at a place; null if there is no such place. */
function screenAt([first, second, ...rest]) {
  if (first === undefined) return "List";
  if (first === "session") return second && rest.length <= 1 && PARTS_OF_SESSIONS.includes(rest[0]) ? "Session" : null;
  return second === undefined ? { approvals: "Approvals", schedules: "Schedules", memory: "Memory", load: "Load", health: "Health" }[first] ?? null : null;
}

const connection = new Connection();
const rows = new Rows(connection);

function App() {
  useChanges(connection);
  const { parts, query } = useRoute();
  const [creating, setCreating] = useState(false);
  const [helping, setHelping] = useState(false);
  const create = connection.can("session:write") ? () => setCreating(true) : null;
  useKeys({ "?": () => setHelping(true), s: () => go(), a: () => go("approvals"), t: () => go("schedules"), m: () => go("memory"), l: () => go("load"), h: () => go("health") });
  useEffect(() => document.getElementById("main")?.focus({ preventScroll: true }), [parts.join("/")]);
  const places = [["Sessions", []], connection.can("session:read") && ["Approvals", ["approvals"]], connection.can("session:read") && ["Schedules", ["schedules"]], connection.can("memory:read") && ["Memory", ["memory"]], connection.can("metrics:read") && ["Load", ["load"]], ["Store and nodes", ["health"]]].filter(Boolean);
  const screen = screenAt(parts);
  const here = screen === "Session" ? undefined : screen ? parts[0] : null;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href=${linkTo()}><img src="icon.svg" alt="" width="24" height="24" />Warren</a>
      <nav aria-label="Console">${places.map(([name, place]) => html`<a href=${linkTo(...place)} aria-current=${here === place[0] ? "page" : undefined}>${name}</a>`)}</nav>
      <div class="right"><${Theme} /><button class="quiet" onClick=${() => setHelping(true)} aria-label="Keyboard">?</button>
        ${connection.tenant && html`<span class="badge" data-testid="tenant">Tenant ${connection.tenant}<button class="quiet" aria-label="Back to my own tenant" onClick=${() => { go(); connection.workIn(""); }}>×</button></span>`}
        ${connection.token && html`<button class="quiet" onClick=${() => connection.signIn("")}>Sign out</button>`}
        <${Status} /></div>
    </header>
    <${Banner} />
    ${connection.state === "refused" ? html`<${SignIn} />`
      : connection.opened === 0 ? html`<main class="screen" id="main"><p class="quiet" role="status">${connection.silent ? "The gateway does not answer. It is tried again." : connection.state === "lost" || connection.tries > 0 ? "The gateway cannot be reached. It is tried again." : "Connecting…"}</p></main>`
      : screen === "Session" ? html`<${Later} key="Session" name="Session" connection=${connection} rows=${rows} id=${parts[1]} part=${parts[2]} turn=${Number(query.get("turn")) || 0} />`
      : screen === "List" ? html`<${List} connection=${connection} rows=${rows} query=${query} create=${create} />`
      : screen ? html`<${Later} key=${screen} name=${screen} connection=${connection} query=${query} />`
      : html`<${Nowhere} />`}
    ${creating && html`<${Later} name="Create" frame=${Dialog} title="New session" connection=${connection} rows=${rows} close=${() => setCreating(false)} />`}
    ${helping && html`<${Keyboard} close=${() => setHelping(false)} />`}`;
}

const STATUS = { open: "Connected", connecting: "Connecting…", lost: "Disconnected", refused: "Not signed in" };

function Status() {
  useChanges(connection);
  const version = connection.greeting?.server_info.version;
  return html`<span class=${`status ${connection.state}`} role="status" title=${version ? `Warren ${version}` : ""} data-testid="status"><span class="dot" aria-hidden="true"></span>${STATUS[connection.state]}</span>`;
}

/** What happens to the connection: that it is lost and when it is tried again; that it is back and nothing is missing. */
function Banner() {
  useChanges(connection);
  const [back, setBack] = useState(false);
  const [, tick] = useState(0);
  const lost = connection.opened > 0 && (connection.state === "lost" || connection.state === "connecting");
  useEffect(() => {
    if (connection.opened < 2 || connection.state !== "open") return undefined;
    setBack(true);
    const timer = setTimeout(() => setBack(false), 6_000);
    return () => clearTimeout(timer);
  }, [connection.opened, connection.state]);
  useEffect(() => {
    if (!lost) return undefined;
    const timer = setInterval(() => tick((number) => number + 1), 500);
    return () => clearInterval(timer);
  }, [lost]);
  if (lost) {
    const left = Math.max(0, Math.ceil((connection.retryAt - Date.now()) / 1000));
    return html`<div class="banner warn" role="alert">The connection is lost. ${connection.state === "lost" && left ? `Trying again in ${left} s.` : "Trying again now."} Turns go on without this page.
      <button onClick=${() => connection.retry()}>Try now</button></div>`;
  }
  return back && connection.state === "open" ? html`<div class="banner" role="status">Connected again. What happened meanwhile is shown; nothing is missing.</div>` : null;
}

function Nowhere() {
  useTitle("Unknown address");
  return html`<main class="screen" id="main" tabindex="-1"><h1>This address is unknown</h1><p role="alert">The console has no place <code>${location.hash}</code>.</p><a href=${linkTo()}>All sessions</a></main>`;
}

function SignIn() {
  const [token, setToken] = useState("");
  const bad = connection.token !== "";
  const submit = (event) => {
    event.preventDefault();
    connection.signIn(token.trim());
  };
  return html`<main class="screen narrow" id="main" tabindex="-1">
    <h1>Sign in</h1>
    <p>${connection.tokenEnded ? "This token has expired or was revoked. Sign in with another one to go on here." : connection.tenant ? `The gateway refused the connection: it may be that this token may not work in the tenant ${connection.tenant}, or is not valid.` : bad ? "The gateway refused the connection: this token is not valid, or the gateway has no room." : "The gateway lets in clients that know its token."}</p>
    <form class="card" onSubmit=${submit}>
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="off" autofocus value=${token} onInput=${(event) => setToken(event.target.value)} aria-invalid=${bad} />
      <p class="quiet">It stays in this tab until it is closed, and goes nowhere but to this gateway.</p>
      <div class="buttons"><button type="button" class="quiet" onClick=${() => connection.signIn("")}>${bad ? "Connect without a token" : "Try again"}</button>
        <button class="primary" type="submit" disabled=${!token.trim()}>Sign in</button></div>
    </form>
  </main>`;
}

function Keyboard({ close }) {
  const [off, setOff] = useState(localStorage.getItem("warren.keys") === "off");
  const keys = [["/", "to the text of the filter"], ["n", "new session"], ["j, k or ↓, ↑", "next, previous row"], ["x", "choose the row"], ["o or Enter", "open the row"],
    ["i", "write to the session"], ["!", "interrupt the running turn"], ["c", "the session's context, or its conversation"], ["d", "the session's children, or its conversation"], ["→, ←", "open, close the children of the row"], ["u or s", "all sessions"], ["a", "approvals"], ["t", "schedules and triggers"], ["m", "memory"], ["l", "load"], ["h", "store and nodes"], ["?", "this list"], ["Esc", "leave a text or a dialog"]];
  return html`<${Dialog} title="Keyboard" close=${close}>
    <dl class="keys">${keys.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <label class="check"><input type="checkbox" checked=${!off} onChange=${(event) => { localStorage.setItem("warren.keys", event.target.checked ? "on" : "off"); setOff(!event.target.checked); }} /> Single keys work</label>
    <div class="buttons"><button class="primary" autofocus onClick=${close}>Close</button></div>
  <//>`;
}

const THEMES = { "": "Auto", light: "Light", dark: "Dark" };

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem("warren.theme") ?? "");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("warren.theme", theme);
  }, [theme]);
  const names = Object.keys(THEMES);
  return html`<button class="quiet" onClick=${() => setTheme(names[(names.indexOf(theme) + 1) % names.length])} title="Colours" aria-label=${`Colours: ${THEMES[theme]}`}>${{ "": "◐", light: "☀", dark: "☾" }[theme]}</button>`;
}

connection.open();
render(html`<${App} />`, document.getElementById("app"));
