// Overview: resources of the cluster; running, waiting and recently ended jobs.
import { html } from "../lib.js";
import { address, get } from "../api.js";
import { age, count, duration, exactTime, gibibytes, jobProgressText, number, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { Bar } from "../parts/amounts.js";
import { Empty, State, ErrorMessage } from "../parts/components.js";
import { FINAL_STATES } from "../parts/job_actions.js";
import { useNow } from "./runs.js";

const SHOWN = 20, ENDED_SHOWN = 8; // jobs per table; in the table of ended jobs
const ACTIVE = ["STARTING", "RUNNING", "CLOSING"];

async function load(abort) {
  const jobs = (query) => get(address(["v1", "jobs"], { limit: SHOWN, ...query }), abort);
  const [cluster, active, waiting, ended] = await Promise.all([
    get(address(["v1", "cluster"]), abort), jobs({ state: ACTIVE, progress: true }), jobs({ state: "WAITING", order: "turn", why: true }), jobs({ order: "ended", limit: ENDED_SHOWN })]);
  return { cluster, active, waiting, ended };
}

function Meter({ label, free, all, text }) {
  return html`<div class="meter"><dt>${label}</dt><dd><strong>${text(free)}</strong> of ${text(all)} free <${Bar} filled=${free} all=${all} /></dd></div>`;
}

function Cluster({ cluster, title = "Cluster" }) {
  const { capacity, free } = cluster, isKnown = capacity.cores > 0;
  const plain = (value) => count(value), memory = (mib) => `${gibibytes(mib)} GiB`;
  return html`<section class="card cluster" aria-label=${title}><header><h2>${title}</h2>
      <span class="soft small">${cluster.leads ? "This server manages the jobs" : cluster.leader ? "Another server manages the jobs" : "No server manages the jobs yet"}${cluster.leader && html`: <span class="mono">${cluster.leader}</span>`}</span></header>
    ${cluster.problem && html`<${ErrorMessage} error=${{ message: `The cluster does not respond: ${cluster.problem}`, remedy: "Running jobs continue. Jobs are started and ended again as soon as the cluster responds." }} />`}
    ${isKnown ? html`<dl class="meters"><${Meter} label="GPUs" free=${free.gpus} all=${capacity.gpus} text=${plain} /><${Meter} label="Cores" free=${free.cores} all=${capacity.cores} text=${plain} />
      <${Meter} label="Memory" free=${free.memory_mib} all=${capacity.memory_mib} text=${memory} /></dl>
      <p class="soft small key-line"><span class="swatch"></span> free <span class="swatch used"></span> in use</p>`
      : html`<p class="soft">${cluster.leads ? "The nodes are not known yet." : "Only the server that manages the jobs knows the nodes. Open its address."}</p>`}</section>`;
}

function Table({ title, columns, page, all, row, empty }) {
  return html`<section class="stack"><div class="heading"><h2>${title} <span class="soft">${page.cursor === null ? count(page.jobs.length) : `more than ${SHOWN}`}</span></h2>
      ${page.cursor !== null && html`<a class="small" href=${all}>Show all</a>`}</div>
    ${page.jobs.length === 0 ? html`<p class="soft">${empty}</p>` : html`<div class="table-frame" tabindex="0" role="region" aria-label=${title}><table class="jobs brief"><caption class="hidden">${title}</caption>
      <thead><tr>${columns.map(([label, kind]) => html`<th key=${label} scope="col" class=${kind}>${label}</th>`)}</tr></thead><tbody>${page.jobs.map(row)}</tbody></table></div>`}</section>`;
}

const name = (job) => html`<td class="name"><a href=${link(["job", job.id])}>${job.id}</a></td>`;

/** Progress of a job's newest run: "step 1 200 of 5 000", with a bar if the total is known, and the main metric. */
function JobProgress({ progress }) {
  if (!progress) return html`<span class="soft">–</span>`;
  return html`<a href=${link(["run", progress.run])}>${jobProgressText(progress)}</a>${progress.metric !== null && html` <span class="soft">${progress.metric_name} ${number(progress.metric)}</span>`}
    ${progress.total > 0 && html`<${Bar} filled=${progress.done} all=${progress.total} />`}`;
}

/** Ended jobs, newest end first. */
function Ended({ page, now }) {
  if (!page.jobs.length) return null;
  return html`<section class="stack"><div class="heading"><h2>Recently ended</h2><a class="small" href=${link(["jobs"], { state: FINAL_STATES })}>Show all</a></div>
    <div class="table-frame" tabindex="0" role="region" aria-label="Recently ended"><table class="jobs brief"><caption class="hidden">Recently ended</caption>
      <thead><tr><th scope="col">Job</th><th scope="col">State</th><th scope="col">Owner</th><th scope="col">Queue</th><th scope="col" class="number">Duration</th><th scope="col" class="number">Ended</th><th scope="col" class="why">Cause</th></tr></thead>
      <tbody>${page.jobs.map((job) => html`<tr key=${job.id}>${name(job)}<td class="state-cell"><${State} state=${job.state} /></td><td class="owner">${job.owner}</td><td class="queue">${job.queue}</td>
        <td class="number since">${job.started_s ? duration(job.ended_s - job.started_s) : "–"}</td><td class="number age" title=${exactTime(job.ended_s)}>${age(now - job.ended_s)} ago</td>
        <td class="why">${job.state === "FINISHED" ? "" : job.cause}</td></tr>`)}</tbody></table></div></section>`;
}

function Active({ page, now }) {
  return html`<${Table} title="Running" page=${page} all=${link(["jobs"], { state: ACTIVE })} empty="No running jobs."
    columns=${[["Job"], ["State"], ["Owner"], ["Queue"], ["Progress", "progress-of"], ["Started", "number"], ["Duration", "number"]]}
    row=${(job) => html`<tr key=${job.id}>${name(job)}<td class="state-cell"><${State} state=${job.state} /></td><td class="owner">${job.owner}</td><td class="queue">${job.queue}</td>
      <td class="progress-of"><${JobProgress} progress=${job.progress} /></td><td class="number since" title=${exactTime(job.started_s)}>${time(job.started_s)}</td><td class="number age">${age(job.started_s ? now - job.started_s : null)}</td></tr>`} />`;
}

function Waiting({ page, now }) {
  return html`<${Table} title="Waiting" page=${page} all=${link(["jobs"], { state: "WAITING" })} empty="No waiting jobs."
    columns=${[["Job"], ["Owner"], ["Queue"], ["Priority", "number"], ["Waiting for", "number"], ["Reason", "why"]]}
    row=${(job) => html`<tr key=${job.id}>${name(job)}<td class="owner">${job.owner}</td><td class="queue">${job.queue}</td><td class="number priority">${job.priority}</td>
      <td class="number age" title=${exactTime(job.submitted_s)}>${age(now - job.submitted_s)}</td><td class="why">${job.why || job.cause}</td></tr>`} />`;
}

/** Empty state with the commands that submit a job. */
function Submit({ title, children }) {
  return html`<${Empty} title=${title}><p>Submit a job file, or a script without one:</p>
    <pre>hopsml jobs submit job.yaml${"\n"}hopsml jobs run train.py:main --workers 8 --gpus 1</pre>${children}</${Empty}>`;
}

function Overview() {
  const { data, error } = usePolled(load, "overview", undefined, () => true);
  const now = useNow(true);
  const isIdle = data && data.active.jobs.length + data.waiting.jobs.length === 0;
  return html`<h1>Overview</h1>
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading jobs…</p>`}
    ${data && html`<${Cluster} cluster=${data.cluster} />`}
    ${isIdle && html`<${Submit} title="No running or waiting jobs"><p><a href=${link(["jobs"])}>All jobs</a></p></${Submit}>`}
    ${data && !isIdle && html`<${Active} page=${data.active} now=${now} /><${Waiting} page=${data.waiting} now=${now} />`}
    ${data && html`<${Ended} page=${data.ended} now=${now} />`}`;
}

export { Cluster, JobProgress, Overview, Submit };
