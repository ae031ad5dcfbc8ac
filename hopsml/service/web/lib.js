// What every part of the page is written with: elements from templates, state, values that tell who shows them.
import { Fragment, h, render } from "./lib/preact.js";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./lib/hooks.js";
import { signal } from "./lib/signals-core.js";
import htm from "./lib/htm.js";

const html = htm.bind(h);

/** The value of a signal; whoever calls this is drawn again when it changes. */
function useValue(source) {
  const [value, set] = useState(source.peek());
  useEffect(() => source.subscribe(set), [source]);
  return value;
}

/** A value that is taken over only when it has not changed for some milliseconds. */
function useSettled(value, wait = 250) {
  const [settled, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(value), wait);
    return () => clearTimeout(timer);
  }, [value, wait]);
  return settled;
}

/** The width of an element in pixels, as it changes. */
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

/** What this browser keeps under a name; nothing where it keeps nothing. */
const kept = {
  get(name, otherwise) {
    try { return JSON.parse(localStorage.getItem(`hopsml-${name}`)) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { localStorage.setItem(`hopsml-${name}`, JSON.stringify(value)); } catch { /* kept for this page alone */ }
  },
};

export { Fragment, html, kept, render, signal, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useSettled, useState, useValue, useWidth };
