// Comparison of runs: curves and values of one metric, and the settings that differ.
import { html, useMemo } from "../lib.js";
import { address, useData } from "../api.js";
import { count, number } from "../format.js";
import { go, link } from "../route.js";
import { selected } from "../selected_runs.js";
import { Chart, LINES, smoothed } from "../parts/chart.js";
import { ChartOptions, useChartOptions } from "../parts/curves.js";
import { Empty, State, ErrorMessage, TextField } from "../parts/components.js";

const MAX_COLUMNS = 20; // runs in the table of settings

const text = (value) => (value === null || value === undefined ? "–" : typeof value === "number" ? number(value) : String(value));
const colour = (at) => (at % LINES) + 1;

function Values({ comparison, step, settings, remove }) {
  const own = settings.filter((setting) => setting.section === "arguments");
  return html`<div class="table-frame" tabindex="0"><table><caption class="hidden">Values of ${comparison.tag}</caption>
    <thead><tr><th scope="col">Run</th><th scope="col">State</th><th scope="col" class="number">Last</th><th scope="col" class="number">Lowest</th><th scope="col" class="number">Highest</th>
      ${step !== "" && html`<th scope="col" class="number">At step ${step}</th>`}
      ${own.map((setting) => html`<th key=${setting.name} scope="col" class="number">${setting.name}</th>`)}<th scope="col"><span class="hidden">Remove from comparison</span></th></tr></thead>
    <tbody>${comparison.runs.map((run, at) => html`<tr key=${run.id}>
      <th scope="row"><span class=${`key k${colour(at)}`}></span> <a href=${link(["run", run.id])}>${run.name || run.id}</a><small>${run.id}</small></th><td><${State} state=${run.state} /></td>
      <td class="number">${number(comparison.values[at].last)}</td><td class="number">${number(comparison.values[at].lowest)}</td><td class="number">${number(comparison.values[at].highest)}</td>
      ${step !== "" && html`<td class="number">${number(comparison.values[at].at_step)}</td>`}
      ${own.map((setting) => html`<td key=${setting.name} class="number">${text(setting.values[at])}</td>`)}
      <td><button class="bare" aria-label=${`Remove ${run.id} from comparison`} title="Remove from comparison" onClick=${() => remove(run.id)}>×</button></td></tr>`)}</tbody></table></div>`;
}

function Differences({ comparison, settings }) {
  const runs = comparison.runs.slice(0, MAX_COLUMNS);
  if (!settings.length) return html`<p class="soft">All recorded settings are equal.</p>`;
  return html`<div class="table-frame" tabindex="0"><table><caption class="hidden">Settings that differ</caption>
    <thead><tr><th scope="col">Setting</th>${runs.map((run, at) => html`<th key=${run.id} scope="col"><span class=${`key k${colour(at)}`}></span> ${run.name || run.id}<small>${run.id}</small></th>`)}</tr></thead>
    <tbody>${settings.map((setting) => html`<tr key=${`${setting.section}.${setting.name}`}><th scope="row"><span class="soft">${setting.section}</span> ${setting.name}</th>
      ${runs.map((run, at) => html`<td key=${run.id} class="mono argument" title=${text(setting.values[at])}>${text(setting.values[at])}</td>`)}</tr>`)}</tbody></table></div>
    ${comparison.runs.length > MAX_COLUMNS && html`<p class="soft small">Only the first ${MAX_COLUMNS} of ${comparison.runs.length} runs are listed.</p>`}`;
}

function Compare({ query }) {
  const ids = query.getAll("run"), tag = query.get("tag") ?? "", step = query.get("step") ?? "";
  const [options, change] = useChartOptions();
  const navigate = (next) => go(link(["compare"], { run: ids, tag, step, ...next }), true);
  const points = ids.length > 20 ? 200 : 800;
  const { data: comparison, error } = useData(ids.length ? address(["compare"], { run: ids, tag, step, points }) : null, (kind, run) => ids.includes(run));
  const curves = useMemo(() => (comparison?.curves ?? []).flatMap((series, at) => {
    if (!series) return [];
    const began = comparison.runs[at].started ?? 0;
    const x = options.axis === "time" ? series.times.map((time) => time - began) : series.steps;
    return [{ label: comparison.runs[at].name || comparison.runs[at].id, colour: colour(at), x, y: smoothed(series.values, options.smoothing) }];
  }), [comparison, options]);
  const remove = (id) => {
    selected.value = selected.value.filter((other) => other !== id);
    navigate({ run: ids.filter((other) => other !== id) });
  };
  if (!ids.length)
    return html`<h1>Compare</h1><${Empty} title="No runs selected"><p>Select two or more runs in the list, at most 200.</p><a class="button strong" href=${link(["runs"])}>Select runs</a></${Empty}>`;
  return html`<h1>Compare ${count(ids.length)} ${ids.length === 1 ? "run" : "runs"}</h1>
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!comparison && !error && html`<p class="soft">Loading runs…</p>`}
    ${comparison && html`
      <${ChartOptions} options=${options} change=${change}>
        <label class="field">Metric <select value=${comparison.tag} onChange=${(e) => navigate({ tag: e.target.value })}>${comparison.tags.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
        <label class="field">Value at step <${TextField} type="number" min="0" placeholder="none" value=${step} onCommit=${(typed) => navigate({ step: typed })} /></label>
      </${ChartOptions}>
      ${curves.length ? html`<figure class="card"><header><h3>${comparison.tag}</h3></header><${Chart} curves=${curves} log=${options.log} seconds=${options.axis === "time"} height=${320} label=${`${comparison.tag} of ${curves.length} runs; the table below has the values`} /></figure>`
        : html`<${Empty} title="None of these runs reported a metric"><p>Report metrics in the training loop: <code>hopsml.report(step=step, loss=loss)</code></p></${Empty}>`}
      <${Values} comparison=${comparison} step=${step} settings=${comparison.settings} remove=${remove} />
      <h2>Settings that differ</h2>
      <${Differences} comparison=${comparison} settings=${comparison.settings} />`}`;
}

export { Compare };
