// Small things that stand on every page.
import { html, useState } from "../lib.js";

/** The state of a run, a worker or a trial: its word, and a mark of its own shape. */
function State({ state }) {
  const known = /^[A-Za-z]+$/.test(state) ? state : "WAITING";
  return html`<span class=${`state ${known}`}>${String(state).toLowerCase()}</span>`;
}

/** What is wrong, and what helps. */
function Trouble({ error }) {
  return html`<div class="trouble" role="alert"><strong>${error.message}</strong>${error.remedy && html`<p class="soft">${error.remedy}</p>`}</div>`;
}

/** Nothing to show: why, and what to do about it. */
function Empty({ title, children }) {
  return html`<section class="empty"><h2>${title}</h2>${children}</section>`;
}

/** A heading that sorts by its column; `sort`: {column, descending}. */
function SortHead({ column, label, sort, onSort, numeric, title }) {
  const isIt = sort.column === column;
  return html`<th scope="col" class=${numeric ? "number" : ""} aria-sort=${isIt ? (sort.descending ? "descending" : "ascending") : undefined}>
    <button class="sort" title=${title} onClick=${() => onSort({ column, descending: isIt ? !sort.descending : numeric })}>${label}</button></th>`;
}

/** Title and value of a list of facts; what has no value is left out. */
function Facts({ facts, first }) {
  return html`<dl class="facts">${facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([title, value], at) =>
    html`<div key=${title} class=${first && at < first ? "first" : ""}><dt>${title}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A field whose text counts once it is finished: news that draw the page anew meanwhile leave what is being typed. */
function Typed({ value, onEnd, ...rest }) {
  const [typed, set] = useState({ text: value, from: value }); // no effect: it would run late, and erase what was typed before it
  return html`<input ...${rest} value=${typed.from === value ? typed.text : value} onInput=${(e) => set({ text: e.target.value, from: value })} onChange=${(e) => onEnd(e.target.value)} />`;
}

/** A small curve without axes. */
function Spark({ values, label }) {
  const known = values.filter((value) => typeof value === "number");
  if (known.length < 2) return null;
  const low = Math.min(...known), high = Math.max(...known), range = high - low || 1;
  const points = known.map((value, at) => `${((at / (known.length - 1)) * 96).toFixed(1)},${(20 - ((value - low) / range) * 18).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 96 22" role="img" aria-label=${label}><polyline points=${points.join(" ")} /></svg>`;
}

export { Empty, Facts, SortHead, Spark, State, Trouble, Typed };
