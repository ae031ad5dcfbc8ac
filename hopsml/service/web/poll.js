// Looks at what tells of no change by itself: jobs, whose service has no stream of events.
import { useEffect, useRef, useState } from "./lib.js";

const SEEN_MS = 2000, HIDDEN_MS = 10_000; // between two looks, of a tab that is seen and of one that is not

/**
 * What `find(abort)` finds, again and again: {data, error, again}; `again()` looks at once, as after a change. It begins anew
 * with another `key`, ends with the page, where there is nothing, and when `isOver(data)`. What is known stays meanwhile.
 */
function usePolled(find, key, isOver = () => false) {
  const [state, set] = useState({ data: null, error: null });
  const latest = useRef(null), now = useRef(null);
  latest.current = { find, isOver };
  useEffect(() => {
    const abort = new AbortController();
    let timer = null, busy = false, asked = false;
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
      if (asked) { asked = false; look(); } else if (!over) timer = setTimeout(look, document.hidden ? HIDDEN_MS : SEEN_MS);
    };
    const onSeen = () => { if (timer !== null && !document.hidden) look(); };
    document.addEventListener("visibilitychange", onSeen);
    now.current = look;
    look();
    return () => { abort.abort(); clearTimeout(timer); document.removeEventListener("visibilitychange", onSeen); };
  }, [key]);
  return { ...state, again: () => now.current?.() };
}

export { usePolled };
