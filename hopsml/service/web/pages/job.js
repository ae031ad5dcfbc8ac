// One job: how it stands, why it waits, what one can do with it, and what is known of it.
import { html, useRef, useState } from "../lib.js";
import { address, get } from "../api.js";
import { age, duration, exactTime, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { Course } from "../parts/course.js";
import { DriverLog, useDriverLog } from "../parts/driver_log.js";
import { Facts, State, Trouble } from "../parts/small.js";
import { OVER, Verbs } from "../parts/verbs.js";
import { useNow } from "./runs.js";

const TABS = [["course", "What happened"], ["log", "Log"], ["file", "Job file"]];
const HOLDS = ["WAITING", "PAUSED"]; // states in which nothing of it runs

/** What the page shows, with what is new since the last look: `store` has the changes so far. */
async function look(id, store, abort) {
  const job = await get(address(["v1", "jobs", id]), abort); // first: what comes after its end is read all the same
  const newer = await get(address(["v1", "jobs", id, "changes"], { after: store.changes.at(-1)?.id ?? 0 }), abort);
  if (!abort.aborted) store.changes = [...store.changes, ...newer];
  return { job, changes: store.changes };
}

function Stands({ job }) {
  if (job.state === "FAILED") return html`<div class="trouble"><strong>${job.cause}</strong>${job.applications.length > 0 && html`<p class="small"><a href=${link(["job", job.id, "log"])}>What its driver printed</a></p>`}</div>`;
  if (job.why) return html`<div class="reason"><h2>${job.state === "WAITING" ? "Why it waits" : "What is known of it"}</h2><p>${job.why}</p></div>`;
  return html`<p class="cause">${job.cause}</p>`;
}

/** "2 of 1 to 4" of each elastic task that runs; null for none. */
function slots(job) {
  const elastic = job.sizes.filter((one) => one.slots > 0 && one.fewest < one.most);
  const said = elastic.map((one) => `${elastic.length > 1 ? `${one.task} ` : ""}${one.slots}${one.target < one.slots ? `, soon ${one.target},` : ""} of ${one.fewest} to ${one.most}`);
  return said.join("; ") || null;
}

function Head({ job, now, again }) {
  const over = OVER.includes(job.state), when = (seconds) => seconds > 0 && html`<span title=${exactTime(seconds)}>${time(seconds)}</span>`;
  const first = over ? job.started_s ? ["Took", duration(job.ended_s - job.started_s)] : job.tries ? ["From submission to its end", duration(job.ended_s - job.submitted_s)] : ["Took", "it never ran"]
    : HOLDS.includes(job.state) || !job.started_s ? ["Since it was submitted", age(now - job.submitted_s)] : ["Running for", age(now - job.started_s)];
  return html`<header class="head">
    <p class="small"><a href=${link(["jobs"])}>All jobs</a></p>
    <div class="title"><h1>${job.id}</h1><${State} state=${job.state} /></div>
    <${Stands} job=${job} />
    <${Facts} first=${1} facts=${[first, ["Owner", job.owner], ["Queue", job.queue], ["Priority", job.priority], ["Slots", slots(job)],
      ["Submitted", when(job.submitted_s)], ["Started", when(job.started_s) || null], ["Ended", when(job.ended_s) || null],
      ["Tries", job.tries], ["Retries left", job.retries || null], ["Made room for others", job.preemptions ? `${job.preemptions} ×` : null], ["Profile", job.profile]]} />
    <${Verbs} job=${job} again=${again} /></header>`;
}

function Job({ id, tab }) {
  const here = TABS.some(([name]) => name === tab) ? tab : "course";
  const [task, setTask] = useState(""), [attempt, setAttempt] = useState(""); // "": the newest one
  const store = useRef({ changes: [] });
  const { data, error, again } = usePolled((abort) => look(id, store.current, abort), id,
    (found) => OVER.includes(found.job.state), (other) => other === (data?.job.id ?? id));
  const log = useDriverLog(id, task, attempt, here === "log" && data !== null);
  const now = useNow(data !== null && !OVER.includes(data.job.state));
  if (!data) return error ? html`<h1>${id}</h1><${Trouble} error=${error} /><p><a href=${link(["jobs"])}>All jobs</a></p>` : html`<p class="soft">Reading the job…</p>`;
  const { job, changes } = data;
  const tasks = [...new Set(job.applications.map((one) => one.task))];
  return html`<${Head} job=${job} now=${now} again=${again} />
    ${error && html`<${Trouble} error=${error} />`}
    <nav class="tabs" aria-label="What is known of this job">${TABS.map(([name, label]) => html`<a key=${name} href=${link(["job", id, name])} aria-current=${name === here ? "page" : undefined}>${label}</a>`)}</nav>
    ${here === "course" && html`<${Course} job=${job} changes=${changes} />`}
    ${here === "log" && html`<${DriverLog} log=${log} tasks=${tasks} task=${task} onTask=${setTask}
      tries=${job.tries} attempt=${attempt} onAttempt=${setAttempt} goesOn=${!OVER.includes(job.state) && (!attempt || Number(attempt) === job.tries)} />`}
    ${here === "file" && html`<section class="record preview" aria-label="Job file"><pre tabindex="0">${job.spec}</pre></section>`}`;
}

export { Job };
