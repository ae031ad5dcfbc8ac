// Virtual list: millions of rows of the same height, of which only the visible ones are elements.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";

const MAX_HEIGHT = 8_000_000; // pixels that every browser can scroll; for more rows the scroll position is scaled
const OVERSCAN = 10; // rows rendered above and below the visible ones

/**
 * `draw(number)` returns a row; `seen(first, last)` is called with the visible range. `follow`: stay at the end; `onRelease` is
 * called when the user scrolls away from it. `at`: {row} to scroll to, a new object each time. `number`: meaning of the number
 * at the beginning of each row, such as "rank".
 */
function Rows({ total, height, draw, seen, follow, onRelease, at, label, number }) {
  const box = useRef(null), moved = useRef(0);
  const [first, setFirst] = useState(0);
  const [view, setView] = useState(400);
  const space = Math.min(MAX_HEIGHT, total * height), fits = Math.max(1, Math.floor(view / height));
  const scaled = total * height > MAX_HEIGHT;
  const range = Math.max(1, space - view), last = Math.max(0, total - fits);
  const topOf = (row) => (scaled ? (row / Math.max(1, last)) * range : row * height);
  const rowAt = (top) => (scaled ? Math.round((top / range) * last) : Math.floor(top / height));
  const scrollTo = (row) => {
    const wanted = Math.max(0, Math.min(last, row));
    moved.current += 1;
    box.current.scrollTop = topOf(wanted);
    setFirst(wanted);
    requestAnimationFrame(() => { moved.current -= 1; });
  };
  useLayoutEffect(() => {
    const measure = () => box.current && setView(box.current.clientHeight);
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    measure();
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => { if (follow) scrollTo(last); }, [follow, total, view]);
  useLayoutEffect(() => { if (at) scrollTo(at.row - Math.floor(fits / 2)); }, [at]);
  const begin = Math.max(0, first - OVERSCAN), end = Math.min(total, first + fits + OVERSCAN);
  useEffect(() => { if (end > begin) seen(begin, end); }, [begin, end]);
  const onScroll = () => {
    if (moved.current) return;
    const row = rowAt(box.current.scrollTop);
    setFirst(row);
    if (follow && row < last - 1) onRelease();
  };
  const onWheel = (event) => { // scaled, one notch of the wheel would be thousands of rows
    if (!scaled || event.ctrlKey) return;
    event.preventDefault();
    if (event.deltaY < 0) onRelease();
    scrollTo(first + Math.round(event.deltaY / height));
  };
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: fits, PageUp: -fits }[event.key];
    const target = step ? first + step : event.key === "Home" ? 0 : event.key === "End" ? last : null;
    if (target === null) return;
    event.preventDefault();
    if (target < first) onRelease();
    scrollTo(target);
  };
  const rows = [];
  for (let row = begin; row < end; row += 1) rows.push(draw(row));
  const offset = scaled ? (box.current?.scrollTop ?? 0) - (first - begin) * height : begin * height;
  return html`<div class="log-frame"><div class="log-head" aria-hidden="true"><span class="where">${number}</span></div><div class="log" ref=${box} tabindex="0" role="region" aria-label=${`${label}, each line with its ${number}`} onScroll=${onScroll} onWheel=${onWheel} onKeyDown=${onKey}>
    <div class="space" style=${{ height: `${space}px` }}><div class="rows" style=${{ top: `${Math.max(0, offset)}px` }}>${rows}</div></div></div></div>`;
}

export { Rows };
