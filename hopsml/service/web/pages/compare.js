// Several runs beside each other: one metric's curves, its values, and what differs in how they were made.
import { html, useMemo } from "../lib.js";
import { address, useData } from "../api.js";
import { count, number } from "../format.js";
import { go, link } from "../route.js";
import { chosen } from "../chosen.js";
import { Chart, LINES, smoothed } from "../parts/chart.js";
import { LookTools, useLook } from "../parts/curves.js";
import { Empty, State, Trouble, Typed } from "../parts/small.js";

const FEW = 20; // runs whose settings stand side by side

const text = (value) => (value === null || value === undefined ? "–" : typeof value === "number" ? number(value) : String(value));
const colour = (at) => (at % LINES) + 1;

function Values({ found, step, settings, drop }) {
  const own = settings.filter((setting) => setting.section === "arguments");
  return html`<div class="sheet" tabindex="0"><table><caption class="hidden">Values of ${found.tag}</caption>
    <thead><tr><th scope="col">Run</th><th scope="col">State</th><th scope="col" class="number">Last</th><th scope="col" class="number">Lowest</th><th scope="col" class="number">Highest</th>
      ${step !== "" && html`<th scope="col" class="number">At step ${step}</th>`}
      ${own.map((setting) => html`<th key=${setting.name} scope="col" class="number">${setting.name}</th>`)}<th scope="col"><span class="hidden">Remove</span></th></tr></thead>
    <tbody>${found.runs.map((run, at) => html`<tr key=${run.id}>
      <th scope="row"><span class=${`key k${colour(at)}`}></span> <a href=${link(["run", run.id])}>${run.name || run.id}</a><small>${run.id}</small></th><td><${State} state=${run.state} /></td>
      <td class="number">${number(found.values[at].last)}</td><td class="number">${number(found.values[at].lowest)}</td><td class="number">${number(found.values[at].highest)}</td>
      ${step !== "" && html`<td class="number">${number(found.values[at].at_step)}</td>`}
      ${own.map((setting) => html`<td key=${setting.name} class="number">${text(setting.values[at])}</td>`)}
      <td><button class="bare" aria-label=${`Remove ${run.id}`} onClick=${() => drop(run.id)}>×</button></td></tr>`)}</tbody></table></div>`;
}

function Differences({ found, settings }) {
  const runs = found.runs.slice(0, FEW);
  if (!settings.length) return html`<p class="soft">Nothing that was recorded differs.</p>`;
  return html`<div class="sheet" tabindex="0"><table><caption class="hidden">Settings that differ</caption>
    <thead><tr><th scope="col">Setting</th>${runs.map((run, at) => html`<th key=${run.id} scope="col"><span class=${`key k${colour(at)}`}></span> ${run.name || run.id}<small>${run.id}</small></th>`)}</tr></thead>
    <tbody>${settings.map((setting) => html`<tr key=${`${setting.section}.${setting.name}`}><th scope="row"><span class="soft">${setting.section}</span> ${setting.name}</th>
      ${runs.map((run, at) => html`<td key=${run.id} class="mono argument" title=${text(setting.values[at])}>${text(setting.values[at])}</td>`)}</tr>`)}</tbody></table></div>
    ${found.runs.length > FEW && html`<p class="soft small">The first ${FEW} of ${found.runs.length} runs.</p>`}`;
}

function Compare({ query }) {
  const ids = query.getAll("run"), tag = query.get("tag") ?? "", step = query.get("step") ?? "";
  const [look, change] = useLook();
  const to = (next) => go(link(["compare"], { run: ids, tag, step, ...next }), true);
  const points = ids.length > 20 ? 200 : 800;
  const { data: found, error } = useData(ids.length ? address(["compare"], { run: ids, tag, step, points }) : null, (kind, run) => ids.includes(run));
  const curves = useMemo(() => (found?.curves ?? []).flatMap((series, at) => {
    if (!series) return [];
    const began = found.runs[at].started ?? 0;
    const x = look.axis === "time" ? series.times.map((time) => time - began) : series.steps;
    return [{ label: found.runs[at].name || found.runs[at].id, colour: colour(at), x, y: smoothed(series.values, look.smoothing) }];
  }), [found, look]);
  const drop = (id) => {
    chosen.value = chosen.value.filter((one) => one !== id);
    to({ run: ids.filter((one) => one !== id) });
  };
  if (!ids.length)
    return html`<h1>Compare</h1><${Empty} title="No runs are chosen"><p>Tick two or more runs in the list; up to 200 stand beside each other here.</p><a class="button strong" href=${link(["runs"])}>Choose runs</a></${Empty}>`;
  return html`<h1>Compare ${count(ids.length)} ${ids.length === 1 ? "run" : "runs"}</h1>
    ${error && html`<${Trouble} error=${error} />`}
    ${!found && !error && html`<p class="soft">Reading the runs…</p>`}
    ${found && html`
      <${LookTools} look=${look} change=${change}>
        <label class="field">Metric <select value=${found.tag} onChange=${(e) => to({ tag: e.target.value })}>${found.tags.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
        <label class="field">Value at step <${Typed} type="number" min="0" placeholder="none" value=${step} onEnd=${(typed) => to({ step: typed })} /></label>
      </${LookTools}>
      ${curves.length ? html`<figure class="card"><header><h3>${found.tag}</h3></header><${Chart} curves=${curves} log=${look.log} seconds=${look.axis === "time"} height=${320} label=${`${found.tag} of ${curves.length} runs; the table below has their values`} /></figure>`
        : html`<${Empty} title="None of these runs reported a number"><p>Report in the training loop: <code>hopsml.report(step=step, loss=loss)</code></p></${Empty}>`}
      <${Values} found=${found} step=${step} settings=${found.settings} drop=${drop} />
      <h2>What differs</h2>
      <${Differences} found=${found} settings=${found.settings} />`}`;
}

export { Compare };
