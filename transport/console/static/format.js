// Figures and times as people read them.

const NUMBER = new Intl.NumberFormat("en");
const WHEN = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

export const count = (number) => NUMBER.format(number);
export const plural = (number, noun, many = `${noun}s`) => `${count(number)} ${number === 1 ? noun : many}`;
export const when = (time) => WHEN.format(new Date(time));
export const clock = (time) => CLOCK.format(new Date(time));
export const shortId = (id) => id.slice(-8);

export function compact(number) {
  if (number < 10_000) return count(number);
  if (number < 999_500) return `${(number / 1000).toFixed(number < 99_950 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(1)}M`;
}

/** Return a cost as dollars, with the digits that a person can use; fractions of a cent keep two. */
export function dollars(cost) {
  const number = Number(cost);
  const digits = number > 0 && number < 0.01 ? { maximumSignificantDigits: 2 } : { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  return `$${number.toLocaleString("en", digits)}`;
}

export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function ago(time, now) {
  const seconds = (now - new Date(time)) / 1000;
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} days ago`;
}

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  const unit = number < 1024 ** 2 ? 1 : number < 1024 ** 3 ? 2 : 3;
  return `${(number / 1024 ** unit).toFixed(1)} ${["KB", "MB", "GB"][unit - 1]}`;
}

/** Return labels as `a=b` pairs, and pairs as labels; a bad pair throws an error with a sentence for people. */
export const labelsText = (labels) => Object.entries(labels ?? {}).map(([name, value]) => `${name}=${value}`).join(", ");

export function labelsOf(text) {
  const pairs = text.split(",").map((each) => each.trim()).filter(Boolean);
  return Object.fromEntries(pairs.map((pair) => {
    const at = pair.indexOf("=");
    if (at < 1) throw new Error(`"${pair}" is no label: write name=value`);
    return [pair.slice(0, at).trim(), pair.slice(at + 1).trim()];
  }));
}
