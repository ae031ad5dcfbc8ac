// The cluster at a glance: what it has, what runs, what waits and why.
import { html } from "../lib.js";
import { address, get } from "../api.js";
import { age, count, duration, exactTime, gibibytes, number, progressText, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { Bar } from "../parts/amounts.js";
import { Empty, State, Trouble } from "../parts/small.js";
import { OVER } from "../parts/verbs.js";
import { useNow } from "./runs.js";

const SHOWN = 20, LATELY = 8; // jobs of one table; of the one with those that have ended
const ACTIVE = ["STARTING", "RUNNING", "CLOSING"];

async function look(abort) {
  const jobs = (query) => get(address(["v1", "jobs"], { limit: SHOWN, ...query }), abort);
  const [cluster, active, waiting, ended] = await Promise.all([
    get(address(["v1", "cluster"]), abort), jobs({ state: ACTIVE, progress: true }), jobs({ state: "WAITING", order: "turn", why: true }), jobs({ order: "ended", limit: LATELY })]);
  return { cluster, active, waiting, ended };
}

function Meter({ label, free, all, text }) {
  return html`<div class="meter"><dt>${label}</dt><dd><strong>${text(free)}</strong> of ${text(all)} free <${Bar} filled=${free} all=${all} /></dd></div>`;
}

function Cluster({ cluster, title = "Cluster" }) {
  const { capacity, free } = cluster, isKnown = capacity.cores > 0;
  const plain = (value) => count(value), memory = (mib) => `${gibibytes(mib)} GiB`;
  return html`<section class="card cluster" aria-label=${title}><header><h2>${title}</h2>
      <span class="soft small">${cluster.leads ? "this server runs the jobs" : cluster.leader ? "another server runs the jobs" : "no server runs the jobs yet"}${cluster.leader && html`: <span class="mono">${cluster.leader}</span>`}</span></header>
    ${cluster.problem && html`<${Trouble} error=${{ message: `The cluster does not answer: ${cluster.problem}`, remedy: "what runs goes on; nothing is started or ended until it answers" }} />`}
    ${isKnown ? html`<dl class="meters"><${Meter} label="GPUs" free=${free.gpus} all=${capacity.gpus} text=${plain} /><${Meter} label="Cores" free=${free.cores} all=${capacity.cores} text=${plain} />
      <${Meter} label="Memory" free=${free.memory_mib} all=${capacity.memory_mib} text=${memory} /></dl>`
      : html`<p class="soft">${cluster.leads ? "Its nodes are not known yet." : "The server that runs the jobs knows its nodes: open that one."}</p>`}</section>`;
}

function Table({ title, columns, page, all, row, empty }) {
  return html`<section class="stack"><div class="heading"><h2>${title} <span class="soft">${page.cursor === null ? count(page.jobs.length) : `more than ${SHOWN}`}</span></h2>
      ${page.cursor !== null && html`<a class="small" href=${all}>All of them</a>`}</div>
    ${page.jobs.length === 0 ? html`<p class="soft">${empty}</p>` : html`<div class="sheet" tabindex="0" role="region" aria-label=${title}><table class="jobs brief"><caption class="hidden">${title}</caption>
      <thead><tr>${columns.map(([label, kind]) => html`<th key=${label} scope="col" class=${kind}>${label}</th>`)}</tr></thead><tbody>${page.jobs.map(row)}</tbody></table></div>`}</section>`;
}

const name = (job) => html`<td class="name"><a href=${link(["job", job.id])}>${job.id}</a></td>`;

/** How far the newest run of a job is: "step 1 200 of 5 000", with a bar where its end is known, and its main metric. */
function Progress({ found }) {
  if (!found) return html`<span class="soft">–</span>`;
  return html`<a href=${link(["run", found.run])}>${found.done === null ? "begins" : `${found.unit} ${progressText(found)}`}</a>${found.metric !== null && html` <span class="soft">${found.metric_name} ${number(found.metric)}</span>`}
    ${found.total > 0 && html`<${Bar} filled=${found.done} all=${found.total} />`}`;
}

/** Jobs that have ended, the last one first. */
function Ended({ page, now }) {
  if (!page.jobs.length) return null;
  return html`<section class="stack"><div class="heading"><h2>Recently ended</h2><a class="small" href=${link(["jobs"], { state: OVER })}>All of them</a></div>
    <div class="sheet" tabindex="0" role="region" aria-label="Recently ended"><table class="jobs brief"><caption class="hidden">Recently ended</caption>
      <thead><tr><th scope="col">Job</th><th scope="col">State</th><th scope="col">Owner</th><th scope="col">Queue</th><th scope="col" class="number">Took</th><th scope="col" class="number">Ended</th><th scope="col" class="why">Cause</th></tr></thead>
      <tbody>${page.jobs.map((job) => html`<tr key=${job.id}>${name(job)}<td class="state-cell"><${State} state=${job.state} /></td><td class="owner">${job.owner}</td><td class="queue">${job.queue}</td>
        <td class="number since">${job.started_s ? duration(job.ended_s - job.started_s) : "–"}</td><td class="number age" title=${exactTime(job.ended_s)}>${age(now - job.ended_s)} ago</td>
        <td class="why">${job.state === "FINISHED" ? "" : job.cause}</td></tr>`)}</tbody></table></div></section>`;
}

function Active({ page, now }) {
  return html`<${Table} title="Running" page=${page} all=${link(["jobs"], { state: ACTIVE })} empty="Nothing runs."
    columns=${[["Job"], ["State"], ["Owner"], ["Queue"], ["Progress", "progress-of"], ["Since", "number"], ["For", "number"]]}
    row=${(job) => html`<tr key=${job.id}>${name(job)}<td class="state-cell"><${State} state=${job.state} /></td><td class="owner">${job.owner}</td><td class="queue">${job.queue}</td>
      <td class="progress-of"><${Progress} found=${job.progress} /></td><td class="number since" title=${exactTime(job.started_s)}>${time(job.started_s)}</td><td class="number age">${age(job.started_s ? now - job.started_s : null)}</td></tr>`} />`;
}

function Waiting({ page, now }) {
  return html`<${Table} title="Waiting" page=${page} all=${link(["jobs"], { state: "WAITING" })} empty="Nothing waits."
    columns=${[["Job"], ["Owner"], ["Queue"], ["Priority", "number"], ["For", "number"], ["Why", "why"]]}
    row=${(job) => html`<tr key=${job.id}>${name(job)}<td class="owner">${job.owner}</td><td class="queue">${job.queue}</td><td class="number priority">${job.priority}</td>
      <td class="number age" title=${exactTime(job.submitted_s)}>${age(now - job.submitted_s)}</td><td class="why">${job.why || job.cause}</td></tr>`} />`;
}

/** What to do where there is no job, or none that is not over. */
function Submit({ title, children }) {
  return html`<${Empty} title=${title}><p>A job is a file beside its code; a team's jobs wait here for what they need:</p>
    <pre>hopsml jobs submit job.yaml${"\n"}hopsml jobs run train.py:main --workers 8 --gpus 1</pre>${children}</${Empty}>`;
}

function Overview() {
  const { data, error } = usePolled(look, "overview", undefined, () => true);
  const now = useNow(true);
  const isIdle = data && data.active.jobs.length + data.waiting.jobs.length === 0;
  return html`<h1>Overview</h1>
    ${error && html`<${Trouble} error=${error} />`}
    ${!data && !error && html`<p class="soft">Reading the jobs…</p>`}
    ${data && html`<${Cluster} cluster=${data.cluster} />`}
    ${isIdle && html`<${Submit} title="Nothing runs, and nothing waits"><p><a href=${link(["jobs"])}>All jobs</a></p></${Submit}>`}
    ${data && !isIdle && html`<${Active} page=${data.active} now=${now} /><${Waiting} page=${data.waiting} now=${now} />`}
    ${data && html`<${Ended} page=${data.ended} now=${now} />`}`;
}

export { Cluster, Overview, Submit };
