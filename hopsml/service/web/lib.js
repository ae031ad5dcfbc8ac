// Shared basis of all modules: element templates, state hooks, signals and browser storage.
import { Fragment, h, render } from "./lib/preact.js";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./lib/hooks.js";
import { signal } from "./lib/signals-core.js";
import htm from "./lib/htm.js";

const html = htm.bind(h);

/** Return the value of a signal; the calling component is rendered again when it changes. */
function useValue(source) {
  const [value, set] = useState(source.peek());
  useEffect(() => source.subscribe(set), [source]);
  return value;
}

/** Return a value with a delay: only after it has not changed for `wait` milliseconds. */
function useDebounced(value, wait = 250) {
  const [settled, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(value), wait);
    return () => clearTimeout(timer);
  }, [value, wait]);
  return settled;
}

/** Return the current width of an element in pixels. */
function useWidth(ref) {
  const [width, set] = useState(0);
  useLayoutEffect(() => {
    set(ref.current.clientWidth);
    const observer = new ResizeObserver(() => ref.current && set(ref.current.clientWidth));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/** Values in the browser's local storage; without one they are valid for this page only. */
const storage = {
  get(name, fallback) {
    try { return JSON.parse(localStorage.getItem(`hopsml-${name}`)) ?? fallback; } catch { return fallback; }
  },
  set(name, value) {
    try { localStorage.setItem(`hopsml-${name}`, JSON.stringify(value)); } catch { /* storage is disabled */ }
  },
};

export { Fragment, html, storage, render, signal, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useDebounced, useState, useValue, useWidth };
