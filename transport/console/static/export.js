// The whole history of a session, and files made of it.

const PAGE = 1000;

/** Return the messages and compactions of finished turns, oldest first. */
export async function transcript(connection, session_id) {
  const found = { messages: [], compactions: [], total: 0 };
  for (let offset = 0, total = 1; offset < total; offset += PAGE) {
    const page = await connection.read("session/history", { session_id, offset, limit: PAGE });
    found.messages.push(...page.messages);
    found.compactions.push(...page.compactions);
    found.total = total = page.total;
  }
  return found;
}

export function asMarkdown(title, { messages }) {
  const parts = [`# ${title}`];
  for (const { message, created_at } of messages) {
    if (message.role === "assistant") parts.push(`## Model\n\n*${created_at}*`, ...(message.blocks ?? []).map(blockText), dataText(message.structured_output));
    else if (message.role === "tool_results") parts.push(...message.results.flatMap((result) => [`**Result of ${result.tool_use_id}**\n\n${fenced(result.content)}`, filesText(result.attachments)]));
    else parts.push(`## ${message.role[0].toUpperCase()}${message.role.slice(1)}\n\n*${created_at}*`, message.content, filesText(message.attachments));
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

function blockText(block) {
  if (block.type === "text") return block.text;
  if (block.type === "reasoning") return block.text && block.text.split("\n").map((line) => `> ${line}`).join("\n");
  if (block.type === "tool_use") return `**Call of ${block.name}** (${block.id})\n\n${fenced(JSON.stringify(block.args ?? {}, null, 2), "json")}`;
  if (block.type === "file") return filesText([block.file]);
  return "";
}

const dataText = (data) => data !== undefined && `**The answer as data**\n\n${fenced(JSON.stringify(data, null, 2), "json")}`;

/** The files of a message: the type, the name, and the hash under which the gateway has the bytes. */
function filesText(files = []) {
  const plain = (name) => `\`${name.replace(/[`\s]+/g, " ")}\``;
  return files.map((file) => `- File ${file.name ? `${plain(file.name)}, ` : ""}${file.media_type}, ${file.url ? plain(file.url) : `${file.size} bytes, SHA-256 \`${file.sha256}\``}`).join("\n");
}

function fenced(text, language = "") {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

/** Give the person a file. */
export function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
