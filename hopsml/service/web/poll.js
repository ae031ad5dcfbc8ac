// Looks at what the service knows: when it tells of a job, and now and then, as for what it tells nothing of.
import { useEffect, useRef, useState } from "./lib.js";
import { address, follow } from "./api.js";

const SEEN_MS = 2000, HIDDEN_MS = 10_000; // between two looks, of a tab that is seen and of one that is not
const TOLD_MS = 15_000; // where events tell of jobs: what is free, and why one waits, changes by itself, too
const SOON_MS = 200; // from an event to the look: others come with it

const listeners = new Set();
let stream = null, last = "";

/** Hear of jobs: `heard(id)`, "" for any of them; returns what ends it. One stream for all that listen, while somebody does. */
function hearJobs(heard) {
  const tell = (id) => { for (const one of [...listeners]) one(id); };
  listeners.add(heard);
  stream ??= follow(() => address(["v1", "jobs", "events"], { last }), {
    hello: () => tell(""),
    job: (event) => { last = event.lastEventId; tell(JSON.parse(event.data).job); },
    reset: (event) => { last = event.lastEventId; tell(""); },
  }, () => tell(""));
  return () => {
    listeners.delete(heard);
    if (!listeners.size) { stream?.end(); stream = null; last = ""; }
  };
}

/**
 * What `find(abort)` finds, again and again: {data, error, again}; `again()` looks at once, as after a change. It begins anew
 * with another `key`, ends with the page, where there is nothing, and when `isOver(data)`. What is known stays meanwhile.
 * `hears(id)`: whether it is of a job, and is looked at when that changes.
 */
function usePolled(find, key, isOver = () => false, hears = null) {
  const [state, set] = useState({ data: null, error: null });
  const latest = useRef(null), now = useRef(null);
  latest.current = { find, isOver, hears };
  useEffect(() => {
    const abort = new AbortController();
    let timer = null, busy = false, asked = false, deaf = () => {};
    const look = async () => {
      clearTimeout(timer);
      timer = null;
      if (busy) { asked = true; return; }
      busy = true;
      let over = false;
      try {
        const data = await latest.current.find(abort.signal);
        over = latest.current.isOver(data);
        if (!abort.signal.aborted) set({ data, error: null });
      } catch (error) {
        over = error.status === 404;
        if (!abort.signal.aborted) set((old) => ({ data: old.data, error }));
      }
      busy = false;
      if (abort.signal.aborted) return;
      if (over) deaf(); // also where an event came meanwhile: the end stays the end
      else if (asked) { asked = false; look(); }
      else timer = setTimeout(look, document.hidden ? HIDDEN_MS : hears ? TOLD_MS : SEEN_MS);
    };
    const heard = (id) => {
      if (id && !latest.current.hears(id)) return;
      if (busy) asked = true;
      else { clearTimeout(timer); timer = setTimeout(look, SOON_MS); }
    };
    const onSeen = () => { if (timer !== null && !document.hidden) look(); };
    document.addEventListener("visibilitychange", onSeen);
    now.current = look;
    look();
    if (hears) deaf = hearJobs(heard);
    return () => { deaf(); abort.abort(); clearTimeout(timer); document.removeEventListener("visibilitychange", onSeen); };
  }, [key]);
  return { ...state, again: () => now.current?.() };
}

export { usePolled };
