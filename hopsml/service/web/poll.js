// Polling of the job service: after each event of a job, and at intervals for data without events.
import { useEffect, useRef, useState } from "./lib.js";
import { address, follow } from "./api.js";

const VISIBLE_MS = 2000, HIDDEN_MS = 10_000; // polling interval in a visible and in a hidden tab
const WITH_EVENTS_MS = 15_000; // interval if events arrive: free slots and reasons for waiting change without an event
const BATCH_MS = 200; // from an event to the request: events come in groups

const listeners = new Set();
let stream = null, last = "";

/** Call `onJob(id)` for each event of a job, "" for any job; return a function that stops it. All listeners share one stream. */
function listenToJobs(onJob) {
  const notify = (id) => { for (const listener of [...listeners]) listener(id); };
  listeners.add(onJob);
  stream ??= follow(() => address(["v1", "jobs", "events"], { last }), {
    hello: () => notify(""),
    job: (event) => { last = event.lastEventId; notify(JSON.parse(event.data).job); },
    reset: (event) => { last = event.lastEventId; notify(""); },
  }, () => notify(""));
  return () => {
    listeners.delete(onJob);
    if (!listeners.size) { stream?.end(); stream = null; last = ""; }
  };
}

/**
 * Call `fetchData(abort)` repeatedly, and return {data, error, again}; `again()` calls it at once, as after a change. Polling restarts
 * with another `key`, and ends with the page, after status 404, and when `isOver(data)`. The previous data stays until newer data arrives.
 * `concerns(id)`: true if a change of this job changes the data; null if no job does.
 */
function usePolled(fetchData, key, isOver = () => false, concerns = null) {
  const [state, set] = useState({ data: null, error: null });
  const latest = useRef(null), now = useRef(null);
  latest.current = { fetchData, isOver, concerns };
  useEffect(() => {
    const abort = new AbortController();
    let timer = null, busy = false, isRequested = false, stopListening = () => {};
    const poll = async () => {
      clearTimeout(timer);
      timer = null;
      if (busy) { isRequested = true; return; }
      busy = true;
      let over = false;
      try {
        const data = await latest.current.fetchData(abort.signal);
        over = latest.current.isOver(data);
        if (!abort.signal.aborted) set({ data, error: null });
      } catch (error) {
        over = error.status === 404;
        if (!abort.signal.aborted) set((old) => ({ data: old.data, error }));
      }
      busy = false;
      if (abort.signal.aborted) return;
      if (over) stopListening(); // also if an event arrived during the request: final states do not change
      else if (isRequested) { isRequested = false; poll(); }
      else timer = setTimeout(poll, document.hidden ? HIDDEN_MS : concerns ? WITH_EVENTS_MS : VISIBLE_MS);
    };
    const onJob = (id) => {
      if (id && !latest.current.concerns(id)) return;
      if (busy) isRequested = true;
      else { clearTimeout(timer); timer = setTimeout(poll, BATCH_MS); }
    };
    const onVisible = () => { if (timer !== null && !document.hidden) poll(); };
    document.addEventListener("visibilitychange", onVisible);
    now.current = poll;
    poll();
    if (concerns) stopListening = listenToJobs(onJob);
    return () => { stopListening(); abort.abort(); clearTimeout(timer); document.removeEventListener("visibilitychange", onVisible); };
  }, [key]);
  return { ...state, again: () => now.current?.() };
}

export { usePolled };
