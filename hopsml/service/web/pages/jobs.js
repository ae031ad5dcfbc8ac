// All jobs, newest first: filtered by the service, reloaded after changes, with actions on several jobs.
import { html, useEffect, useLayoutEffect, useState } from "../lib.js";
import { address, get } from "../api.js";
import { age, count, exactTime } from "../format.js";
import { usePolled } from "../poll.js";
import { go, link } from "../route.js";
import { Empty, State, ErrorMessage } from "../parts/components.js";
import { BulkActions, FINAL_STATES } from "../parts/job_actions.js";
import { JobProgress, Submit } from "./overview.js";

const ROWS = 50, MAX_PAGE = 1000; // jobs at first and per "Load more"; of one response
const GROUPS = { // states that each filter button selects
  WAITING: ["WAITING"], RUNNING: ["STARTING", "RUNNING", "CLOSING"], PAUSED: ["PAUSED"],
  FAILED: ["FAILED"], FINISHED: ["FINISHED"], CANCELLED: ["CANCELLED"],
};
const FIELDS = { text: "Name contains", owner: "Owner", queue: "Queue" };

/** Return the newest `shown` jobs; `cursor` is null if there are no older ones. */
async function load(filter, shown, abort) {
  const jobs = [];
  let before = null;
  do {
    const page = await get(address(["v1", "jobs"], { ...filter, before, why: true, progress: true, limit: Math.min(MAX_PAGE, shown - jobs.length) }), abort);
    jobs.push(...page.jobs);
    before = page.cursor;
  } while (before !== null && jobs.length < shown);
  return { jobs, cursor: before, at: Date.now() / 1000, filter };
}

function Row({ job, at, isSelected, select }) {
  const hasEnded = FINAL_STATES.includes(job.state);
  return html`<tr><td class="check"><input type="checkbox" aria-label=${`Select ${job.id}`} checked=${isSelected} onChange=${(e) => select([job.id], e.target.checked)} /></td>
    <td class="name"><a href=${link(["job", job.id])}>${job.id}</a></td><td class="state-cell"><${State} state=${job.state} /></td>
    <td class="owner">${job.owner}</td><td class="queue">${job.queue}</td><td class="number priority">${job.priority}</td>
    <td class="progress-of"><${JobProgress} progress=${job.progress} /></td><td class="number age" title=${`submitted ${exactTime(job.submitted_s)}${hasEnded ? `, ended ${exactTime(job.ended_s)}` : ""}`}>${age(at - job.submitted_s)}</td>
    <td class="why">${job.why || job.cause}</td></tr>`;
}

function Table({ data, selected, select }) {
  const all = data.jobs.every((job) => selected.has(job.id));
  return html`<div class="table-frame" tabindex="0" role="region" aria-label="Jobs"><table class="jobs"><caption class="hidden">Jobs, newest first</caption>
    <thead><tr><th scope="col" class="check"><input type="checkbox" aria-label="Select all listed jobs" checked=${all} onChange=${(e) => select(data.jobs.map((job) => job.id), e.target.checked)} /></th>
      <th scope="col">Job</th><th scope="col">State</th><th scope="col">Owner</th><th scope="col">Queue</th><th scope="col" class="number">Priority</th><th scope="col">Progress</th><th scope="col" class="number">Age</th><th scope="col" class="why">Cause</th></tr></thead>
    <tbody>${data.jobs.map((job) => html`<${Row} key=${job.id} job=${job} at=${data.at} isSelected=${selected.has(job.id)} select=${select} />`)}</tbody></table></div>`;
}

/** Filter inputs, which apply after a pause in typing; the address of the page has their values. */
function Filter({ filter, groups, navigate }) {
  const [typed, setTyped] = useState(filter);
  const filterText = JSON.stringify(filter);
  useLayoutEffect(() => { setTyped(filter); }, [filterText]); // before the next input event, so that no typed text is lost
  useEffect(() => {
    const timer = setTimeout(() => { if (JSON.stringify(typed) !== filterText) navigate({ ...typed, state: groups }, true); }, 250);
    return () => clearTimeout(timer);
  }, [JSON.stringify(typed)]);
  const toggle = (name) => navigate({ ...filter, state: groups.includes(name) ? groups.filter((other) => other !== name) : [...groups, name] });
  return html`<div class="tools filter" role="search">${Object.entries(FIELDS).map(([name, label]) =>
      html`<input key=${name} class=${name === "text" ? "wide" : ""} type="search" placeholder=${label} aria-label=${label} value=${typed[name]} onInput=${(e) => setTyped({ ...typed, [name]: e.target.value })} />`)}</div>
    <div class="states" role="group" aria-label="Filter by state">${Object.keys(GROUPS).map((name) =>
      html`<button key=${name} aria-pressed=${groups.includes(name)} onClick=${() => toggle(name)}><${State} state=${name} /></button>`)}</div>`;
}

function Jobs({ query }) {
  const filter = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, query.get(name) ?? ""]));
  const states = query.getAll("state").filter((name) => Object.values(GROUPS).flat().includes(name));
  const groups = Object.keys(GROUPS).filter((name) => states.includes(name));
  const [shown, setShown] = useState(ROWS), [selected, setSelected] = useState(new Set());
  const request = { ...filter, state: groups.flatMap((name) => GROUPS[name]) };
  const { data, error, again } = usePolled((abort) => load(request, shown, abort), JSON.stringify([request, shown]), undefined, () => true);
  const navigate = (next, replace) => { setShown(ROWS); go(link(["jobs"], next), replace); };
  const select = (ids, isSelected) => setSelected((old) => { const next = new Set(old); for (const id of ids) if (isSelected) next.add(id); else next.delete(id); return next; });
  const narrowed = data && Object.values(data.filter).some((value) => value.length);
  return html`<h1>Jobs</h1>
    <${Filter} filter=${filter} groups=${groups} navigate=${navigate} />
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading jobs…</p>`}
    ${data && data.jobs.length > 0 && html`<${BulkActions} jobs=${data.jobs.filter((job) => selected.has(job.id))} onDone=${(ids) => { select(ids, false); again(); }} />
      <${Table} data=${data} selected=${selected} select=${select} />
      <div class="pager" aria-live="polite"><span>${count(data.jobs.length)} ${data.jobs.length === 1 ? "job" : "jobs"}${data.cursor === null ? "" : " (older ones exist)"}</span>
        ${data.cursor !== null && html`<button onClick=${() => setShown(data.jobs.length + ROWS)}>Load more</button>`}</div>`}
    ${data && !data.jobs.length && (narrowed ? html`<${Empty} title="No job matches the filter"><p>Part of a name is sufficient; owner and queue must match exactly.</p>
        <button onClick=${() => navigate({})}>Show all jobs</button></${Empty}>` : html`<${Submit} title="No jobs" />`)}`;
}

export { Jobs };
