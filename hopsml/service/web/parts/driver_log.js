// What the driver of a task prints: followed as it grows, kept as lines, of which those that are seen are drawn.
import { html, useEffect, useRef, useState } from "../lib.js";
import { address, follow } from "../api.js";
import { count } from "../format.js";
import { marked, useFinder } from "./logs.js";
import { Rows } from "./rows.js";
import { Empty } from "./small.js";

const ROW = 20; // pixels
const KEPT = 200_000; // lines; of a longer log the newest ones
const WIDEST = 4000; // characters of a line that are drawn
const NEWEST = 8 << 20; // bytes of a log that is there already which are asked for: a long one is seen at once
const WITHIN_MS = 100; // from a piece to the lines on the page: many come at once

/** `begin`: the byte that the first line is from; `source`: the application whose log it is. */
const newLog = (source = "", begin = 0) => ({ source, begin, offset: begin, lines: [], rest: "", dropped: 0 });

/** What only a terminal understands: colours, cursor, titles. */
const FOR_TERMINALS = /\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/g; // eslint-disable-line no-control-regex

/** A progress bar writes over its line again and again: its last state stays. */
const overwritten = (line) => (line.includes("\r") ? line.replace(/\r+$/, "").split("\r").at(-1) : line).replace(FOR_TERMINALS, "");

function append(log, text) {
  const parts = (log.rest + text).split("\n");
  log.rest = parts.pop();
  for (const line of parts) log.lines.push(overwritten(line));
  const tooMany = log.lines.length - KEPT;
  if (log.begin && !log.isWithin && log.lines.length) { log.isWithin = true; log.lines.shift(); } // the first one is cut
  if (tooMany > 0) { log.lines.splice(0, tooMany); log.dropped += tooMany; }
}

/** The log of a task's driver, while it is shown; that of a new try, or one that was cut, begins anew. `attempt`: of this try alone. */
function useDriverLog(id, task, attempt, isShown) {
  const [log, set] = useState(newLog()), latest = useRef(null);
  useEffect(() => {
    if (!isShown) return undefined;
    let timer = null;
    latest.current = null;
    const draw = () => { timer ??= setTimeout(() => { timer = null; set({ ...latest.current }); }, WITHIN_MS); };
    const of = attempt ? { task, try: attempt } : { task };
    const at = () => address(["v1", "jobs", id, "log", "events"], latest.current
      ? { ...of, offset: latest.current.offset, application: latest.current.source } : { ...of, offset: -NEWEST });
    const begin = (event) => {
      const source = JSON.parse(event.data).application, known = latest.current;
      if (event.type === "hello" && known && known.offset === Number(event.lastEventId) && known.source === source) return;
      latest.current = newLog(source, Number(event.lastEventId));
      draw();
    };
    const stream = follow(at, { hello: begin, reset: begin,
      log: (event) => { append(latest.current, JSON.parse(event.data).text); latest.current.offset = Number(event.lastEventId); draw(); },
      end: () => stream.end() });
    return () => { stream.end(); clearTimeout(timer); };
  }, [id, task, attempt, isShown]);
  return log;
}

/** Find in lines that are here: the text, where it was found last, and the ways to the next and to the one before. */
function useFind(total, line) {
  const [text, setText] = useState(""), [hit, setHit] = useState(null), [isNowhere, setNowhere] = useState(false);
  const type = (value) => { setText(value); setHit(null); setNowhere(false); };
  const next = (backwards, said) => { // what stands in the input: the newest letter may not be drawn yet
    const wanted = said.toLowerCase();
    const step = backwards ? -1 : 1, from = hit === null ? (backwards ? total : -1) : hit.row;
    let row = null;
    for (let gone = 1; wanted && gone <= total && row === null; gone += 1) {
      const at = (((from + step * gone) % total) + total) % total; // beyond the end from the other end
      if (line(at).toLowerCase().includes(wanted)) row = at;
    }
    setNowhere(wanted !== "" && row === null);
    if (row !== null) setHit({ row });
  };
  return { text, type, hit, isNowhere, next };
}

function DriverLog({ log, tasks, task, onTask, tries, attempt, onAttempt, goesOn }) {
  const [follow, setFollow] = useState(goesOn);
  const total = log.lines.length + (log.rest ? 1 : 0);
  const line = (row) => (row < log.lines.length ? log.lines[row] : overwritten(log.rest));
  const find = useFind(total, line), finder = useFinder();
  const search = (backwards, said = find.text) => { setFollow(false); find.next(backwards, said); };
  const wanted = find.text.toLowerCase();
  const draw = (row) => html`<div key=${row} class=${find.hit?.row === row ? "row found" : "row"}><span class="where">${log.dropped + row + 1}</span><span class="bar"></span><span class="text">${marked((line(row) ?? "").slice(0, WIDEST), wanted)}</span></div>`;
  return html`<div class="stack">
    <div class="tools">
      ${tasks.length > 1 && html`<label class="field">Driver of <select value=${task || tasks[0]} onChange=${(e) => onTask(e.target.value)}>${tasks.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>`}
      ${tries > 1 && html`<label class="field">Try <select value=${attempt} onChange=${(e) => onAttempt(e.target.value)}><option value="">the newest</option>${Array.from({ length: tries }, (_, at) => html`<option key=${at} value=${at + 1}>${at + 1}</option>`)}</select></label>`}
      <input class="wide" ref=${finder} type="search" placeholder="Find" aria-label="Find in these lines" value=${find.text} onInput=${(e) => find.type(e.target.value)}
        onKeyDown=${(e) => { if (e.key === "Enter") { e.preventDefault(); search(e.shiftKey, e.target.value); } }} />
      <button onClick=${() => search(true)} disabled=${!find.text} aria-label="The one before">↑</button><button onClick=${() => search(false)} disabled=${!find.text} aria-label="The next one">↓</button>
      <button aria-pressed=${follow} onClick=${() => setFollow(!follow)}>Follow</button></div>
    ${total === 0 ? html`<${Empty} title=${log.source ? "Nothing was printed" : "No driver has begun"}><p>${goesOn ? "Lines appear here as soon as the driver prints one." : "This try of the job left no lines."}</p></${Empty}>`
      : html`<${Rows} total=${total} height=${ROW} draw=${draw} seen=${() => {}} follow=${follow} onRelease=${() => setFollow(false)} at=${find.hit} label="Log" number="line" />`}
    <p class="progress" aria-live="polite">${count(log.dropped + total)} lines${log.dropped ? `, of which the newest ${count(KEPT)} are here` : ""}${find.isNowhere ? "; the text is in none of them" : ""}${log.begin ? `; what stands before the newest ${count(NEWEST >> 20)} MiB is not` : ""}</p></div>`;
}

export { DriverLog, useDriverLog };
