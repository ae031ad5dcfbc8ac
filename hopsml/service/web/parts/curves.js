// Curves of a run: a card for each metric, and options for all of them.
import { html, storage, useMemo, useState } from "../lib.js";
import { address, useData } from "../api.js";
import { count, number } from "../format.js";
import { Chart, LINES, smoothed } from "./chart.js";
import { Empty, ErrorMessage } from "./components.js";

const SHOWN = 24; // maximum number of cards

/** Return smoothing, scale and axis as last selected in this browser, and a function that changes them. */
function useChartOptions() {
  const [options, set] = useState(() => storage.get("look", { smoothing: 0, log: false, axis: "step" }));
  return [options, (change) => { const next = { ...options, ...change }; storage.set("look", next); set(next); }];
}

function ChartOptions({ options, change, children }) {
  return html`<div class="tools">
    <label class="field">Smoothing <input type="range" min="0" max="0.99" step="0.01" value=${options.smoothing} onInput=${(e) => change({ smoothing: Number(e.target.value) })} />
      <output class="number">${options.smoothing.toFixed(2)}</output></label>
    <label class="field"><input type="checkbox" checked=${options.log} onChange=${(e) => change({ log: e.target.checked })} /> Logarithmic scale</label>
    <label class="field">X axis <select value=${options.axis} onChange=${(e) => change({ axis: e.target.value })}><option value="step">step</option><option value="time">time</option></select></label>
    ${children}</div>`;
}

/** Return x and y of a series with the options applied; `began`: zero of the time axis, in seconds since 1970. */
function points(series, options, began) {
  const x = options.axis === "time" ? series.times.map((time) => time - began) : series.steps;
  return { x, y: smoothed(series.values, options.smoothing) };
}

/** Return the curve of a series; if it is smoothed, also the reported values as a faint curve behind it. */
function curvesOf(series, options, began, colour, label) {
  const main = { label, colour, ...points(series, options, began) };
  return options.smoothing ? [{ label: `${label} as reported`, colour, faint: true, ...points(series, { ...options, smoothing: 0 }, began) }, main] : [main];
}

const last = (values) => { for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return values[at]; return null; };

function Card({ tag, series, options, began }) {
  const curves = useMemo(() => series.flatMap((each, at) => curvesOf(each, options, began, (at % LINES) + 1, each.source)), [series, options, began]);
  const newest = last(series[0].values);
  return html`<figure class="card">
    <header><h3>${tag}</h3><span class="value">${series.length === 1 ? number(newest) : ""}</span></header>
    <${Chart} curves=${curves} log=${options.log} seconds=${options.axis === "time"} label=${`${tag}: ${count(series[0].count)} values, last value ${number(newest)}`} />
    ${series.length > 1 && html`<ul class="legend">${series.map((each, at) => html`<li key=${each.source}><span class=${`key k${(at % LINES) + 1}`}></span>${each.source}: <strong>${number(last(each.values))}</strong></li>`)}</ul>`}
  </figure>`;
}

/** All curves of a run or of a trial; `began`: seconds since 1970. */
function Curves({ run, trial, began, isRunning }) {
  const [options, change] = useChartOptions();
  const [wanted, setWanted] = useState("");
  const concerns = (kind, id) => id === run;
  const known = useData(address(["runs", run, "metrics"], { trial }), concerns);
  const all = [...new Set((known.data?.tags ?? []).map(({ tag }) => tag))];
  const tags = all.filter((tag) => tag.toLowerCase().includes(wanted.toLowerCase())).slice(0, SHOWN);
  const loaded = useData(tags.length ? address(["runs", run, "metrics"], { trial, tag: tags }) : null, concerns);
  if (known.error) return html`<${ErrorMessage} error=${known.error} />`;
  if (!known.data) return html`<p class="soft">Loading metrics…</p>`;
  if (!all.length)
    return html`<${Empty} title="No metrics reported">
      <p>${isRunning ? "Curves appear here as soon as the training function reports a metric." : "The training function of this run reported no metric. To see curves of the next run, report in the training loop:"}</p>
      <pre>hopsml.report(step=step, loss=loss, accuracy=accuracy)</pre></${Empty}>`;
  const groups = new Map();
  for (const series of loaded.data?.series ?? []) groups.set(series.tag, [...(groups.get(series.tag) ?? []), series]);
  const reported = tags.filter((tag) => groups.get(tag)?.[0].source === "chief"), used = tags.filter((tag) => groups.has(tag) && !reported.includes(tag));
  const cards = (names, shown) => html`<div class="charts">${names.map((tag) => html`<${Card} key=${tag} tag=${tag} series=${groups.get(tag)} options=${shown} began=${began} />`)}</div>`;
  return html`<div class="stack">
    <${ChartOptions} options=${options} change=${change}>
      ${all.length > 4 && html`<input class="end" type="search" placeholder="Find a metric" aria-label="Find a metric" value=${wanted} onInput=${(e) => setWanted(e.target.value)} />`}
    </${ChartOptions}>
    ${cards(reported, options)}
    ${used.length > 0 && html`<h2>Resource usage of workers <span class="soft small">over time</span></h2>${cards(used, { ...options, axis: "time" })}`}
    ${all.length > SHOWN && html`<p class="soft small">Only ${SHOWN} of ${count(all.length)} metrics are displayed. Search for others by name.</p>`}
  </div>`;
}

export { Curves, ChartOptions, curvesOf, useChartOptions };
