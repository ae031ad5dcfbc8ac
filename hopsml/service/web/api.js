// Asks the server, and hears from it what has changed. All addresses are relative: the page may stand below any path.
import { signal, useEffect, useRef, useState } from "./lib.js";

class ApiError extends Error {
  constructor(error, remedy, status) {
    super(error);
    this.remedy = remedy;
    this.status = status;
  }
}

/** The address of something below `api/`. Values that are null or "" are left out; a list gives one parameter each. */
function address(path, query = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") found.append(name, one);
  const text = found.toString();
  return `api/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

async function answered(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer", "start `hopsml ui`, or `hopsml server`, again and open the address that it prints", 0);
  }
  if (answer.status === 204) return null;
  const content = await answer.json().catch((error) => {
    if (error.name === "AbortError" || answer.ok) throw error;
    return {}; // an error of a proxy on the way, which is no JSON
  });
  if (!answer.ok) throw new ApiError(content.error || `status ${answer.status}`, content.remedy || "", answer.status);
  return content;
}

const get = (url, abort) => answered(url, { signal: abort, headers: { accept: "application/json" } });

/** Ask for a change; what is refused is an ApiError, as of `get`. */
const send = (url, content = {}, method = "POST") =>
  answered(url, { method, headers: { accept: "application/json", "content-type": "application/json" }, body: JSON.stringify(content) });

const connection = signal("connecting"); // connecting | live | away
const listeners = new Set();

function tell(kind, run) {
  for (const listener of [...listeners]) listener(kind, run);
}

/** Let all that is shown be asked again at once, as after a change that no event tells of. */
const refresh = () => tell("hello", "");

const TICK_MS = 5000, SLEPT_MS = 20_000, BROKEN_MS = 5000;
const streams = new Set(); // what opens each of them anew

/**
 * Keep a stream of events open: `at()` is its address, `on` what is done by kind of event, `onAway` when it breaks. The browser
 * opens it again by itself, and says how far it had come. Only a tab that is seen has it: a browser has six connections for
 * one server, and those of hidden tabs would take them all.
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

/** What has slept has connections that only look open: nothing comes on them, and nobody says so. */
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

/** Begin to hear of runs. */
function listen() {
  let last = "";
  const heard = (event) => {
    last = event.lastEventId;
    tell(event.type, JSON.parse(event.data).run);
  };
  const hello = () => {
    connection.value = "live";
    tell("hello", "");
  };
  follow(() => address(["events"], { last }), { hello, run: heard, gone: heard, grew: heard, reset: heard }, () => { connection.value = "away"; });
}

const AGAIN_MS = 1000; // between two looks at the same thing

/**
 * What an address answers: {data, error}. It is asked again when an event concerns it: `concerns(kind, run)`.
 * What is known stays while something newer of the same address is on its way.
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
    const heard = (kind, run) => {
      if (timer === null && latest.current && (kind === "hello" || kind === "reset" || latest.current(kind, run)))
        timer = setTimeout(load, kind === "hello" ? 0 : AGAIN_MS);
    };
    listeners.add(heard);
    load();
    return () => { abort.abort(); clearTimeout(timer); listeners.delete(heard); };
  }, [url]);
  return { data: state.data, error: state.error, stale: state.url !== url };
}

export { address, connection, follow, get, listen, listeners, refresh, send, useData };
