// Actions on jobs: buttons, confirmation of a cancellation, and errors of the service.
import { html, useLayoutEffect, useRef, useState } from "../lib.js";
import { address, send } from "../api.js";
import { count } from "../format.js";
import { link } from "../route.js";
import { ErrorMessage } from "./components.js";

const FINAL_STATES = ["FINISHED", "FAILED", "CANCELLED", "STOPPED", "LOST"];
const ACTIONS = { // in the order of the buttons
  pause: { label: "Pause", requested: "Pause" },
  resume: { label: "Resume", requested: "Resume" },
  cancel: { label: "Cancel", requested: "Cancellation" },
};

const request = (id, action, content) => send(address(["v1", "jobs", id, action]), content);

/** Confirmation in the page. The button that changes nothing has the focus at first; Escape has the same effect. */
function Confirm({ question, yes, no, onYes, onNo }) {
  const safe = useRef(null);
  useLayoutEffect(() => { safe.current.focus(); }, []);
  return html`<div class="confirm" role="alertdialog" aria-label=${question} onKeyDown=${(e) => { if (e.key === "Escape") onNo(); }}>
    <p>${question}</p><div class="tools"><button onClick=${onYes}>${yes}</button><button ref=${safe} onClick=${onNo}>${no}</button></div></div>`;
}

/** Errors of several jobs, each message once; `refused`: [{id, error}]. */
function Errors({ refused }) {
  const groups = new Map();
  for (const { id, error } of refused) {
    const key = `${error.message}\n${error.remedy}`;
    groups.set(key, { error, ids: [...(groups.get(key)?.ids ?? []), id] });
  }
  const named = (ids) => `${ids.slice(0, 3).join(", ")}${ids.length > 3 ? ` and ${count(ids.length - 3)} more` : ""}`;
  return [...groups].map(([key, { error, ids }]) =>
    html`<${ErrorMessage} key=${key} error=${{ message: `${named(ids)}: ${error.message}`, remedy: error.remedy }} />`);
}

function Move({ job, onMove, onNo }) {
  const [queue, setQueue] = useState(job.queue), [priority, setPriority] = useState(String(job.priority));
  const first = useRef(null);
  useLayoutEffect(() => { first.current.focus(); }, []);
  const onSubmit = (event) => { event.preventDefault(); onMove({ queue, priority: Number(priority) }); };
  return html`<form class="confirm" aria-label="Move the job" onSubmit=${onSubmit} onKeyDown=${(e) => { if (e.key === "Escape") onNo(); }}>
    <div class="tools"><label class="field">Queue <input ref=${first} type="text" required value=${queue} onInput=${(e) => setQueue(e.target.value)} /></label>
      <label class="field">Priority <input type="number" required min="1" max="100" value=${priority} onInput=${(e) => setPriority(e.target.value)} /></label>
      <button type="submit">Move</button><button type="button" onClick=${onNo}>Keep unchanged</button></div>
    <p class="soft small">Priority is from 1 to 100; jobs of higher priority start first within their queue.</p></form>`;
}

