// Workers of a run: state, step and resource usage of each.
import { html } from "../lib.js";
import { address, useData } from "../api.js";
import { bytes, number } from "../format.js";
import { Ring } from "./ring.js";
import { Empty, Spark, State, ErrorMessage } from "./components.js";

const CPU = "cpu_utilization_percentage", MEMORY = "memory_usage_megabytes";
const PURPOSES = ["collective", "feed", "storage"]; // of the bytes that hopsml moves for a worker
const received = (purpose) => `network_${purpose}_receive_megabytes`, sent = (purpose) => `network_${purpose}_transmit_megabytes`;

const newest = (series) => series?.values.filter((value) => value !== null).at(-1);

function Usage({ series, unit, label, scale = 1 }) {
  const value = newest(series);
  return html`<td class="number">${value === undefined ? "–" : `${number(Math.round((value * scale) * 10) / 10)} ${unit}`}${series && html`<${Spark} values=${series.values} label=${label} />`}</td>`;
}

/** Bytes received and sent since the worker's start, for each purpose; `ofRank(tag)` returns the worker's series. */
function Network({ ofRank }) {
  const moved = PURPOSES.map((purpose) => [purpose, newest(ofRank(received(purpose))), newest(ofRank(sent(purpose)))]).filter(([, into, out]) => into !== undefined || out !== undefined);
  if (!moved.length) return html`<td>–</td>`;
  return html`<td class="network">${moved.map(([purpose, into, out]) => html`<span key=${purpose}>${purpose} <span class="soft">${bytes(1e6 * (into ?? 0))} in, ${bytes(1e6 * (out ?? 0))} out</span></span>`)}</td>`;
}

function Workers({ run, trial, workers, isRunning }) {
  const concerns = (kind, id) => id === run;
  const known = useData(address(["runs", run, "metrics"], { trial }), concerns);
  const gpus = [...new Set((known.data?.tags ?? []).map(({ tag }) => tag).filter((tag) => /^gpu_.*_utilization_percentage$/.test(tag)))];
  const tags = new Set((known.data?.tags ?? []).map(({ tag }) => tag)), moved = PURPOSES.flatMap((purpose) => [received(purpose), sent(purpose)]).filter((tag) => tags.has(tag));
  const usage = useData(address(["runs", run, "metrics"], { trial, points: 60, tag: [CPU, MEMORY, ...gpus, ...moved] }), concerns);
  const marks = useData(isRunning && workers.length > 1 ? address(["runs", run, "slow"], { trial }) : null, concerns).data?.marks ?? [];
  const why = (rank) => marks.find((mark) => mark.rank === rank)?.why;
  if (usage.error) return html`<${ErrorMessage} error=${usage.error} />`;
  if (!workers.length)
    return html`<${Empty} title="No workers"><p>${isRunning ? "No worker has started yet." : "This run used only its driver, or ended before a worker started."}</p></${Empty}>`;
  const series = (tag, rank) => usage.data?.series.find((each) => each.tag === tag && each.source === `rank ${rank}`);
  const metrics = [...new Set(workers.flatMap((worker) => Object.keys(worker.metrics ?? {})))].slice(0, 4);
  return html`<div class="stack"><${Ring} workers=${workers} marks=${marks} isRunning=${isRunning} />
  <div class="table-frame" tabindex="0"><table><caption class="hidden">Workers</caption>
    <thead><tr><th scope="col" class="number">Rank</th><th scope="col">State</th><th scope="col" class="number">Step</th>
      ${metrics.map((name) => html`<th key=${name} scope="col" class="number">${name}</th>`)}
      <th scope="col" class="number">CPU</th><th scope="col" class="number">Memory</th>${gpus.map((tag) => html`<th key=${tag} scope="col" class="number">GPU ${tag.split("_")[1]}</th>`)}
      ${moved.length > 0 && html`<th scope="col">Network</th>`}<th scope="col">Host</th><th scope="col">GPUs</th></tr></thead>
    <tbody>${workers.map((worker) => html`<tr key=${worker.rank}>
      <th scope="row" class="number">${worker.rank}</th><td class="worker-state"><${State} state=${worker.state ?? "RUNNING"} />${why(worker.rank) && html`<p class="small">${why(worker.rank)}</p>`}</td><td class="number">${number(worker.step)}</td>
      ${metrics.map((name) => html`<td key=${name} class="number">${number(worker.metrics?.[name])}</td>`)}
      <${Usage} series=${series(CPU, worker.rank)} unit="%" label=${`CPU of rank ${worker.rank} over time`} />
      <${Usage} series=${series(MEMORY, worker.rank)} unit="MB" label=${`Memory of rank ${worker.rank} over time`} />
      ${gpus.map((tag) => html`<${Usage} key=${tag} series=${series(tag, worker.rank)} unit="%" label=${`GPU of rank ${worker.rank} over time`} />`)}
      ${moved.length > 0 && html`<${Network} ofRank=${(tag) => series(tag, worker.rank)} />`}<td>${worker.host ?? "–"}</td><td>${(worker.gpu_indices ?? []).join(", ") || "–"}</td></tr>`)}</tbody></table></div></div>`;
}

export { Workers };
