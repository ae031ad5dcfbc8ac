// Where the page stands: the part of its address after "#", so that no server and no proxy has to know of it.
import { signal } from "./lib.js";

/** "#/run/abc/logs?rank=1" as {path: ["run", "abc", "logs"], query: URLSearchParams}. */
function parsed(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { path: parts, query: new URLSearchParams(query) };
}

const route = signal(parsed(location.hash));
addEventListener("hashchange", () => { route.value = parsed(location.hash); });

/** The link to a place of the page; empty values of the query are left out, a list gives one entry each. */
function link(path, query = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value]) if (one !== "" && one !== null && one !== undefined) found.append(name, one);
  const text = found.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Go to a place; `replace`: without an entry in the history, as for every letter of a filter. */
function go(target, replace = false) {
  if (replace) {
    history.replaceState(null, "", target);
    route.value = parsed(location.hash);
  } else location.hash = target;
}

export { go, link, route };
