// All runs of the project; the server filters, sorts and pages them.
import { Fragment, html, storage, useEffect, useState, useValue } from "../lib.js";
import { address, useData } from "../api.js";
import { count, duration, exactTime, number, time } from "../format.js";
import { go, link } from "../route.js";
import { selectRun, selected } from "../selected_runs.js";
import { RunNotes, NoteEditor, Views } from "../parts/run_notes.js";
import { Empty, SortHead, State, ErrorMessage } from "../parts/components.js";

const ROWS = 100;
const COLUMNS = { state: "State", metric: "Metric", seconds: "Duration", started: "Started", user: "User", workers: "Workers", verb: "Verb" };
const DEFAULT_COLUMNS = ["state", "metric", "seconds", "started", "user"];
const NUMERIC = ["metric", "seconds", "started", "workers"];
const ORDER = ["RUNNING", "FAILED", "LOST", "FINISHED", "CANCELLED"];

function took(row, now) {
  return row.seconds ?? (row.state === "RUNNING" && row.started ? Math.max(0, now - row.started) : null);
}

function Cell({ row, column, now }) {
  if (column === "state") return html`<td class="state-cell"><${State} state=${row.state} />${row.cause && html`<span class="cause" title=${row.cause}>${row.cause}</span>`}</td>`;
  if (column === "metric") return html`<td class="metric number">${row.metric_name && html`<small>${row.metric_name}</small>`}${number(row.metric)}</td>`;
  if (column === "seconds") return html`<td class="number">${duration(took(row, now))}</td>`;
  if (column === "started") return html`<td class="number started" title=${exactTime(row.started)}>${time(row.started)}</td>`;
  const [group, ...rest] = column.split(".");
  const value = rest.length ? row[group]?.[rest.join(".")] : row[column];
  return html`<td class=${`argument ${typeof value === "number" ? "number" : ""}`} title=${value}>${typeof value === "number" ? number(value) : value === undefined || value === null ? "" : String(value)}</td>`;
}

function Columns({ page, shown, change }) {
  const box = (column, label) => html`<label key=${column}><input type="checkbox" checked=${shown.includes(column)} onChange=${(e) => change(column, e.target.checked)} />${label}</label>`;
  return html`<details class="menu"><summary class="button">Columns</summary><div class="body">
    ${Object.entries(COLUMNS).map(([column, label]) => box(column, label))}
    ${page.arguments.length > 0 && html`<${Fragment}><h3>Arguments</h3>${page.arguments.slice(0, 200).map((name) => box(`arguments.${name}`, name))}</${Fragment}>`}
    ${page.metrics.length > 0 && html`<${Fragment}><h3>Results</h3>${page.metrics.slice(0, 200).map((name) => box(`metrics.${name}`, name))}</${Fragment}>`}
  </div></details>`;
}

function title(column) {
  return COLUMNS[column] ?? column.slice(column.indexOf(".") + 1);
}

function Table({ page, shown, sort, onSort, now, onNote }) {
  const ids = useValue(selected);
  const all = page.rows.length > 0 && page.rows.every((row) => ids.includes(row.id));
  return html`<div class="table-frame" tabindex="0"><table class="runs"><caption class="hidden">Runs of the project</caption>
    <thead><tr>
      <th scope="col" class="check"><input type="checkbox" aria-label="Select all runs of this page" checked=${all} onChange=${(e) => page.rows.forEach((row) => selectRun(row.id, e.target.checked))} /></th>
      <${SortHead} column="name" label="Run" sort=${sort} onSort=${onSort} />
      ${shown.map((column) => html`<${SortHead} key=${column} column=${column} label=${title(column)} numeric=${NUMERIC.includes(column) || column.startsWith("metrics.")} sort=${sort} onSort=${onSort} />`)}
    </tr></thead>
    <tbody>${page.rows.map((row) => html`<tr key=${row.id}>
      <td class="check"><input type="checkbox" aria-label=${`Select ${row.name || row.id} (${row.id})`} checked=${ids.includes(row.id)} onChange=${(e) => selectRun(row.id, e.target.checked)} /></td>
      <td class="name"><a href=${link(["run", row.id])}>${row.name || row.id}</a>${onNote && html` <button class="bare" aria-label=${`Edit note of ${row.name || row.id} (${row.id})`} data-note=${row.id} title="Edit tags and note" onClick=${() => onNote(row)}>✎</button>`}<small>${row.id}</small><${RunNotes} row=${row} /></td>
      ${shown.map((column) => html`<${Cell} key=${column} row=${row} column=${column} now=${now} />`)}
    </tr>`)}</tbody></table></div>`;
}

function NoRuns({ page }) {
  if (page.total)
    return html`<${Empty} title="No run matches the filter">
      <p>All terms must match: <code>digits state:failed lr>0.1</code> finds failed runs named digits with lr above 0.1.</p>
      <button onClick=${() => go(link(["runs"]))}>Show all ${count(page.total)} runs</button></${Empty}>`;
  return html`<${Empty} title="No runs">
    <p>Runs of this project appear here when they are started, from a notebook, a script or Airflow:</p>
    <pre tabindex="0">import hopsml${"\n"}result = hopsml.experiment.collective_all_reduce(train, args={"lr": 0.01}, num_workers=2)</pre>
    <p>If you expect runs, check <code>HOPSML_PROJECT_URL</code>, or open another project with <code>hopsml ui PROJECT_URL</code>.</p></${Empty}>`;
}

