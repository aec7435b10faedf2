// The place in the console, which the address after # names: `#/`, `#/session/ID`, `#/session/ID/context`, `#/memory`.
import { useLayoutEffect, useState } from "./vendor/preact.js";

/** Return a part of the address; one that is not encoded well stays as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

export function useRoute() {
  const [route, setRoute] = useState(read);
  useLayoutEffect(() => {
    const moved = () => setRoute(read());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return route;
}

export const linkTo = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** The list of sessions with a filter. */
export const linkToList = (filter) => `#/?${new URLSearchParams(filter)}`;

export function go(...parts) {
  location.hash = linkTo(...parts);
}

/** Change the query of the place without a step in the browser's history; empty values are left out. */
export function putQuery(values) {
  const [path] = location.hash.replace(/^#/, "").split("?");
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  history.replaceState(null, "", `#${path || "/"}${query.size ? `?${query}` : ""}`);
}
