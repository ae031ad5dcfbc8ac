// Routes of the page: in the part of its address after "#", which servers and proxies do not receive.
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

/** Return the link to a page; empty parameters are omitted, a list gives one parameter per item. */
function link(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const item of Array.isArray(value) ? value : [value]) if (item !== "" && item !== null && item !== undefined) parameters.append(name, item);
  const text = parameters.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Open a page; `replace`: without an entry in the history, as for each letter of a filter. */
function go(target, replace = false) {
  if (replace) {
    history.replaceState(null, "", target);
    route.value = parsed(location.hash);
  } else location.hash = target;
}

export { go, link, route };
