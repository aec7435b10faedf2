// The screen of the memory: a search with the parts of each score, the way to the session of each hit, and forgetting.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { plural, shortId } from "./format.js";
import { LongText } from "./markdown.js";
import { Ask, Failure, Menu, useLoaded, useTitle } from "./parts.js";
import { linkTo, putQuery } from "./route.js";

/** A score, which opens its parts: each with its weight. */
function Score({ score, parts }) {
  const weight = (share) => `${Math.round(share * 100)} %`;
  return html`<details class="score"><summary><meter min="0.5" max="1" value=${score} aria-label="Score">${score}</meter> ${score.toFixed(3)}</summary>
    <dl><dt>by words</dt><dd>${parts.words.toFixed(3)} · ${weight(1 - parts.share)}</dd>
      <dt>by likeness of the vectors</dt><dd>${parts.likeness === null ? "not weighed" : `${parts.likeness.toFixed(3)} · ${weight(parts.share)}`}</dd></dl>
  </details>`;
}

/** The ways to forget a hit: the text, its turn if it has one, and all of its session, which has to be typed. */
function ways({ session_id, turn, text_id }) {
  const session = `session ${shortId(session_id)}`;
  const way = (name, what, which, word) => [name, { what, word, params: { session_id, ...which } }];
  return [way("This text…", `the words of this text of ${session}`, { text_id }), ...(turn > 0 ? [way(`Turn ${turn}…`, `all texts of turn ${turn} of ${session}`, { turn })] : []), way("All of its session…", `all texts of ${session}`, {}, "forget")];
}

export function Memory({ connection, query }) {
  useTitle("Memory");
  const [text, setText] = useState(query.get("text") ?? "");
  const [asked, setAsked] = useState(text);
  const shown = useRef(query);
  useEffect(() => {
    if (shown.current === query) return; // words may have been typed since the first drawing
    shown.current = query;
    setText(query.get("text") ?? "");
    setAsked(query.get("text") ?? "");
  }, [query]);
  const { value: capabilities } = useLoaded(() => connection.read("capabilities/get"), []);
  const { value, error, again } = useLoaded(() => (asked ? connection.read("memory/search", { query: asked, scope: "project", limit: 20 }) : Promise.resolve(null)), [asked]);
  const search = (event) => {
    event.preventDefault();
    setAsked(text.trim());
    putQuery({ text: text.trim() });
    if (text.trim() === asked) again();
  };
  const [asking, setAsking] = useState(null);
  const forgets = connection.can("session:admin");
  const forget = async () => {
    await connection.call("memory/forget", asking.params);
    again();
  };
  const off = capabilities && !capabilities.memory_store;
  return html`<main class="screen" id="main" tabindex="-1"><div class="head"><h1>Memory</h1></div>
    <p class="quiet">Texts that left the context of sessions by compaction.</p>
    ${off ? html`<p class="notice">This gateway has no memory: start it with <code>--memory</code>.</p>`
      : html`<form class="filters asked" role="search" onSubmit=${search}><input type="search" aria-label="Search the memory" placeholder="Search" value=${text} onInput=${(event) => setText(event.target.value)} /><button class="primary" type="submit">Search</button></form>`}
    ${error && !off && html`<${Failure} error=${error} again=${again} />`}
    ${asked && value === undefined && !error && html`<p class="quiet" role="status">Searching…</p>`}
    ${value && html`<p class="quiet" role="status">${plural(value.hits.length, "hit")}</p>`}
    <ol class="hits">${(value?.hits ?? []).map((hit) => html`<li class="card" key=${`${hit.session_id} ${hit.text_id}`}><div class="top-line"><p class="who"><a href=${`${linkTo("session", hit.session_id)}${hit.turn > 0 ? `?turn=${hit.turn}` : ""}`}>Session ${shortId(hit.session_id)}${hit.turn > 0 ? `, turn ${hit.turn}` : ""}</a></p><${Score} score=${hit.score} parts=${hit.parts} /></div><${LongText} text=${hit.content} />
      ${forgets && html`<${Menu} label="Forget" items=${ways(hit).map(([name, way]) => [name, () => setAsking(way)])} />`}</li>`)}</ol>
    ${asking && html`<${Ask} title="Forget?" text=${`The memory forgets ${asking.what} for good: no search finds them any more. The messages stay in the history of the session.`} word=${asking.word} action="Forget" danger act=${forget} close=${() => setAsking(null)} />`}
  </main>`;
}
