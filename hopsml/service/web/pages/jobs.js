// All jobs, the newest first: filtered by the service, looked at again and again, changed together.
import { html, useEffect, useLayoutEffect, useState } from "../lib.js";
import { address, get } from "../api.js";
import { age, count, exactTime } from "../format.js";
import { usePolled } from "../poll.js";
import { go, link } from "../route.js";
import { Empty, State, Trouble } from "../parts/small.js";
import { BulkVerbs, OVER } from "../parts/verbs.js";
import { Submit } from "./overview.js";

const ROWS = 50, MOST = 1000; // jobs at first, and for each "more"; of one answer
const GROUPS = { // what a button of the filter stands for
  WAITING: ["WAITING"], RUNNING: ["STARTING", "RUNNING", "CLOSING"], PAUSED: ["PAUSED"],
  FAILED: ["FAILED"], FINISHED: ["FINISHED"], CANCELLED: ["CANCELLED"],
};
const FIELDS = { text: "Part of a name", owner: "Owner", queue: "Queue" };

/** So many jobs as are shown, in as few answers as may be; `cursor`: null at the end. */
async function look(filter, shown, abort) {
  const jobs = [];
  let before = null;
  do {
    const page = await get(address(["v1", "jobs"], { ...filter, before, why: true, limit: Math.min(MOST, shown - jobs.length) }), abort);
    jobs.push(...page.jobs);
    before = page.cursor;
  } while (before !== null && jobs.length < shown);
  return { jobs, cursor: before, at: Date.now() / 1000, filter };
}

function Row({ job, at, isChosen, choose }) {
  const over = OVER.includes(job.state);
  return html`<tr><td class="check"><input type="checkbox" aria-label=${`Choose ${job.id}`} checked=${isChosen} onChange=${(e) => choose([job.id], e.target.checked)} /></td>
    <td class="name"><a href=${link(["job", job.id])}>${job.id}</a></td><td class="state-cell"><${State} state=${job.state} /></td>
    <td class="owner">${job.owner}</td><td class="queue">${job.queue}</td><td class="number priority">${job.priority}</td>
    <td class="number age" title=${`submitted ${exactTime(job.submitted_s)}${over ? `, over ${exactTime(job.ended_s)}` : ""}`}>${age(at - job.submitted_s)}</td>
    <td class="why">${job.why || job.cause}</td></tr>`;
}

function Table({ data, chosen, choose }) {
  const all = data.jobs.every((job) => chosen.has(job.id));
  return html`<div class="sheet" tabindex="0" role="region" aria-label="Jobs"><table class="jobs"><caption class="hidden">Jobs, the newest first</caption>
    <thead><tr><th scope="col" class="check"><input type="checkbox" aria-label="Choose all jobs that are shown" checked=${all} onChange=${(e) => choose(data.jobs.map((job) => job.id), e.target.checked)} /></th>
      <th scope="col">Job</th><th scope="col">State</th><th scope="col">Owner</th><th scope="col">Queue</th><th scope="col" class="number">Priority</th><th scope="col" class="number">Age</th><th scope="col" class="why">Why</th></tr></thead>
    <tbody>${data.jobs.map((job) => html`<${Row} key=${job.id} job=${job} at=${data.at} isChosen=${chosen.has(job.id)} choose=${choose} />`)}</tbody></table></div>`;
}

/** Inputs that are taken over when one stops typing; the address has what they say. */
function Filter({ filter, groups, to }) {
  const [typed, setTyped] = useState(filter);
  const said = JSON.stringify(filter);
  useLayoutEffect(() => { setTyped(filter); }, [said]); // at once: what is typed next must not be lost
  useEffect(() => {
    const timer = setTimeout(() => { if (JSON.stringify(typed) !== said) to({ ...typed, state: groups }, true); }, 250);
    return () => clearTimeout(timer);
  }, [JSON.stringify(typed)]);
  const toggle = (name) => to({ ...filter, state: groups.includes(name) ? groups.filter((one) => one !== name) : [...groups, name] });
  return html`<div class="tools filter" role="search">${Object.entries(FIELDS).map(([name, label]) =>
      html`<input key=${name} class=${name === "text" ? "wide" : ""} type="search" placeholder=${label} aria-label=${label} value=${typed[name]} onInput=${(e) => setTyped({ ...typed, [name]: e.target.value })} />`)}</div>
    <div class="states" role="group" aria-label="Only jobs in these states">${Object.keys(GROUPS).map((name) =>
      html`<button key=${name} aria-pressed=${groups.includes(name)} onClick=${() => toggle(name)}><${State} state=${name} /></button>`)}</div>`;
}

function Jobs({ query }) {
  const filter = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, query.get(name) ?? ""]));
  const states = query.getAll("state").filter((name) => Object.values(GROUPS).flat().includes(name));
  const groups = Object.keys(GROUPS).filter((name) => states.includes(name));
  const [shown, setShown] = useState(ROWS), [chosen, setChosen] = useState(new Set());
  const asked = { ...filter, state: groups.flatMap((name) => GROUPS[name]) };
  const { data, error, again } = usePolled((abort) => look(asked, shown, abort), JSON.stringify([asked, shown]), undefined, () => true);
  const to = (next, replace) => { setShown(ROWS); go(link(["jobs"], next), replace); };
  const choose = (ids, wanted) => setChosen((old) => { const next = new Set(old); for (const id of ids) if (wanted) next.add(id); else next.delete(id); return next; });
  const narrowed = data && Object.values(data.filter).some((value) => value.length);
  return html`<h1>Jobs</h1>
    <${Filter} filter=${filter} groups=${groups} to=${to} />
    ${error && html`<${Trouble} error=${error} />`}
    ${!data && !error && html`<p class="soft">Reading the jobs…</p>`}
    ${data && data.jobs.length > 0 && html`<${BulkVerbs} jobs=${data.jobs.filter((job) => chosen.has(job.id))} onDone=${(ids) => { choose(ids, false); again(); }} />
      <${Table} data=${data} chosen=${chosen} choose=${choose} />
      <div class="pager" aria-live="polite"><span>${count(data.jobs.length)} ${data.jobs.length === 1 ? "job" : "jobs"}${data.cursor === null ? "" : ", and older ones"}</span>
        ${data.cursor !== null && html`<button onClick=${() => setShown(data.jobs.length + ROWS)}>More</button>`}</div>`}
    ${data && !data.jobs.length && (narrowed ? html`<${Empty} title="No job passes this filter"><p>A name is found by a part of it; owner and queue have to be whole.</p>
        <button onClick=${() => to({})}>Show all jobs</button></${Empty}>` : html`<${Submit} title="There are no jobs yet" />`)}`;
}

export { Jobs };
