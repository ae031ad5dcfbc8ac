// What has become of a job: the applications of its tasks, the runs that they made, and what happened when.
import { html } from "../lib.js";
import { address, useData } from "../api.js";
import { count, duration, exactTime, moment, number, time } from "../format.js";
import { link } from "../route.js";
import { Empty, State, Trouble } from "./small.js";
import { OVER } from "./verbs.js";

const SHOWN = 100; // runs

function Applications({ job }) {
  if (!job.applications.length) return html`<p class="soft">${OVER.includes(job.state) ? "Nothing was started for it." : "Nothing has been started for it yet."}</p>`;
  return html`<div class="sheet" tabindex="0" role="region" aria-label="Applications"><table><caption class="hidden">Applications of its tasks</caption>
    <thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col" class="number">Launch</th><th scope="col">Application</th><th scope="col" class="why">Cause</th></tr></thead>
    <tbody>${job.applications.map((one) => html`<tr key=${one.tag}><th scope="row">${one.task}</th><td><${State} state=${one.state} /></td><td class="number">${one.number}</td>
      <td class="mono" title=${`tag ${one.tag}`}>${one.application_id || "–"}</td><td class="why">${one.cause}</td></tr>`)}</tbody></table></div>`;
}

/** A run belongs to a job when its name goes on with the service's, after the job's own: digits-17-0a1b2c3d-main_1. */
const belongs = (job, run) => run.startsWith(`${job}-`) && /^[0-9a-f]{8}-/.test(run.slice(job.length + 1));

function JobRuns({ job, isOver }) {
  const { data, error } = useData(address(["runs"], { filter: `id:${job.id}-`, limit: SHOWN }), (kind, run) => kind !== "grew" && belongs(job.id, run));
  if (error) return html`<${Trouble} error=${error} />`;
  if (!data) return html`<p class="soft">Reading the runs…</p>`;
  const rows = data.rows.filter((row) => belongs(job.id, row.id));
  if (!rows.length) return html`<p class="soft">${isOver ? "It made none." : "None yet: a run appears when one of its tasks begins to train."}</p>`;
  return html`<div class="sheet" tabindex="0" role="region" aria-label="Runs"><table><caption class="hidden">Runs of this job</caption>
    <thead><tr><th scope="col">Run</th><th scope="col">State</th><th scope="col" class="number">Metric</th><th scope="col" class="number">Took</th><th scope="col" class="number">Started</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.id}><th scope="row" class="run"><a href=${link(["run", row.id])}>${row.name || row.id}</a><small>${row.id}</small></th><td><${State} state=${row.state} /></td>
      <td class="number">${row.metric_name && html`<span class="soft">${row.metric_name} </span>`}${number(row.metric)}</td><td class="number">${duration(row.seconds)}</td><td class="number" title=${exactTime(row.started)}>${time(row.started)}</td></tr>`)}</tbody></table></div>
    ${data.found > SHOWN && html`<p class="soft small">The newest ${SHOWN}. <a href=${link(["runs"], { filter: `id:${job.id}-` })}>All of them</a></p>`}`;
}

/** All changes, the oldest first; a try begins with a heading of its own. */
function TimeLine({ changes }) {
  let number = 0;
  return html`<ol class="timeline">${changes.flatMap((change) => {
    const begins = change.try_number > Math.max(1, number);
    number = Math.max(number, change.try_number);
    return [begins && html`<li key=${`try ${change.try_number}`} class="try">Try ${count(change.try_number)}</li>`,
      html`<li key=${change.id} class=${change.task ? "of-task" : ""}><time title=${exactTime(change.at_s)}>${moment(change.at_s)}</time><${State} state=${change.state} />
        <span class="what">${change.task && html`<strong>${change.task}</strong> `}${change.cause}</span></li>`];
  })}</ol>`;
}

function Course({ job, changes }) {
  return html`<div class="stack">
    <h2>Tasks</h2><${Applications} job=${job} />
    <h2>Runs</h2><${JobRuns} job=${job} isOver=${OVER.includes(job.state)} />
    <h2>History</h2>${changes.length ? html`<${TimeLine} changes=${changes} />` : html`<${Empty} title="Nothing has happened yet" />`}</div>`;
}

export { Course };
