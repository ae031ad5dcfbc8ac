// A search: best trial, progress of the best value, configurations, and all trials.
import { html, useMemo, useState } from "../lib.js";
import { address, useData } from "../api.js";
import { count, duration, number } from "../format.js";
import { link } from "../route.js";
import { Chart } from "./chart.js";
import { Brushes, Parallel, axesOf, passes } from "./parallel.js";
import { Empty, PropertyList, SortHead, State, ErrorMessage } from "./components.js";

const SHOWN = 500; // rows of the table

function Best({ search }) {
  const best = search.trials.find((trial) => trial.number === search.best);
  const counts = Object.entries(search.counts).filter(([, value]) => value).map(([name, value]) => `${count(value)} ${name}`).join(", ");
  return html`<${PropertyList} first=${1} properties=${[
    ["Best trial", best ? `${number(best.number)}: ${search.metric} ${number(best.value)} (${search.direction})` : "none yet"],
    ...Object.entries(best?.config ?? {}).map(([name, value]) => [name, typeof value === "number" ? number(value) : String(value)]),
    ["Trials", `${counts || "none"}${search.planned === null ? "" : ` of ${count(search.planned)}`}`],
    ["Searcher", search.searcher], ["Stopper", search.stopper],
  ]} />`;
}

function BestSoFar({ search }) {
  const curves = useMemo(() => {
    const over = search.trials.filter((trial) => typeof trial.value === "number");
    const steps = [...search.improvements];
    const latest = search.trials.at(-1)?.number ?? 0;
    if (steps.length && steps.at(-1)[0] < latest) steps.push([latest, steps.at(-1)[1]]);
    return [
      { label: "trials", colour: 8, points: true, x: over.map((trial) => trial.number), y: over.map((trial) => trial.value) },
      { label: "best so far", colour: 1, stepped: true, x: steps.map(([at]) => at), y: steps.map(([, value]) => value) },
    ];
  }, [search]);
  return html`<figure class="card"><header><h3>Best so far</h3><span class="soft small">${search.metric} over trials</span></header>
    <${Chart} curves=${curves} height=${240} label=${`Best ${search.metric} so far, over ${search.trials.length} trials`} />
    <ul class="legend"><li><span class="key k1"></span>best so far</li><li><span class="key k8"></span>one trial</li></ul></figure>`;
}

function RungChart({ search }) {
  const most = search.trials.length || 1;
  return html`<figure class="card"><header><h3>Trials by step reached</h3></header>
    <ul class="rungs">${search.rungs.map(([step, trials]) => html`<li key=${step}><span>step ${count(step)}</span><span class="track"><span class="fill" style=${{ display: "block", width: `${(100 * trials) / most}%` }}></span></span><span class="number">${count(trials)}</span></li>`)}</ul>
    <p class="soft small">Number of trials that reached each step, for the steps at which most trials ended.</p></figure>`;
}

function Curves({ search, trials }) {
  const curves = useMemo(() => {
    const shown = trials.filter((trial) => trial.curve[0].length > 1).slice(0, 200);
    return shown.map((trial) => ({ label: `trial ${trial.number}`, colour: trial.number === search.best ? 2 : 1, faint: trial.number !== search.best, x: trial.curve[0], y: trial.curve[1] }));
  }, [search, trials]);
  if (!curves.length) return null;
  return html`<figure class="card"><header><h3>Trials over steps</h3><span class="soft small">${search.metric}</span></header><${Chart} curves=${curves} height=${240} label=${`${search.metric} of ${curves.length} trials over steps`} /></figure>`;
}

const columnValue = (trial, column) => (column.startsWith("config.") ? trial.config[column.slice(7)] : trial[column]);

function ordered(trials, sort) {
  const sign = sort.descending ? -1 : 1;
  return [...trials].sort((first, second) => {
    const a = columnValue(first, sort.column), b = columnValue(second, sort.column);
    if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
    if (b === null || b === undefined) return -1;
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  });
}

