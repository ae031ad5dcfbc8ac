// Log of a task's driver: followed as it grows, stored as lines, of which only the visible ones are rendered.
import { html, useEffect, useRef, useState } from "../lib.js";
import { address, follow } from "../api.js";
import { count, plain } from "../format.js";
import { marked, useFindShortcut } from "./logs.js";
import { Rows } from "./rows.js";
import { Empty } from "./components.js";

const ROW = 20; // pixels
const MAX_LINES = 200_000; // of a longer log the newest ones are stored
const MAX_WIDTH = 4000; // characters of a line that are rendered
const TAIL_BYTES = 8 << 20; // end of an existing log that is requested, so that a long log appears at once
const RENDER_MS = 100; // from received text to its rendering, as many pieces come at once

/** Return an empty log. `begin`: offset of its first byte; `source`: id of the application. */
const newLog = (source = "", begin = 0) => ({ source, begin, offset: begin, lines: [], rest: "", dropped: 0 });

function append(log, text) {
  const parts = (log.rest + text).split("\n");
  log.rest = parts.pop();
  for (const line of parts) log.lines.push(plain(line));
  const tooMany = log.lines.length - MAX_LINES;
  if (log.begin && !log.isWithin && log.lines.length) { log.isWithin = true; log.lines.shift(); } // the first line is incomplete
  if (tooMany > 0) { log.lines.splice(0, tooMany); log.dropped += tooMany; }
}

/** Return the log of a task's driver while it is displayed; it is read again for a new try, and after a truncation. `attempt`: only this try. */
function useDriverLog(id, task, attempt, isShown) {
  const [log, set] = useState(newLog()), latest = useRef(null);
  useEffect(() => {
    if (!isShown) return undefined;
    let timer = null;
    latest.current = null;
    const draw = () => { timer ??= setTimeout(() => { timer = null; set({ ...latest.current }); }, RENDER_MS); };
    const of = attempt ? { task, try: attempt } : { task };
    const at = () => address(["v1", "jobs", id, "log", "events"], latest.current
      ? { ...of, offset: latest.current.offset, application: latest.current.source } : { ...of, offset: -TAIL_BYTES });
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

/** Search in the stored lines: the text, the last match, and a function that goes to the next or previous match. */
function useFind(total, line) {
  const [text, setText] = useState(""), [hit, setHit] = useState(null), [hasNoMatch, setNoMatch] = useState(false);
  const type = (value) => { setText(value); setHit(null); setNoMatch(false); };
  const next = (backwards, input) => { // value of the input: the state may lack the newest letter
    const wanted = input.toLowerCase();
    const step = backwards ? -1 : 1, from = hit === null ? (backwards ? total : -1) : hit.row;
    let row = null;
    for (let distance = 1; wanted && distance <= total && row === null; distance += 1) {
      const at = (((from + step * distance) % total) + total) % total; // continues at the other end
      if (line(at).toLowerCase().includes(wanted)) row = at;
    }
    setNoMatch(wanted !== "" && row === null);
    if (row !== null) setHit({ row });
  };
  return { text, type, hit, hasNoMatch, next };
}

function DriverLog({ log, tasks, task, onTask, tries, attempt, onAttempt, isRunning }) {
  const [follow, setFollow] = useState(isRunning);
  const total = log.lines.length + (log.rest ? 1 : 0);
  const line = (row) => (row < log.lines.length ? log.lines[row] : plain(log.rest));
  const find = useFind(total, line), finder = useFindShortcut();
  const search = (backwards, input = find.text) => { setFollow(false); find.next(backwards, input); };
  const wanted = find.text.toLowerCase();
  const draw = (row) => html`<div key=${row} class=${find.hit?.row === row ? "row found" : "row"}><span class="where">${log.dropped + row + 1}</span><span class="bar"></span><span class="text">${marked((line(row) ?? "").slice(0, MAX_WIDTH), wanted)}</span></div>`;
  return html`<div class="stack">
    <div class="tools">
      ${tasks.length > 1 && html`<label class="field">Driver of <select value=${task || tasks[0]} onChange=${(e) => onTask(e.target.value)}>${tasks.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`}
      ${tries > 1 && html`<label class="field">Try <select value=${attempt} onChange=${(e) => onAttempt(e.target.value)}><option value="">newest</option>${Array.from({ length: tries }, (_, at) => html`<option key=${at} value=${at + 1}>${at + 1}</option>`)}</select></label>`}
      <input class="wide" ref=${finder} type="search" placeholder="Find" aria-label="Find in these lines" value=${find.text} onInput=${(e) => find.type(e.target.value)}
        onKeyDown=${(e) => { if (e.key === "Enter") { e.preventDefault(); search(e.shiftKey, e.target.value); } }} />
      <button onClick=${() => search(true)} disabled=${!find.text} aria-label="Previous match" title="Previous match">↑</button><button onClick=${() => search(false)} disabled=${!find.text} aria-label="Next match" title="Next match">↓</button>
      <button aria-pressed=${follow} onClick=${() => setFollow(!follow)}>Follow</button></div>
    ${total === 0 ? html`<${Empty} title=${log.source ? "No output" : "The driver has not started"}><p>${isRunning ? "Lines appear here as soon as the driver prints one." : "This try of the job printed nothing."}</p></${Empty}>`
      : html`<${Rows} total=${total} height=${ROW} draw=${draw} seen=${() => {}} follow=${follow} onRelease=${() => setFollow(false)} at=${find.hit} label="Log" number="line" />`}
    <p class="progress" aria-live="polite">${count(log.dropped + total)} lines${log.dropped ? `; only the newest ${count(MAX_LINES)} are displayed` : ""}${log.begin ? `; only the newest ${count(TAIL_BYTES >> 20)} MiB are displayed` : ""}${find.hasNoMatch ? "; no match" : ""}</p></div>`;
}

export { DriverLog, useDriverLog };
