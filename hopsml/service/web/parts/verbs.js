// What one can do with jobs: buttons, what is asked before a job ends for good, and what the service refuses.
import { html, useLayoutEffect, useRef, useState } from "../lib.js";
import { address, send } from "../api.js";
import { count } from "../format.js";
import { link } from "../route.js";
import { Trouble } from "./small.js";

const OVER = ["FINISHED", "FAILED", "CANCELLED", "STOPPED", "LOST"];
const VERBS = { // in the order of the buttons
  pause: { label: "Pause", asked: "asked to pause" },
  resume: { label: "Resume", asked: "asked to go on" },
  cancel: { label: "Cancel", asked: "asked to end" },
};

const ask = (id, verb, content) => send(address(["v1", "jobs", id, verb]), content);

/** A question in the page. The keyboard begins at what changes nothing; Escape is that answer, too. */
function Confirm({ question, yes, no, onYes, onNo }) {
  const safe = useRef(null);
  useLayoutEffect(() => { safe.current.focus(); }, []);
  return html`<div class="confirm" role="alertdialog" aria-label=${question} onKeyDown=${(e) => { if (e.key === "Escape") onNo(); }}>
    <p>${question}</p><div class="tools"><button onClick=${onYes}>${yes}</button><button ref=${safe} onClick=${onNo}>${no}</button></div></div>`;
}

/** What was refused, each reason once: `refused` is [{id, error}]. */
function Refused({ refused }) {
  const groups = new Map();
  for (const { id, error } of refused) {
    const key = `${error.message}\n${error.remedy}`;
    groups.set(key, { error, ids: [...(groups.get(key)?.ids ?? []), id] });
  }
  const named = (ids) => `${ids.slice(0, 3).join(", ")}${ids.length > 3 ? ` and ${count(ids.length - 3)} more` : ""}`;
  return [...groups].map(([key, { error, ids }]) =>
    html`<${Trouble} key=${key} error=${{ message: `${named(ids)}: ${error.message}`, remedy: error.remedy }} />`);
}

function Move({ job, onMove, onNo }) {
  const [queue, setQueue] = useState(job.queue), [priority, setPriority] = useState(String(job.priority));
  const first = useRef(null);
  useLayoutEffect(() => { first.current.focus(); }, []);
  const onSubmit = (event) => { event.preventDefault(); onMove({ queue, priority: Number(priority) }); };
  return html`<form class="confirm" aria-label="Another place" onSubmit=${onSubmit} onKeyDown=${(e) => { if (e.key === "Escape") onNo(); }}>
    <div class="tools"><label class="field">Queue <input ref=${first} type="text" required value=${queue} onInput=${(e) => setQueue(e.target.value)} /></label>
      <label class="field">Priority <input type="number" required min="1" max="100" value=${priority} onInput=${(e) => setPriority(e.target.value)} /></label>
      <button type="submit">Move</button><button type="button" onClick=${onNo}>Leave it there</button></div>
    <p class="soft small">A higher priority goes first within its queue, from 1 to 100.</p></form>`;
}

