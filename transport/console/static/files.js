// Files: those that a person chooses for a prompt, on their way to the gateway, and those of a conversation.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { bytes } from "./format.js";

/** Bytes of a file in one message, and those of the message besides. */
const PIECE = 384 * 1024;
const BESIDES = 2048;
/** Bytes up to which a picture is loaded by itself once it is in sight. */
const SHOWN_AT_ONCE = 2 * 1024 * 1024;
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const OTHERS = /^(application\/pdf|audio\/(x-)?wave?|audio\/mp3|audio\/mpeg|text\/.+|application\/(.+\+)?(json|xml|yaml|toml|javascript|sql|x-sh))$/;
const MOST = 20;

/** Return why a file cannot be attached, in words; null if it may be one of the kinds that models take. */
export function refusal(file) {
  if (!file.size) return `The file ${file.name} is empty, or a folder.`;
  if (file.type && !PICTURES.has(file.type) && !OTHERS.test(file.type) && !/^(application\/octet-stream|video\/mp2t)$/.test(file.type)) {
    return `The file ${file.name} is ${file.type}: images (PNG, JPEG, GIF, WebP), PDF, sounds (WAV, MP3) and texts can be attached.`;
  }
  return null;
}

/** Return the kind of a file, as its browser tells it; null leaves that to the gateway. */
const kindOf = ({ type }) => (PICTURES.has(type) ? "image" : type === "application/pdf" ? "pdf" : type.startsWith("audio/") ? "audio" : OTHERS.test(type) ? "text" : null);

/** Return why the model of a session, whose context it is, cannot get a file, in words; null if it can, or is not known. */
const untaken = (file, { takes } = {}) => {
  const kind = kindOf(file);
  return !takes || !kind || takes.includes(kind) ? null : `The file ${file.name}: the model of this session takes no ${kind}, only ${takes.join(", ")}.`;
};

/**
 * Send files ahead of the prompt that they go with, and then the prompt; all of it again on the next connection if this
 * one is lost: files wait at a connection, and the prompt has a key under which it is taken once.
 *
 * @param {object} connection
 * @param {File[]} files
 * @param {Function} prompt gets the references, and sends the prompt once.
 * @param {Function} told gets the share that has been sent, from 0 to 1.
 */
export async function sendWith(connection, files, prompt, told) {
  for (;;) {
    try {
      await connection.whenOpen();
      const all = files.reduce((sum, file) => sum + file.size, 0);
      const references = [];
      let before = 0;
      for (const file of files) {
        references.push(await put(connection, file, (sent) => told((before + sent) / all)));
        before += file.size;
      }
      return await prompt(references);
    } catch (problem) {
      if (problem.code !== "DISCONNECTED") throw problem;
    }
  }
}

async function put(connection, file, told) {
  const most = connection.greeting?.max_message_bytes ?? 1024 * 1024;
  const piece = Math.max(1, Math.min(PIECE, Math.floor(((most - BESIDES) * 3) / 4)));
  const about = { size: file.size, upload_id: "console", name: file.name.slice(-200), ...(file.type && { media_type: file.type }) };
  let answer = null;
  for (let offset = 0; offset < file.size; offset += piece) {
    const data = await base64(file.slice(offset, offset + piece));
    try {
      answer = await connection.call("file/put", { ...about, data, offset });
    } catch (problem) {
      problem.message = `The file ${file.name}: ${problem.message.replace(/^\$\.\w+: /, "")}`;
      throw problem;
    }
    told(answer.received);
  }
  return { sha256: answer.attachment.sha256, name: about.name };
}