/** Buttons for one job, and the result of the last action; `again` reloads the job. */
function JobActions({ job, again }) {
  const [open, setOpen] = useState(""), [outcome, setOutcome] = useState(null);
  const bar = useRef(null), busy = useRef(false);
  const button = (action) => bar.current?.querySelector(`[data-action="${action}"]`);
  const close = () => { button(open)?.focus(); setOpen(""); };
  const act = async (action, content, describe) => {
    if (busy.current) return;
    busy.current = true;
    try {
      const answer = await request(job.id, action, content);
      setOutcome(describe ? describe(answer) : { text: `${ACTIONS[action].requested} requested.`, isDone: (now) => now.state !== job.state });
      if (open) close();
    } catch (error) {
      setOutcome({ error });
    }
    busy.current = false;
    again();
  };
  const move = (place) => act("move", place, () =>
    ({ text: "Move requested.", isDone: (now) => now.queue === place.queue && now.priority === place.priority }));
  const clone = () => act("clone", {}, (made) => ({ text: html`<a href=${link(["job", made.id])}>${made.id}</a> is queued with the same code.`, isDone: () => false }));
  const press = (action) => { setOutcome(null); if (action === "cancel") setOpen(open === action ? "" : action); else act(action); };
  const may = (action) => job.actions.includes(action);
  return html`<div class="job-actions" ref=${bar}>
    <div class="tools" role="group" aria-label="Actions">
      ${Object.entries(ACTIONS).filter(([action]) => may(action)).map(([action, { label }]) => html`<button key=${action} data-action=${action} onClick=${() => press(action)}>${label}</button>`)}
      ${may("move") && html`<button data-action="move" aria-expanded=${open === "move"} onClick=${() => { setOutcome(null); setOpen(open === "move" ? "" : "move"); }}>Move…</button>`}
      <button onClick=${clone}>Clone</button></div>
    ${open === "cancel" && may("cancel") && html`<${Confirm} question=${`Cancel ${job.id}? This cannot be undone.`} yes="Cancel job" no="Keep job" onYes=${() => act("cancel")} onNo=${close} />`}
    ${open === "move" && may("move") && html`<${Move} job=${job} onMove=${move} onNo=${close} />`}
    ${outcome?.error && html`<${ErrorMessage} error=${outcome.error} />`}
    <p class="soft small" role="status">${outcome?.text && !outcome.isDone(job) ? outcome.text : ""}</p></div>`;
}

/** Buttons for all selected jobs; `onDone` receives the ids of the jobs for which the action succeeded. */
function BulkActions({ jobs, onDone }) {
  const [isConfirming, setConfirming] = useState(false), [outcome, setOutcome] = useState({ text: "", refused: [] });
  const bar = useRef(null), busy = useRef(false);
  const fitting = (action) => jobs.filter((job) => job.actions.includes(action)).map((job) => job.id);
  const close = () => { setConfirming(false); bar.current?.querySelector("button")?.focus(); };
  const act = async (action) => {
    const ids = fitting(action), refused = [];
    if (busy.current) return;
    busy.current = true;
    setOutcome({ text: `Sending ${count(ids.length)} requests…`, refused });
    for (const id of ids) await request(id, action).catch((error) => refused.push({ id, error }));
    busy.current = false;
    const done = ids.filter((id) => refused.every((failure) => failure.id !== id));
    setOutcome({ text: done.length ? `${ACTIONS[action].requested} of ${count(done.length)} ${done.length === 1 ? "job" : "jobs"} requested.` : "", refused });
    if (isConfirming) close();
    onDone(done);
  };
  const press = (action) => { setOutcome({ text: "", refused: [] }); if (action === "cancel") setConfirming(true); else act(action); };
  const ending = fitting("cancel").length;
  return html`<div class="job-actions" ref=${bar}>
    <div class="tools" role="group" aria-label="Actions on selected jobs"><span class="soft small">${jobs.length ? `${count(jobs.length)} selected` : "Select jobs to pause, resume or cancel them together."}</span>
      ${Object.entries(ACTIONS).filter(([action]) => fitting(action).length).map(([action, { label }]) => html`<button key=${action} onClick=${() => press(action)}>${label} ${fitting(action).length}</button>`)}</div>
    ${isConfirming && ending > 0 && html`<${Confirm} question=${`Cancel ${ending === 1 ? fitting("cancel")[0] : `${count(ending)} jobs`}? This cannot be undone.`}
      yes=${ending === 1 ? "Cancel job" : "Cancel jobs"} no=${ending === 1 ? "Keep job" : "Keep jobs"} onYes=${() => act("cancel")} onNo=${close} />`}
    <${Errors} refused=${outcome.refused} /><p class="soft small" role="status">${outcome.text}</p></div>`;
}

export { BulkActions, Confirm, FINAL_STATES, JobActions };
