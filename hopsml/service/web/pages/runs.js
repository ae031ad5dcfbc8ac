// All runs of the project: filtered, sorted and paged by the server.
import { Fragment, html, kept, useEffect, useState, useValue } from "../lib.js";
import { address, useData } from "../api.js";
import { count, duration, exactTime, number, time } from "../format.js";
import { go, link } from "../route.js";
import { choose, chosen } from "../chosen.js";
import { Noted, NoteEditor, Views } from "../parts/notes.js";
import { Empty, SortHead, State, Trouble } from "../parts/small.js";

const ROWS = 100;
const COLUMNS = { state: "State", metric: "Metric", seconds: "Took", started: "Started", user: "User", workers: "Workers", verb: "Verb" };
const USUAL = ["state", "metric", "seconds", "started", "user"];
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
  const ids = useValue(chosen);
  const all = page.rows.length > 0 && page.rows.every((row) => ids.includes(row.id));
  return html`<div class="sheet" tabindex="0"><table class="runs"><caption class="hidden">Runs of the project</caption>
    <thead><tr>
      <th scope="col" class="check"><input type="checkbox" aria-label="Choose all runs of this page" checked=${all} onChange=${(e) => page.rows.forEach((row) => choose(row.id, e.target.checked))} /></th>
      <${SortHead} column="name" label="Run" sort=${sort} onSort=${onSort} />
      ${shown.map((column) => html`<${SortHead} key=${column} column=${column} label=${title(column)} numeric=${NUMERIC.includes(column) || column.startsWith("metrics.")} sort=${sort} onSort=${onSort} />`)}
    </tr></thead>
    <tbody>${page.rows.map((row) => html`<tr key=${row.id}>
      <td class="check"><input type="checkbox" aria-label=${`Compare ${row.name || row.id} (${row.id})`} checked=${ids.includes(row.id)} onChange=${(e) => choose(row.id, e.target.checked)} /></td>
      <td class="name"><a href=${link(["run", row.id])}>${row.name || row.id}</a>${onNote && html` <button class="bare" aria-label=${`Note of ${row.name || row.id} (${row.id})`} data-note=${row.id} title="Tags and note" onClick=${() => onNote(row)}>✎</button>`}<small>${row.id}</small><${Noted} row=${row} /></td>
      ${shown.map((column) => html`<${Cell} key=${column} row=${row} column=${column} now=${now} />`)}
    </tr>`)}</tbody></table></div>`;
}

function Nothing({ page, filter }) {
  if (page.total)
    return html`<${Empty} title="No run passes this filter">
      <p>Terms narrow one another: <code>digits state:failed lr>0.1</code> finds failed runs of that name with a larger rate.</p>
      <button onClick=${() => go(link(["runs"]))}>Show all ${count(page.total)} runs</button></${Empty}>`;
  return html`<${Empty} title="There are no runs yet">
    <p>A run appears here as soon as it is started with this project, from a notebook, a script or Airflow:</p>
    <pre tabindex="0">import hopsml${"\n"}result = hopsml.experiment.collective_all_reduce(train, args={"lr": 0.01}, num_workers=2)</pre>
    <p>If there should be some, <code>HOPSML_PROJECT_URL</code> may name another project: <code>hopsml ui PROJECT_URL</code> shows that one.</p></${Empty}>`;
}

/** Seconds since 1970, anew each second while something goes on. */
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
  const [shown, setShown] = useState(() => kept.get("columns", USUAL));
  const [typed, setTyped] = useState(filter), [noted, setNoted] = useState(null);
  const state = { filter, sort: query.get("sort"), order: query.get("order"), offset: offset || "" };
  const to = (change, replace) => go(link(["runs"], { ...state, ...change }), replace);
  useEffect(() => { setTyped(filter); }, [filter]);
  useEffect(() => {
    const timer = setTimeout(() => { if (typed !== filter) to({ filter: typed, offset: "" }, true); }, 200);
    return () => clearTimeout(timer);
  }, [typed]);
  const asked = address(["runs"], { filter, sort: sort.column, order: sort.descending ? "descending" : "ascending", offset, limit: ROWS });
  const { data: page, error } = useData(asked, (kind) => kind !== "grew");
  const now = useNow(Boolean(page?.states.RUNNING));
  const change = (column, wanted) => {
    const next = wanted ? [...shown, column] : shown.filter((one) => one !== column);
    kept.set("columns", next);
    setShown(next);
  };
  const onSort = ({ column, descending }) => to({ sort: column, order: descending ? "descending" : "ascending", offset: "" });
  const term = (name) => `state:${name.toLowerCase()}`;
  const toggle = (name) => {
    const terms = filter.split(/\s+/).filter((one) => one && !/^state:\w+$/.test(one));
    to({ filter: [...terms, ...(filter.includes(term(name)) ? [] : [term(name)])].join(" "), offset: "" });
  };
  const onNoted = () => { const id = noted.id; setNoted(null); setTimeout(() => document.querySelector(`[data-note="${CSS.escape(id)}"]`)?.focus(), 0); };
  const asView = new URLSearchParams(Object.entries({ filter, sort: query.get("sort") ?? "", order: query.get("order") ?? "" }).filter(([, value]) => value)).toString();
  return html`<h1>Runs</h1>
    <div class="tools">
      <input class="wide" type="search" placeholder=${`Filter: digits  state:failed  user:ana  lr>0.1  accuracy>=0.9${hasNotes ? "  tag:good" : ""}`} aria-label="Filter runs" value=${typed} onInput=${(e) => setTyped(e.target.value)} />
      ${page && html`<${Columns} page=${page} shown=${shown} change=${change} />`}
      ${hasNotes && html`<${Views} query=${asView} user=${user} />`}
      <${CompareButton} />
    </div>
    ${noted && html`<${NoteEditor} key=${noted.id} row=${noted} onDone=${onNoted} />`}
    ${page && page.total > 0 && html`<div class="states" role="group" aria-label="Only runs in one state">${ORDER.filter((name) => page.states[name]).map((name) =>
      html`<button key=${name} aria-pressed=${filter.includes(term(name))} onClick=${() => toggle(name)}><${State} state=${name} /> <span class="number">${count(page.states[name])}</span></button>`)}</div>`}
    ${error && html`<${Trouble} error=${error} />`}
    ${!page && !error && html`<p class="soft">Reading the runs…</p>`}
    ${page && (page.rows.length ? html`<${Table} page=${page} shown=${shown} sort=${sort} onSort=${onSort} now=${now} onNote=${hasNotes ? setNoted : null} />` : html`<${Nothing} page=${page} filter=${filter} />`)}
    ${page && page.found > 0 && html`<div class="pager" aria-live="polite">
      <span>${count(offset + 1)}–${count(offset + page.rows.length)} of ${count(page.found)}${page.found < page.total ? `, ${count(page.total)} in all` : ""}</span>
      <button disabled=${offset === 0} onClick=${() => to({ offset: Math.max(0, offset - ROWS) || "" })}>Previous page</button>
      <button disabled=${offset + page.rows.length >= page.found} onClick=${() => to({ offset: offset + ROWS })}>Next page</button></div>`}`;
}

function CompareButton() {
  const ids = useValue(chosen);
  return html`<${Fragment}>${ids.length > 0 && html`<button onClick=${() => { chosen.value = []; }}>Choose none</button>`}
    <a class=${`button ${ids.length > 1 ? "strong" : ""}`} href=${link(["compare"], { run: ids })}>Compare ${ids.length || ""}</a></${Fragment}>`;
}

export { Runs, took, useNow };
