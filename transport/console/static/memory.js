// The screen of the memory: a search, and the way to the session of each hit.
import { html, useState } from "./vendor/preact.js";
import { plural, shortId } from "./format.js";
import { LongText } from "./markdown.js";
import { Failure, useLoaded, useTitle } from "./parts.js";
import { linkTo, putQuery } from "./route.js";

export function Memory({ connection, query }) {
  useTitle("Memory");
  const [text, setText] = useState(query.get("text") ?? "");
  const [asked, setAsked] = useState(text);
  const { value: capabilities } = useLoaded(() => connection.read("capabilities/get"), []);
  const { value, error, again } = useLoaded(() => (asked ? connection.read("memory/search", { query: asked, scope: "project", limit: 20 }) : Promise.resolve(null)), [asked]);
  const search = (event) => {
    event.preventDefault();
    setAsked(text.trim());
    putQuery({ text: text.trim() });
    if (text.trim() === asked) again();
  };
  const off = capabilities && !capabilities.memory_store;
  return html`<main class="screen" id="main" tabindex="-1"><div class="head"><h1>Memory</h1></div>
    <p class="quiet">Texts that left the context of sessions by compaction.</p>
    ${off ? html`<p class="notice">This gateway has no memory: start it with <code>--memory</code>.</p>`
      : html`<form class="filters" role="search" onSubmit=${search}><input type="search" aria-label="Search the memory" placeholder="Search" value=${text} onInput=${(event) => setText(event.target.value)} /><button class="primary" type="submit">Search</button></form>`}
    ${error && !off && html`<${Failure} error=${error} again=${again} />`}
    ${asked && value === undefined && !error && html`<p class="quiet" role="status">Searching…</p>`}
    ${value && html`<p class="quiet" role="status">${plural(value.hits.length, "hit")}</p>`}
    <ol class="hits">${(value?.hits ?? []).map((hit) => html`<li class="card"><p class="who"><a href=${`${linkTo("session", hit.session_id)}${hit.turn > 0 ? `?turn=${hit.turn}` : ""}`}>Session ${shortId(hit.session_id)}${hit.turn > 0 ? `, turn ${hit.turn}` : ""}</a>
      <span class="score"><meter min="0.5" max="1" value=${hit.score} aria-label="Score">${hit.score}</meter> ${hit.score.toFixed(3)}</span></p><${LongText} text=${hit.content} /></li>`)}</ol>
  </main>`;
}
