// One job: state, reason for waiting, actions, details, log, job file and code.
import { html, useRef, useState } from "../lib.js";
import { address, get } from "../api.js";
import { age, duration, exactTime, jobProgressText, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { JobDetails } from "../parts/job_details.js";
import { DriverLog, useDriverLog } from "../parts/driver_log.js";
import { FileBrowser } from "../parts/files.js";
import { PropertyList, State, ErrorMessage } from "../parts/components.js";
import { FINAL_STATES, JobActions } from "../parts/job_actions.js";
import { useNow } from "./runs.js";

const TABS = [["details", "Details"], ["log", "Log"], ["file", "Job file"], ["code", "Code"]];
const NOT_RUNNING = ["WAITING", "PAUSED"];

/** Load a job and its new changes; `store` has the changes so far. */
async function load(id, store, abort) {
  const job = await get(address(["v1", "jobs", id]), abort); // before the changes, so that none after its end is missed
  const newer = await get(address(["v1", "jobs", id, "changes"], { after: store.changes.at(-1)?.id ?? 0 }), abort);
  if (!abort.aborted) store.changes = [...store.changes, ...newer];
  return { job, changes: store.changes };
}

function JobStatus({ job }) {
  if (job.state === "FAILED") return html`<div class="error-message"><strong>${job.cause}</strong>${job.applications.length > 0 && html`<p class="small"><a href=${link(["job", job.id, "log"])}>Log of the driver</a></p>`}</div>`;
  if (job.why) return html`<div class="reason"><h2>${job.state === "WAITING" ? "Reason for waiting" : "Status"}</h2><p>${job.why}</p></div>`;
  return html`<p class="cause">${job.cause}</p>`;
}

/** "2 of 1 to 4" for each running elastic task; null without one. */
function slots(job) {
  const elastic = job.sizes.filter((task) => task.slots > 0 && task.fewest < task.most);
  const texts = elastic.map(({ task, slots: now, target, fewest, most }) => `${elastic.length > 1 ? `${task}: ` : ""}${now} of ${fewest} to ${most}${target < now ? ` (releasing ${now - target})` : ""}`);
  return texts.join("; ") || null;
}

function Head({ job, now, again }) {
  const over = FINAL_STATES.includes(job.state), when = (seconds) => seconds > 0 && html`<span title=${exactTime(seconds)}>${time(seconds)}</span>`;
  const first = over ? job.started_s ? ["Duration", duration(job.ended_s - job.started_s)] : job.tries ? ["From submission to end", duration(job.ended_s - job.submitted_s)] : ["Duration", "did not start"]
    : NOT_RUNNING.includes(job.state) || !job.started_s ? ["Age", age(now - job.submitted_s)] : ["Running for", age(now - job.started_s)];
  return html`<header class="head">
    <p class="small"><a href=${link(["jobs"])}>All jobs</a></p>
    <div class="title"><h1>${job.id}</h1><${State} state=${job.state} /></div>
    <${JobStatus} job=${job} />
    <${PropertyList} first=${1} properties=${[first, ["Owner", job.owner], ["Queue", job.queue], ["Priority", job.priority], ["Slots", slots(job)], ["Progress", job.progress && html`<a href=${link(["run", job.progress.run])}>${jobProgressText(job.progress)}</a>`],
      ["Submitted", when(job.submitted_s)], ["Started", when(job.started_s) || null], ["Ended", when(job.ended_s) || null],
      ["Tries", job.tries], ["Retries left", job.retries || null], ["Preemptions", job.preemptions || null], ["Profile", job.profile]]} />
    <${JobActions} job=${job} again=${again} /></header>`;
}

function Job({ id, tab, query }) {
  const here = TABS.some(([name]) => name === tab) ? tab : "details";
  const [task, setTask] = useState(""), [attempt, setAttempt] = useState(""); // "": newest
  const store = useRef({ changes: [] });
  const { data, error, again } = usePolled((abort) => load(id, store.current, abort), id,
    (loaded) => FINAL_STATES.includes(loaded.job.state), (other) => other === (data?.job.id ?? id));
  const log = useDriverLog(id, task, attempt, here === "log" && data !== null);
  const now = useNow(data !== null && !FINAL_STATES.includes(data.job.state));
  if (!data) return error ? html`<h1>${id}</h1><${ErrorMessage} error=${error} /><p><a href=${link(["jobs"])}>All jobs</a></p>` : html`<p class="soft">Loading the job…</p>`;
  const { job, changes } = data;
  const tasks = [...new Set(job.applications.map((application) => application.task))];
  return html`<${Head} job=${job} now=${now} again=${again} />
    ${error && html`<${ErrorMessage} error=${error} />`}
    <nav class="tabs" aria-label="Sections of the job">${TABS.map(([name, label]) => html`<a key=${name} href=${link(["job", id, name])} aria-current=${name === here ? "page" : undefined}>${label}</a>`)}</nav>
    ${here === "details" && html`<${JobDetails} job=${job} changes=${changes} />`}
    ${here === "log" && html`<${DriverLog} log=${log} tasks=${tasks} task=${task} onTask=${setTask}
      tries=${job.tries} attempt=${attempt} onAttempt=${setAttempt} isRunning=${!FINAL_STATES.includes(job.state) && (!attempt || Number(attempt) === job.tries)} />`}
    ${here === "file" && html`<section class="record preview" aria-label="Job file"><pre tabindex="0">${job.spec}</pre></section>`}
    ${here === "code" && html`<${FileBrowser} label="Code" path=${query.get("path") ?? ""} at=${(kind, names) => address(["v1", "jobs", id, "code", kind, ...names])}
      folder=${(names) => link(["job", id, "code"], { path: names.join("/") })} concerns=${() => false}><p>The code has no files.</p></${FileBrowser}>`}`;
}

export { Job };