const base64 = (blob) => new Promise((answer, fail) => {
  const reader = new FileReader();
  reader.onload = () => answer(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => fail(reader.error);
  reader.readAsDataURL(blob);
});

/**
 * The files that are chosen: those that cannot be attached are refused in words.
 *
 * @param {Function} tell gets an error, and null if what was said of files before is out of date.
 * @param {Function} [context] asks for the context of the session, so that its model's kinds are known before the upload.
 * @returns {object} `files`, `add`, `remove` and `set`; `check` throws if the model does not take some files;
 *   `over` tells whether files are held over the form with the handlers `drag`; `paste` is the handler of its text.
 */
export function useFiles(tell, context = async () => undefined) {
  const [files, set] = useState([]);
  const [over, setOver] = useState(false);
  const check = async (asked) => {
    const known = await context();
    const refused = asked.map((file) => untaken(file, known)).filter(Boolean);
    if (refused.length) throw { message: refused.join(" ") };
  };
  const add = async (list) => {
    const found = [...list];
    const refused = found.map(refusal).filter(Boolean);
    const good = found.filter((file) => !refusal(file));
    if (files.length + good.length > MOST) refused.push(`A prompt may have ${MOST} files.`);
    tell(refused.length ? { message: refused.join(" ") } : null);
    set((now) => [...now, ...good].slice(0, MOST));
    const known = await context();
    const untook = good.filter((file) => untaken(file, known));
    if (!untook.length) return;
    tell({ message: [...refused, ...untook.map((file) => untaken(file, known))].join(" ") });
    set((now) => now.filter((file) => !untook.includes(file)));
  };
  const remove = (file) => {
    tell(null);
    set((now) => now.filter((each) => each !== file));
  };
  const drag = {
    onDragOver: (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      setOver(true);
    },
    onDragLeave: () => setOver(false),
    onDrop: (event) => {
      event.preventDefault();
      setOver(false);
      add(event.dataTransfer.files);
    },
  };
  const paste = (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add(event.clipboardData.files);
  };
  return { files, add, remove, set, check, over, drag, paste };
}

/** The button that chooses files. */
export function Attach({ add }) {
  const chooser = useRef();
  return html`<input type="file" multiple hidden ref=${chooser} onChange=${(event) => { add(event.target.files); event.target.value = ""; }} />
    <button type="button" onClick=${() => chooser.current.click()} title="Or drop files here, or paste them">Attach…</button>`;
}

/** The chosen files, each with its name, its size and a button that takes it away. */
export function Chosen({ files, remove }) {
  if (!files.length) return null;
  return html`<ul class="files chosen" aria-label="Files to send">${files.map((file) => html`<li key=${file}><span class="words">${file.name}</span> <span class="quiet">${bytes(file.size)}</span>
    <button type="button" class="quiet" aria-label=${`Remove ${file.name}`} onClick=${() => remove(file)}>Remove</button></li>`)}</ul>`;
}

/** The files of a message: pictures are shown, all else can be saved. */
export function Attachments({ files, connection, id }) {
  if (!files?.length) return null;
  return html`<ul class="files" aria-label="Files">${files.map((file, index) => html`<li key=${index}>
    ${file.url ? html`<a href=${file.url} rel="noreferrer noopener" target="_blank">${file.name ?? file.url}</a>`
      : PICTURES.has(file.media_type) ? html`<${Picture} file=${file} connection=${connection} id=${id} />`
      : html`<${Saved} file=${file} connection=${connection} id=${id} />`}</li>`)}</ul>`;
}

const nameOf = (file) => file.name ?? `${file.sha256.slice(0, 8)}.${file.media_type.split("/")[1]}`;

async function load(connection, session_id, file, type) {
  const { data } = await connection.read("session/attachment", { session_id, sha256: file.sha256 });
  return URL.createObjectURL(new Blob([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], { type }));
}

function Picture({ file, connection, id }) {
  const [url, setUrl] = useState(null);
  const [error, setError] = useState(null);
  const [wanted, setWanted] = useState(false);
  const place = useRef();
  useEffect(() => {
    if (file.size > SHOWN_AT_ONCE) return undefined;
    const observer = new IntersectionObserver(([entry]) => entry.isIntersecting && setWanted(true), { rootMargin: "400px" });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!wanted) return undefined;
    let left = false;
    let made = null;
    load(connection, id, file, file.media_type).then((found) => {
      made = found;
      if (left) URL.revokeObjectURL(found);
      else setUrl(found);
    }, (problem) => left || setError(problem));
    return () => {
      left = true;
      if (made) URL.revokeObjectURL(made);
    };
  }, [wanted]);
  const name = nameOf(file);
  return html`<figure ref=${place}>
    ${url ? html`<img src=${url} alt=${name} />`
      : error ? html`<p class="notice bad">${name} cannot be shown: ${error.message}</p>`
      : wanted ? html`<p class="quiet" role="status">Loading ${name}…</p>`
      : html`<button class="link" onClick=${() => setWanted(true)}>Show ${name}</button>`}
    <figcaption><${Saved} file=${file} connection=${connection} id=${id} /></figcaption>
  </figure>`;
}

function Saved({ file, connection, id }) {
  const [error, setError] = useState(null);
  const name = nameOf(file);
  const save = async () => {
    try {
      const url = await load(connection, id, file, "application/octet-stream");
      Object.assign(document.createElement("a"), { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<button type="button" class="link" onClick=${save}>Save ${name}</button> <span class="quiet">${bytes(file.size)}</span>${error && html` <span class="bad" role="alert">${error.message}</span>`}`;
}