/** The verbs of one job; `again` looks at it once more. What came of the last one stands below the buttons. */
function Verbs({ job, again }) {
  const [open, setOpen] = useState(""), [told, setTold] = useState(null);
  const bar = useRef(null), busy = useRef(false);
  const button = (verb) => bar.current?.querySelector(`[data-verb="${verb}"]`);
  const close = () => { button(open)?.focus(); setOpen(""); };
  const act = async (verb, content, tell) => {
    if (busy.current) return;
    busy.current = true;
    try {
      const answer = await ask(job.id, verb, content);
      setTold(tell ? tell(answer) : { text: `It is ${VERBS[verb].asked}.`, isDone: (now) => now.state !== job.state });
      if (open) close();
    } catch (error) {
      setTold({ error });
    }
    busy.current = false;
    again();
  };
  const move = (place) => act("move", place, () =>
    ({ text: "It is asked to move.", isDone: (now) => now.queue === place.queue && now.priority === place.priority }));
  const clone = () => act("clone", {}, (made) => ({ text: html`<a href=${link(["job", made.id])}>${made.id}</a> is queued: the same job, with the same code.`, isDone: () => false }));
  const press = (verb) => { setTold(null); if (verb === "cancel") setOpen(open === verb ? "" : verb); else act(verb); };
  const may = (verb) => job.actions.includes(verb);
  return html`<div class="verbs" ref=${bar}>
    <div class="tools" role="group" aria-label="What to do with it">
      ${Object.entries(VERBS).filter(([verb]) => may(verb)).map(([verb, { label }]) => html`<button key=${verb} data-verb=${verb} onClick=${() => press(verb)}>${label}</button>`)}
      ${may("move") && html`<button data-verb="move" aria-expanded=${open === "move"} onClick=${() => { setTold(null); setOpen(open === "move" ? "" : "move"); }}>Move…</button>`}
      <button onClick=${clone}>Clone</button></div>
    ${open === "cancel" && may("cancel") && html`<${Confirm} question=${`Cancel ${job.id}? It ends for good.`} yes="Cancel the job" no="Keep it" onYes=${() => act("cancel")} onNo=${close} />`}
    ${open === "move" && may("move") && html`<${Move} job=${job} onMove=${move} onNo=${close} />`}
    ${told?.error && html`<${Trouble} error=${told.error} />`}
    <p class="soft small" role="status">${told?.text && !told.isDone(job) ? told.text : ""}</p></div>`;
}

/** The verbs of all jobs that are chosen; `onDone` gets the ids with which all went well. */
function BulkVerbs({ jobs, onDone }) {
  const [isAsked, setAsked] = useState(false), [told, setTold] = useState({ text: "", refused: [] });
  const bar = useRef(null), busy = useRef(false);
  const fitting = (verb) => jobs.filter((job) => job.actions.includes(verb)).map((job) => job.id);
  const close = () => { setAsked(false); bar.current?.querySelector("button")?.focus(); };
  const act = async (verb) => {
    const ids = fitting(verb), refused = [];
    if (busy.current) return;
    busy.current = true;
    setTold({ text: `Asking ${count(ids.length)}…`, refused });
    for (const id of ids) await ask(id, verb).catch((error) => refused.push({ id, error }));
    busy.current = false;
    const done = ids.filter((id) => refused.every((one) => one.id !== id));
    setTold({ text: done.length ? `${count(done.length)} ${done.length === 1 ? "job is" : "jobs are"} ${VERBS[verb].asked}.` : "", refused });
    if (isAsked) close();
    onDone(done);
  };
  const press = (verb) => { setTold({ text: "", refused: [] }); if (verb === "cancel") setAsked(true); else act(verb); };
  const ending = fitting("cancel").length;
  return html`<div class="verbs" ref=${bar}>
    <div class="tools" role="group" aria-label="What to do with the chosen jobs"><span class="soft small">${jobs.length ? `${count(jobs.length)} chosen` : "Choose jobs to pause, resume or cancel them together"}</span>
      ${Object.entries(VERBS).filter(([verb]) => fitting(verb).length).map(([verb, { label }]) => html`<button key=${verb} onClick=${() => press(verb)}>${label} ${fitting(verb).length}</button>`)}</div>
    ${isAsked && ending > 0 && html`<${Confirm} question=${`Cancel ${ending === 1 ? fitting("cancel")[0] : `${count(ending)} jobs`}? ${ending === 1 ? "It ends" : "They end"} for good.`}
      yes=${ending === 1 ? "Cancel the job" : "Cancel the jobs"} no=${ending === 1 ? "Keep it" : "Keep them"} onYes=${() => act("cancel")} onNo=${close} />`}
    <${Refused} refused=${told.refused} /><p class="soft small" role="status">${told.text}</p></div>`;
}

export { BulkVerbs, Confirm, OVER, Verbs };