/** Return the time in seconds since 1970, updated each second if `ticking`. */
function useNow(ticking) {
  const [now, set] = useState(Date.now() / 1000);
  useEffect(() => {
    if (!ticking) return undefined;
    const timer = setInterval(() => set(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, [ticking]);
  return now;
}

function Runs({ query, user, hasNotes }) {
  const filter = query.get("filter") ?? "", offset = Number(query.get("offset") ?? 0);
  const sort = { column: query.get("sort") ?? "started", descending: query.get("order") !== "ascending" };
  const [shown, setShown] = useState(() => storage.get("columns", DEFAULT_COLUMNS));
  const [typed, setTyped] = useState(filter), [editedRow, setEditedRow] = useState(null);
  const state = { filter, sort: query.get("sort"), order: query.get("order"), offset: offset || "" };
  const navigate = (change, replace) => go(link(["runs"], { ...state, ...change }), replace);
  useEffect(() => { setTyped(filter); }, [filter]);
  useEffect(() => {
    const timer = setTimeout(() => { if (typed !== filter) navigate({ filter: typed, offset: "" }, true); }, 200);
    return () => clearTimeout(timer);
  }, [typed]);
  const url = address(["runs"], { filter, sort: sort.column, order: sort.descending ? "descending" : "ascending", offset, limit: ROWS });
  const { data: page, error } = useData(url, (kind) => kind !== "grew");
  const now = useNow(Boolean(page?.states.RUNNING));
  const change = (column, isShown) => {
    const next = isShown ? [...shown, column] : shown.filter((other) => other !== column);
    storage.set("columns", next);
    setShown(next);
  };
  const onSort = ({ column, descending }) => navigate({ sort: column, order: descending ? "descending" : "ascending", offset: "" });
  const term = (name) => `state:${name.toLowerCase()}`;
  const toggle = (name) => {
    const terms = filter.split(/\s+/).filter((each) => each && !/^state:\w+$/.test(each));
    navigate({ filter: [...terms, ...(filter.includes(term(name)) ? [] : [term(name)])].join(" "), offset: "" });
  };
  const closeNote = () => { const { id } = editedRow; setEditedRow(null); setTimeout(() => document.querySelector(`[data-note="${CSS.escape(id)}"]`)?.focus(), 0); };
  const asView = new URLSearchParams(Object.entries({ filter, sort: query.get("sort") ?? "", order: query.get("order") ?? "" }).filter(([, value]) => value)).toString();
  return html`<h1>Runs</h1>
    <div class="tools">
      <input class="wide" type="search" placeholder=${`Filter: digits  state:failed  user:ana  lr>0.1  accuracy>=0.9${hasNotes ? "  tag:good" : ""}`} aria-label="Filter runs" value=${typed} onInput=${(e) => setTyped(e.target.value)} />
      ${page && html`<${Columns} page=${page} shown=${shown} change=${change} />`}
      ${hasNotes && html`<${Views} query=${asView} user=${user} />`}
      <${CompareButton} />
    </div>
    ${editedRow && html`<${NoteEditor} key=${editedRow.id} row=${editedRow} onDone=${closeNote} />`}
    ${page && page.total > 0 && html`<div class="states" role="group" aria-label="Filter by state">${ORDER.filter((name) => page.states[name]).map((name) =>
      html`<button key=${name} aria-pressed=${filter.includes(term(name))} onClick=${() => toggle(name)}><${State} state=${name} /> <span class="number">${count(page.states[name])}</span></button>`)}</div>`}
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!page && !error && html`<p class="soft">Loading runs…</p>`}
    ${page && (page.rows.length ? html`<${Table} page=${page} shown=${shown} sort=${sort} onSort=${onSort} now=${now} onNote=${hasNotes ? setEditedRow : null} />` : html`<${NoRuns} page=${page} />`)}
    ${page && page.found > 0 && html`<div class="pager" aria-live="polite">
      <span>${count(offset + 1)}–${count(offset + page.rows.length)} of ${count(page.found)}${page.found < page.total ? `, ${count(page.total)} in total` : ""}</span>
      <button disabled=${offset === 0} onClick=${() => navigate({ offset: Math.max(0, offset - ROWS) || "" })}>Previous page</button>
      <button disabled=${offset + page.rows.length >= page.found} onClick=${() => navigate({ offset: offset + ROWS })}>Next page</button></div>`}`;
}

function CompareButton() {
  const ids = useValue(selected);
  return html`<${Fragment}>${ids.length > 0 && html`<button onClick=${() => { selected.value = []; }}>Clear selection</button>`}
    <a class=${`button ${ids.length > 1 ? "strong" : ""}`} href=${link(["compare"], { run: ids })}>Compare ${ids.length || ""}</a></${Fragment}>`;
}

export { Runs, took, useNow };
