// Components that all pages use.
import { html, useState } from "../lib.js";

/** State of a run, job, worker or trial: a word, and a mark whose shape differs by state. */
function State({ state }) {
  const known = /^[A-Za-z]+$/.test(state) ? state : "WAITING";
  return html`<span class=${`state ${known}`}>${String(state).toLowerCase()}</span>`;
}

/** Error message with its remedy. */
function ErrorMessage({ error }) {
  return html`<div class="error-message" role="alert"><strong>${error.message}</strong>${error.remedy && html`<p class="soft">${error.remedy}</p>`}</div>`;
}

/** Empty state: the reason as title, and what to do as content. */
function Empty({ title, children }) {
  return html`<section class="empty"><h2>${title}</h2>${children}</section>`;
}

/** Column header that sorts the table; `sort`: {column, descending}. */
function SortHead({ column, label, sort, onSort, numeric, title }) {
  const isSorted = sort.column === column;
  return html`<th scope="col" class=${numeric ? "number" : ""} aria-sort=${isSorted ? (sort.descending ? "descending" : "ascending") : undefined}>
    <button class="sort" title=${title} onClick=${() => onSort({ column, descending: isSorted ? !sort.descending : numeric })}>${label}</button></th>`;
}

/** List of [name, value]; entries without a value are omitted, the first `first` ones are large. */
function PropertyList({ properties, first }) {
  return html`<dl class="properties">${properties.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([title, value], at) =>
    html`<div key=${title} class=${first && at < first ? "first" : ""}><dt>${title}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Input that reports its value with Enter or when it loses focus; a rendering of the page does not change what is being typed. */
function TextField({ value, onCommit, ...rest }) {
  const [typed, set] = useState({ text: value, from: value }); // not reset in an effect, which would run late and erase typed text
  return html`<input ...${rest} value=${typed.from === value ? typed.text : value} onInput=${(e) => set({ text: e.target.value, from: value })} onChange=${(e) => onCommit(e.target.value)} />`;
}

/** Small curve without axes. */
function Spark({ values, label }) {
  const known = values.filter((value) => typeof value === "number");
  if (known.length < 2) return null;
  const low = Math.min(...known), high = Math.max(...known), range = high - low || 1;
  const points = known.map((value, at) => `${((at / (known.length - 1)) * 96).toFixed(1)},${(20 - ((value - low) / range) * 18).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 96 22" role="img" aria-label=${label}><polyline points=${points.join(" ")} /></svg>`;
}

export { Empty, PropertyList, SortHead, Spark, State, ErrorMessage, TextField };
