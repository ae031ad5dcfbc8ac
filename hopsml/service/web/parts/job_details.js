// Details of a job: applications of its tasks, its runs, and its history.
import { html } from "../lib.js";
import { address, useData } from "../api.js";
import { count, duration, exactTime, moment, number, time } from "../format.js";
import { link } from "../route.js";
import { Empty, State, ErrorMessage } from "./components.js";
import { FINAL_STATES } from "./job_actions.js";

const SHOWN = 100; // runs

function Applications({ job }) {
  if (!job.applications.length) return html`<p class="soft">${FINAL_STATES.includes(job.state) ? "No application was started." : "No application has been started yet."}</p>`;
  return html`<div class="table-frame" tabindex="0" role="region" aria-label="Applications"><table class="cards"><caption class="hidden">Applications of the tasks</caption>
    <thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col" class="number">Launch</th><th scope="col">Application</th><th scope="col" class="why">Cause</th></tr></thead>
    <tbody>${job.applications.map((application) => html`<tr key=${application.tag}><td class="name">${application.task}</td><td data-label="State"><${State} state=${application.state} /></td><td class="number" data-label="Launch">${application.number}</td>
      <td class="mono" data-label="Application" title=${`tag ${application.tag}`}>${application.application_id || "–"}</td><td class="why" data-label=${application.cause ? "Cause" : undefined}><span>${application.cause}</span></td></tr>`)}</tbody></table></div>`;
}

/** Return true if a run was created by a job: its id continues with an id of the service, as in digits-17-0a1b2c3d-main_1. */
const belongs = (job, run) => run.startsWith(`${job}-`) && /^[0-9a-f]{8}-/.test(run.slice(job.length + 1));

function JobRuns({ job, isOver }) {
  const { data, error } = useData(address(["runs"], { filter: `id:${job.id}-`, limit: SHOWN }), (kind, run) => kind !== "grew" && belongs(job.id, run));
  if (error) return html`<${ErrorMessage} error=${error} />`;
  if (!data) return html`<p class="soft">Loading runs…</p>`;
  const rows = data.rows.filter((row) => belongs(job.id, row.id));
  if (!rows.length) return html`<p class="soft">${isOver ? "The job created no run." : "No runs yet. A run appears when a task of the job begins to train."}</p>`;
  return html`<div class="table-frame" tabindex="0" role="region" aria-label="Runs"><table class="cards"><caption class="hidden">Runs of this job</caption>
    <thead><tr><th scope="col">Run</th><th scope="col">State</th><th scope="col" class="number">Metric</th><th scope="col" class="number">Took</th><th scope="col" class="number">Started</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.id}><td class="name run"><a href=${link(["run", row.id])}>${row.name || row.id}</a><small>${row.id}</small></td><td data-label="State"><${State} state=${row.state} /></td>
      <td class="number" data-label="Metric"><span>${row.metric_name && html`<span class="soft">${row.metric_name} </span>`}${number(row.metric)}</span></td><td class="number" data-label="Took">${duration(row.seconds)}</td><td class="number" data-label="Started" title=${exactTime(row.started)}>${time(row.started)}</td></tr>`)}</tbody></table></div>
    ${data.found > SHOWN && html`<p class="soft small">Only the newest ${SHOWN} runs are listed. <a href=${link(["runs"], { filter: `id:${job.id}-` })}>Show all runs</a></p>`}`;
}

/** All changes, oldest first, with a heading for each try after the first. */
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

function JobDetails({ job, changes }) {
  return html`<div class="stack">
    <h2>Tasks</h2><${Applications} job=${job} />
    <h2>Runs</h2><${JobRuns} job=${job} isOver=${FINAL_STATES.includes(job.state)} />
    <h2>History</h2>${changes.length ? html`<${TimeLine} changes=${changes} />` : html`<${Empty} title="No changes yet" />`}</div>`;
}

export { JobDetails };
