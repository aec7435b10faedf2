// Parts that several screens share: dialogs, messages, states, hooks.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

/** Draw again whenever the source tells of a change, at most once a frame. */
export function useChanges(source) {
  const [, draw] = useState(0);
  // An effect would begin to listen some frames after what it draws: a change between the two would never be drawn.
  useLayoutEffect(() => {
    let frame = 0;
    const end = source.listen(() => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        draw((number) => number + 1);
      });
    });
    return () => {
      cancelAnimationFrame(frame);
      end();
    };
  }, [source]);
}

/** Rows beyond those in sight that are drawn, on each side. */
const OVERSCAN = 8;

/**
 * The part of a long table that is in sight: its `box` gets the ref and `scrolled`, and rows `first` to `last` are drawn, of `row`
 * pixels each. The row `at` is kept in sight.
 */
export function useWindow(at) {
  const box = useRef();
  const [view, setView] = useState({ top: 0, height: 800, row: 48 });
  useLayoutEffect(() => {
    const look = () => setView({ top: box.current.scrollTop, height: box.current.clientHeight, row: matchMedia("(max-width: 700px)").matches ? 76 : 48 });
    look();
    const observer = new ResizeObserver(look);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const { top, height, row } = view;
  useEffect(() => {
    const own = box.current;
    if (at * row < own.scrollTop) own.scrollTop = at * row;
    else if ((at + 1) * row > own.scrollTop + own.clientHeight - 40) own.scrollTop = (at + 1) * row - own.clientHeight + 40;
  }, [at]);
  const scrolled = () => setView({ ...view, top: box.current.scrollTop, height: box.current.clientHeight });
  return { box, scrolled, row, first: Math.max(0, Math.floor(top / row) - OVERSCAN), last: Math.ceil((top + height) / row) + OVERSCAN };
}

/** The steps of the keys that go through a table. */
export const stepOf = (key, rows) => ({ ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -rows, End: rows })[key];

/** The time, drawn anew every so many milliseconds. */
export function useNow(every = 1000) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

export function useTitle(title) {
  useEffect(() => {
    document.title = title ? `${title} · Warren` : "Warren";
  }, [title]);
}

export const inText = (target) => target instanceof Element && target.closest("input, textarea, select, dialog, [contenteditable]") !== null;

/** Single keys that work wherever no text is written, unless they are switched off. */
export function useKeys(keys) {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || inText(event.target) || localStorage.getItem("warren.keys") === "off") return;
      if (document.querySelector("dialog[open]")) return;
      const run = current.current[event.key];
      if (run) {
        event.preventDefault();
        run();
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

/** A value that comes later: `{value}`, `{error}` or nothing yet. `again` asks anew. */
export function useLoaded(load, inputs) {
  const [state, setState] = useState({});
  const [round, setRound] = useState(0);
  useEffect(() => {
    let left = false;
    setState((before) => ({ value: before.value }));
    load().then((value) => left || setState({ value }), (error) => left || setState({ error }));
    return () => {
      left = true;
    };
  }, [...inputs, round]);
  return { ...state, again: () => setRound(round + 1) };
}

/** Milliseconds between two looks. */
const FRESH = 2_000;

/** A value that is asked for again and again while the screen is open; nothing is asked for without a function. */
export function useFresh(load, inputs) {
  const found = useLoaded(load || (async () => undefined), inputs);
  useEffect(() => {
    if (!load) return undefined;
    const timer = setTimeout(found.again, FRESH);
    return () => clearTimeout(timer);
  }, [found.value, found.error, ...inputs]); // not with each drawing: a clock on the screen draws more often
  return found;
}

export function Loading({ what }) {
  return html`<p class="quiet" role="status">Loading ${what}…</p>`;
}

export function Failure({ error, again }) {
  return html`<div class="notice bad" role="alert"><span>${sentence(error)}</span>
    ${again && html`<button onClick=${again}>Try again</button>`}</div>`;
}

/** An error as a sentence, with its code for whoever looks it up. */
export function sentence(error) {
  const text = error.message ? error.message[0].toUpperCase() + error.message.slice(1) : "It failed";
  return error.code && error.code !== "DISCONNECTED" && error.code !== "TIMEOUT" ? `${text} (${error.code})` : text;
}

export function State({ state, children }) {
  return html`<span class=${`state ${state}`}><span class="dot" aria-hidden="true"></span>${children}</span>`;
}

/** A modal dialog; Escape and its buttons close it, and the focus goes back to where it was. */
export function Dialog({ title, close, children }) {
  const at = useRef();
  useEffect(() => {
    const before = document.activeElement;
    at.current.showModal();
    return () => before instanceof HTMLElement && before.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${at} aria-labelledby="dialog-title" onClose=${close} onCancel=${close}
    onClick=${(event) => event.target === at.current && close()}>
    <div class="dialog"><h2 id="dialog-title">${title}</h2>${children}</div>
  </dialog>`;
}

/**
 * Ask before something is done. With `word` the person types it first; with `field` a text is asked for.
 *
 * `act(text)` does it; its error is shown, and the dialog stays.
 */
export function Ask({ title, text, word, field, value = "", long, action, danger, act, close, required = true }) {
  const [typed, setTyped] = useState(value);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const ready = word ? typed === word : !field || !required || typed.trim() !== "";
  const submit = async (event) => {
    event.preventDefault();
    if (!ready || busy) return;
    setBusy(true);
    setError(null);
    try {
      await act(typed);
      close();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  const label = word ? html`Type <b>${word}</b> to confirm` : field;
  const attributes = { id: "asked", value: typed, onInput: (event) => setTyped(event.target.value), autocomplete: "off", autofocus: true };
  return html`<${Dialog} title=${title} close=${close}>
    <form onSubmit=${submit}>
      ${text && html`<p>${text}</p>`}
      ${label && html`<label for="asked">${label}</label>`}
      ${label && (long ? html`<textarea rows="4" ...${attributes}></textarea>` : html`<input ...${attributes} />`)}
      ${error && html`<${Failure} error=${error} />`}
      <div class="buttons">
        <button type="button" onClick=${close}>Cancel</button>
        <button type="submit" class=${danger ? "danger" : "primary"} disabled=${!ready || busy}>${busy ? "Working…" : action}</button>
      </div>
    </form>
  <//>`;
}

/** A button that opens a list of things to do: pairs of a name and a function. */
export function Menu({ label, items }) {
  const at = useRef();
  const close = () => {
    at.current.open = false;
  };
  useEffect(() => {
    const press = (event) => !at.current.contains(event.target) && close();
    addEventListener("pointerdown", press);
    return () => removeEventListener("pointerdown", press);
  }, []);
  return html`<details class="menu" ref=${at} onKeyDown=${(event) => { if (event.key === "Escape") { close(); at.current.querySelector("summary").focus(); } }}>
    <summary class="button">${label}</summary>
    <div class="items">${items.map(([name, run]) => html`<button onClick=${() => { close(); run(); }}>${name}</button>`)}</div>
  </details>`;
}

/** Run something for each of many, a few at a time; return how many succeeded and the errors. */
export async function forEach(items, act, { at_once = 4, told = () => {} } = {}) {
  const left = [...items];
  const errors = [];
  let done = 0;
  const work = async () => {
    while (left.length) {
      const item = left.shift();
      try {
        await act(item);
        done += 1;
      } catch (error) {
        errors.push({ item, error });
      }
      told(done + errors.length);
    }
  };
  await Promise.all(Array.from({ length: Math.min(at_once, items.length) }, work));
  return { done, errors };
}
