// Requests to the server, and its event streams. All addresses are relative, as a proxy may serve the page below any path.
import { signal, useEffect, useRef, useState } from "./lib.js";

class ApiError extends Error {
  constructor(error, remedy, status) {
    super(error);
    this.remedy = remedy;
    this.status = status;
  }
}

/** Return an address below `api/`. Parameters that are null or "" are omitted; a list gives one parameter per item. */
function address(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const item of Array.isArray(value) ? value : [value])
      if (item !== null && item !== undefined && item !== "") parameters.append(name, item);
  const text = parameters.toString();
  return `api/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Return the response to a request; raises ApiError if there is none. */
async function responseTo(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not respond.", "Start `hopsml ui` or `hopsml server` again, and open the address that it prints.", 0);
  }
}

async function request(url, options) {
  const answer = await responseTo(url, options);
  if (answer.status === 204) return null;
  const content = await answer.json().catch((error) => {
    if (error.name === "AbortError" || answer.ok) throw error;
    return {}; // error page of a proxy, which is not JSON
  });
  if (!answer.ok) throw new ApiError(content.error || `status ${answer.status}`, content.remedy || "", answer.status);
  return content;
}

const get = (url, abort) => request(url, { signal: abort, headers: { accept: "application/json" } });

/** Send a change; raises ApiError if it is refused, as `get` does. */
const send = (url, content = {}, method = "POST") =>
  request(url, { method, headers: { accept: "application/json", "content-type": "application/json" }, body: JSON.stringify(content) });

const connection = signal("connecting"); // connecting | live | away
const listeners = new Set();

function notify(kind, run) {
  for (const listener of [...listeners]) listener(kind, run);
}

/** Reload all displayed data at once, as after a change without an event. */
const refresh = () => notify("hello", "");

const TICK_MS = 5000, SLEPT_MS = 20_000, BROKEN_MS = 5000;
const streams = new Set(); // functions that reopen the streams

/**
 * Keep an event stream open: `at()` returns its address, `on` has a handler per kind of event, `onAway` is called when it breaks. The
 * browser reconnects, and sends the id of the last event. Only a visible tab has a stream: a browser opens at most six connections
 * to a server, and hidden tabs would use them all.
 */
function follow(at, on, onAway = () => {}) {
  let source = null, timer = null;
  const close = () => { clearTimeout(timer); source?.close(); source = null; };
  const open = () => {
    close();
    if (document.hidden) return;
    source = new EventSource(at());
    for (const [kind, act] of Object.entries(on)) source.addEventListener(kind, act);
    source.onerror = () => {
      onAway();
      if (source?.readyState === EventSource.CLOSED) timer = setTimeout(open, BROKEN_MS);
    };
  };
  streams.add(open);
  open();
  return { again: open, end: () => { streams.delete(open); close(); } };
}

/** Reopen all streams: after a suspension they look open, but receive nothing, and no error occurs. */
function wake() {
  for (const open of [...streams]) open();
}

let ticked = Date.now();
setInterval(() => {
  const slept = Date.now() - ticked > SLEPT_MS;
  ticked = Date.now();
  if (slept && !document.hidden) wake();
}, TICK_MS);
addEventListener("online", wake);
addEventListener("pageshow", (event) => { if (event.persisted) wake(); });
document.addEventListener("visibilitychange", wake);

/** Open the event stream of runs. */
function listen() {
  let last = "";
  const onEvent = (event) => {
    last = event.lastEventId;
    notify(event.type, JSON.parse(event.data).run);
  };
  const hello = () => {
    connection.value = "live";
    notify("hello", "");
  };
  follow(() => address(["events"], { last }), { hello, run: onEvent, gone: onEvent, grew: onEvent, reset: onEvent }, () => { connection.value = "away"; });
}

const AGAIN_MS = 1000; // at least, between two requests to the same address

/**
 * Request an address, and return {data, error}. It is requested again after an event for which `concerns(kind, run)` is true. The
 * previous data of the same address stays until newer data arrives.
 */
function useData(url, concerns) {
  const [state, set] = useState({ url: null, data: null, error: null });
  const latest = useRef(concerns);
  latest.current = concerns;
  useEffect(() => {
    if (!url) return undefined;
    const abort = new AbortController();
    let timer = null, busy = false, again = false;
    const load = async () => {
      timer = null;
      if (busy) { again = true; return; }
      busy = true;
      try {
        const data = await get(url, abort.signal);
        set({ url, data, error: null });
      } catch (error) {
        if (error.name !== "AbortError") set((old) => ({ url, data: old.url === url ? old.data : null, error }));
      }
      busy = false;
      if (again && !abort.signal.aborted) { again = false; timer = setTimeout(load, AGAIN_MS); }
    };
    const onEvent = (kind, run) => {
      if (timer === null && latest.current && (kind === "hello" || kind === "reset" || latest.current(kind, run)))
        timer = setTimeout(load, kind === "hello" ? 0 : AGAIN_MS);
    };
    listeners.add(onEvent);
    load();
    return () => { abort.abort(); clearTimeout(timer); listeners.delete(onEvent); };
  }, [url]);
  return { data: state.data, error: state.error, stale: state.url !== url };
}

export { ApiError, address, connection, follow, get, listen, listeners, refresh, responseTo, send, useData };