function Trials({ id, search, trials }) {
  const [sort, setSort] = useState({ column: "value", descending: search.direction !== "min" });
  const names = [...new Set(search.trials.flatMap((trial) => Object.keys(trial.config)))];
  const lineage = search.trials.some((trial) => trial.parent !== null);
  const head = (column, label, numeric = true) => html`<${SortHead} column=${column} label=${label} numeric=${numeric} sort=${sort} onSort=${setSort} />`;
  const rows = ordered(trials, sort);
  return html`<div class="stack"><div class="table-frame" tabindex="0" role="region" aria-label="Trials"><table class="cards sortable"><caption class="hidden">Trials</caption>
    <thead><tr>${head("number", "Trial")}${head("state", "State", false)}${head("value", search.metric)}${head("step", "Step")}${names.map((name) => head(`config.${name}`, name))}${head("seconds", "Duration")}${lineage && head("parent", "Parent trial")}</tr></thead>
    <tbody>${rows.slice(0, SHOWN).map((trial) => html`<tr key=${trial.number}>
      <td class="number" data-label="Trial"><a href=${link(["run", id, trial.error ? "error" : "logs"], { trial: trial.id })}>${trial.number}</a></td>
      <td data-label="State"><${State} state=${trial.state} />${trial.error && html`<span class="cause soft small" title=${trial.error}> ${trial.error.trim().split("\n").at(-1).slice(0, 80)}</span>`}</td>
      <td class="number" data-label=${search.metric}><span>${number(trial.value)}${trial.number === search.best ? html`<strong title="best trial"> ★</strong>` : ""}</span></td><td class="number" data-label="Step">${number(trial.step)}</td>
      ${names.map((name) => html`<td key=${name} class="number" data-label=${name}>${typeof trial.config[name] === "number" ? number(trial.config[name]) : String(trial.config[name] ?? "–")}</td>`)}
      <td class="number" data-label="Duration">${duration(trial.seconds)}</td>${lineage && html`<td class="number" data-label="Parent trial">${number(trial.parent)}</td>`}</tr>`)}</tbody></table></div>
    ${rows.length > SHOWN && html`<p class="soft small">Only the first ${SHOWN} of ${count(rows.length)} trials are listed.</p>`}</div>`;
}

function Search({ id }) {
  const { data: search, error } = useData(address(["runs", id, "search"]), (kind, run) => run === id);
  const [brushes, setBrushes] = useState({});
  const axes = useMemo(() => (search ? axesOf(search) : []), [search]);
  const trials = useMemo(() => (search ? search.trials.filter((trial) => passes(trial, axes, brushes)) : []), [search, axes, brushes]);
  if (!search) return error ? html`<${ErrorMessage} error=${error} />` : html`<p class="soft">Loading trials…</p>`;
  if (!search.trials.length) return html`<${Empty} title="No trial has started"><p>The first trial starts when an executor is free.</p></${Empty}>`;
  const onBrush = (name, range) => setBrushes((old) => { const next = { ...old }; if (range) next[name] = range; else delete next[name]; return next; });
  const narrowed = Object.keys(brushes).length > 0;
  return html`<div class="stack">
    <${Best} search=${search} />
    <div class="charts"><${BestSoFar} search=${search} /><${Curves} search=${search} trials=${trials} />${search.rungs.length > 1 && html`<${RungChart} search=${search} />`}</div>
    ${axes.length > 1 && html`<figure class="card"><header><h3>Configurations</h3><span class="soft small">${narrowed ? `${count(trials.length)} of ${count(search.trials.length)} trials` : "Drag along an axis to filter the trials."}</span></header>
      <${Parallel} search=${search} axes=${axes} brushes=${brushes} onBrush=${onBrush} />
      <ul class="legend"><li><span class="key k2"></span>best trial</li><li><span class="key k1"></span>best quarter</li><li><span class="key k8"></span>other trials</li>${narrowed && html`<li><button onClick=${() => setBrushes({})}>Show all trials</button></li>`}</ul>
      <${Brushes} axes=${axes} brushes=${brushes} onBrush=${onBrush} /></figure>`}
    <h2>Trials</h2>
    <${Trials} id=${id} search=${search} trials=${trials} /></div>`;
}

export { Search };
