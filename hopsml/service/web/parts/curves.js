// The curves of a run: a card for each metric, with what they have in common above.
import { html, kept, useMemo, useState } from "../lib.js";
import { address, useData } from "../api.js";
import { count, number } from "../format.js";
import { Chart, LINES, smoothed } from "./chart.js";
import { Empty, Trouble } from "./small.js";

const SHOWN = 24; // cards at once

/** Smoothing, scale and axis, as they were chosen last. */
function useLook() {
  const [look, set] = useState(() => kept.get("look", { smoothing: 0, log: false, axis: "step" }));
  return [look, (change) => { const next = { ...look, ...change }; kept.set("look", next); set(next); }];
}

function LookTools({ look, change, children }) {
  return html`<div class="tools">
    <label class="field">Smoothing <input type="range" min="0" max="0.99" step="0.01" value=${look.smoothing} onInput=${(e) => change({ smoothing: Number(e.target.value) })} />
      <output class="number">${look.smoothing.toFixed(2)}</output></label>
    <label class="field"><input type="checkbox" checked=${look.log} onChange=${(e) => change({ log: e.target.checked })} /> Log scale</label>
    <label class="field">Over <select value=${look.axis} onChange=${(e) => change({ axis: e.target.value })}><option value="step">steps</option><option value="time">time</option></select></label>
    ${children}</div>`;
}

/** x and y of a series as the tools ask for it; `began`: seconds since 1970 from which time is counted. */
function drawn(series, look, began) {
  const x = look.axis === "time" ? series.times.map((time) => time - began) : series.steps;
  return { x, y: smoothed(series.values, look.smoothing) };
}

/** A smoothed curve stands before what was reported, which is faint. */
function curvesOf(series, look, began, colour, label) {
  const main = { label, colour, ...drawn(series, look, began) };
  return look.smoothing ? [{ label: `${label} as reported`, colour, faint: true, ...drawn(series, { ...look, smoothing: 0 }, began) }, main] : [main];
}

const last = (values) => { for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return values[at]; return null; };

function Card({ tag, series, look, began }) {
  const curves = useMemo(() => series.flatMap((one, at) => curvesOf(one, look, began, (at % LINES) + 1, one.source)), [series, look, began]);
  const newest = last(series[0].values);
  return html`<figure class="card">
    <header><h3>${tag}</h3><span class="value">${series.length === 1 ? number(newest) : ""}</span></header>
    <${Chart} curves=${curves} log=${look.log} seconds=${look.axis === "time"} label=${`${tag}: ${count(series[0].count)} values, the last one ${number(newest)}`} />
    ${series.length > 1 && html`<ul class="legend">${series.map((one, at) => html`<li key=${one.source}><span class=${`key k${(at % LINES) + 1}`}></span>${one.source}: <strong>${number(last(one.values))}</strong></li>`)}</ul>`}
  </figure>`;
}

/** All curves of a run or of a trial; `began`: seconds since 1970. */
function Curves({ run, trial, began, goesOn }) {
  const [look, change] = useLook();
  const [wanted, setWanted] = useState("");
  const mine = (kind, id) => id === run;
  const known = useData(address(["runs", run, "metrics"], { trial }), mine);
  const all = [...new Set((known.data?.tags ?? []).map((one) => one.tag))];
  const tags = all.filter((tag) => tag.toLowerCase().includes(wanted.toLowerCase())).slice(0, SHOWN);
  const found = useData(tags.length ? address(["runs", run, "metrics"], { trial, tag: tags }) : null, mine);
  if (known.error) return html`<${Trouble} error=${known.error} />`;
  if (!known.data) return html`<p class="soft">Reading what was reported…</p>`;
  if (!all.length)
    return html`<${Empty} title="Nothing was reported">
      <p>${goesOn ? "Curves appear here as soon as the training function reports a number." : "The training function of this run reported no numbers. To see curves of the next one, report in the loop:"}</p>
      <pre>hopsml.report(step=step, loss=loss, accuracy=accuracy)</pre></${Empty}>`;
  const groups = new Map();
  for (const series of found.data?.series ?? []) groups.set(series.tag, [...(groups.get(series.tag) ?? []), series]);
  const reported = tags.filter((tag) => groups.get(tag)?.[0].source === "chief"), used = tags.filter((tag) => groups.has(tag) && !reported.includes(tag));
  const cards = (names) => html`<div class="charts">${names.map((tag) => html`<${Card} key=${tag} tag=${tag} series=${groups.get(tag)} look=${look} began=${began} />`)}</div>`;
  return html`<div class="stack">
    <${LookTools} look=${look} change=${change}>
      ${all.length > 4 && html`<input class="end" type="search" placeholder="Find a metric" aria-label="Find a metric" value=${wanted} onInput=${(e) => setWanted(e.target.value)} />`}
    </${LookTools}>
    ${cards(reported)}
    ${used.length > 0 && html`<h2>What the workers used</h2>${cards(used)}`}
    ${all.length > SHOWN && html`<p class="soft small">${count(all.length)} metrics; ${SHOWN} are shown. Find others by their names.</p>`}
  </div>`;
}

export { Curves, LookTools, curvesOf, useLook };
