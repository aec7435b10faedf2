// Markdown as elements: the lexer's tokens become nodes of the page, and no HTML is ever made of text.
import { html, useState } from "./vendor/preact.js";
import { count } from "./format.js";
import { Lexer } from "./vendor/marked.js";

const LONGEST = 50_000;
const SHOWN = 20_000;
const SAFE = /^(https?:|mailto:)/i;

/** A text of the model. Very long ones are shown as they are, the beginning first. */
export function Markdown({ text }) {
  if (text.length > LONGEST) return html`<${LongText} text=${text} />`;
  return html`<div class="markdown">${blocks(Lexer.lex(text))}</div>`;
}

/** A text as it is; of a very long one the beginning, and the rest when asked for. */
export function LongText({ text }) {
  const [whole, setWhole] = useState(false);
  const long = text.length > SHOWN;
  return html`<pre class="plain">${long && !whole ? text.slice(0, SHOWN) : text}</pre>
    ${long && html`<button class="quiet" onClick=${() => setWhole(!whole)}>${whole ? "Show less" : `Show all ${count(text.length)} characters`}</button>`}`;
}

const blocks = (tokens = []) => tokens.map(block);
const inline = (tokens = []) => tokens.map(span);

function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return html`<p class=${`heading h${token.depth}`}>${inline(token.tokens)}</p>`;
    case "paragraph":
      return html`<p>${inline(token.tokens)}</p>`;
    case "text":
      return token.tokens ? html`<span>${inline(token.tokens)}</span>` : token.text;
    case "code":
      return html`<pre class="code" tabindex="0"><code>${token.text}</code></pre>`;
    case "blockquote":
      return html`<blockquote>${blocks(token.tokens)}</blockquote>`;
    case "hr":
      return html`<hr />`;
    case "list": {
      const items = token.items.map((item) => html`<li>${blocks(item.tokens)}</li>`);
      return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case "table":
      return html`<div class="scroll" tabindex="0"><table><thead><tr>${token.header.map((cell) => html`<th>${inline(cell.tokens)}</th>`)}</tr></thead>
        <tbody>${token.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell.tokens)}</td>`)}</tr>`)}</tbody></table></div>`;
    case "html":
      return html`<p>${token.raw.trim()}</p>`;
    default:
      return token.tokens ? html`<span>${inline(token.tokens)}</span>` : token.raw;
  }
}

function span(token) {
  switch (token.type) {
    case "strong":
      return html`<strong>${inline(token.tokens)}</strong>`;
    case "em":
      return html`<em>${inline(token.tokens)}</em>`;
    case "del":
      return html`<del>${inline(token.tokens)}</del>`;
    case "codespan":
      return html`<code>${token.text}</code>`;
    case "br":
      return html`<br />`;
    case "checkbox":
      return token.checked ? "☑ " : "☐ ";
    case "link":
    case "image": { // nothing is loaded from elsewhere: an image is a link to it
      const label = token.type === "link" ? inline(token.tokens) : `image: ${token.text || token.href}`;
      return SAFE.test(token.href) ? html`<a href=${token.href} target="_blank" rel="noopener noreferrer">${label}</a>` : token.raw;
    }
    case "escape":
      return token.text;
    case "text":
      return token.tokens ? inline(token.tokens) : token.text;
    default:
      return token.raw;
  }
}
