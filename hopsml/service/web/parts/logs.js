// Logs of all workers in order of time; the server filters and searches, the page renders the visible lines.
import { html, useCallback, useEffect, useRef, useDebounced, useState } from "../lib.js";
import { address, get, listeners } from "../api.js";
import { bytes, count, plain } from "../format.js";
import { link } from "../route.js";
import { Rows } from "./rows.js";
import { Empty, ErrorMessage } from "./components.js";

const PIECE = 200; // lines per request
const MAX_PIECES = 60; // in memory
const ROW = 20; // pixels

/** Return the text of a line with all matches of the search text marked. */
function marked(text, wanted) {
  if (!wanted) return text;
  const low = text.toLowerCase(), parts = [];
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0 && parts.length < 200; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), html`<mark>${text.slice(at, at + wanted.length)}</mark>`);
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

/** Return the lines of a query: their number so far, and the loaded ones. */
function useLines(run, query) {
  const key = JSON.stringify([run, query]);
  const [state, set] = useState({ total: 0, read: 0, bytes: 0, ranks: [], known: false, error: null });
  const [, redraw] = useState(0);
  const pieces = useRef({ key: "", map: new Map(), asked: new Set() });
  if (pieces.current.key !== key) pieces.current = { key, map: new Map(), asked: new Set() };
  const fetchPiece = useCallback(async (number) => {
    const store = pieces.current;
    if (store.asked.has(number)) return;
    store.asked.add(number);
    try {
      const page = await get(address(["runs", run, "logs"], { ...query, offset: number * PIECE, limit: PIECE }));
      store.map.delete(number);
      store.map.set(number, page.lines);
      while (store.map.size > MAX_PIECES) { store.map.delete(store.map.keys().next().value); }
      redraw((n) => n + 1);
    } catch { /* requested again when it is visible again */ }
    store.asked.delete(number);
  }, [key]);
  useEffect(() => {
    const abort = new AbortController();
    let timer = null, ranks = "";
    set((old) => ({ ...old, total: 0, known: false, error: null }));
    const load = async () => {
      timer = null;
      try {
        const page = await get(address(["runs", run, "logs"], { ...query, limit: 0 }), abort.signal);
        if (abort.signal.aborted) return;
        const lastPiece = Math.floor(Math.max(0, page.total - 1) / PIECE);
        const have = pieces.current.map.get(lastPiece);
        if (have && have.length < Math.min(PIECE, page.total - lastPiece * PIECE)) fetchPiece(lastPiece);
        for (const [number, lines] of pieces.current.map)
          if (number < lastPiece && lines.length < PIECE) fetchPiece(number);
        set({ total: page.total, read: page.read, bytes: page.bytes, ranks: page.ranks, known: true, error: null });
        if (page.read < page.bytes && !abort.signal.aborted && page.read !== ranks) { ranks = page.read; timer = setTimeout(load, 50); }
      } catch (error) {
        if (error.name !== "AbortError") set((old) => ({ ...old, error }));
      }
    };
    const onEvent = (kind, id) => { if (timer === null && (id === run || kind === "hello" || kind === "reset")) timer = setTimeout(load, 300); };
    listeners.add(onEvent);
    load();
    return () => { abort.abort(); clearTimeout(timer); listeners.delete(onEvent); };
  }, [key]);
  const line = (row) => pieces.current.map.get(Math.floor(row / PIECE))?.[row % PIECE];
  const seen = (begin, end) => {
    for (let piece = Math.floor(begin / PIECE); piece <= Math.floor((end - 1) / PIECE); piece += 1)
      if (!pieces.current.map.has(piece)) fetchPiece(piece);
  };
  return { ...state, line, seen };
}

/** Search on the server: the text, the last match, and a function that goes to the next or previous match. */
function useFind(run, query) {
  const [text, setText] = useState(""), [hit, setHit] = useState(null), [none, setNone] = useState(false), [error, setError] = useState(null);
  const key = JSON.stringify(query);
  // Only the response to the last request counts: responses arrive in any order, and Enter may precede the rendering of the text.
  const latest = useRef({ text: "", row: null, asked: 0 });
  const reset = (input) => {
    latest.current = { text: input, row: null, asked: latest.current.asked + 1 };
    setText(input);
    setHit(null);
    setNone(false);
    setError(null);
  };
  const next = async (backwards, input) => {
    if (input !== undefined && input !== latest.current.text) reset(input);
    const { text: wanted, row } = latest.current;
    if (!wanted) return;
    const number = (latest.current.asked += 1), from = row === null ? 0 : row + (backwards ? -1 : 1);
    const ask = (begin) => get(address(["runs", run, "logs"], { ...query, find: wanted, from: begin, backwards: backwards ? 1 : "" }));
    let match = { line: null };
    try {
      if (from >= 0) match = await ask(from);
      if (match.line === null && !backwards && from > 0) match = await ask(0); // continue at the top
    } catch (problem) {
      if (number === latest.current.asked) setError(problem);
      return;
    }
    if (number !== latest.current.asked) return;
    setError(null);
    setNone(match.line === null);
    if (match.line === null) return;
    latest.current.row = match.line;
    setHit({ row: match.line });
  };
  useEffect(() => { reset(latest.current.text); }, [key]);
  return { text, type: reset, hit, none, error, next };
}

/** Return a ref for the search input, which Ctrl-F focuses: the browser's own search only finds the rendered lines. */
function useFindShortcut() {
  const finder = useRef(null);
  useEffect(() => {
    const onKey = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "f") { event.preventDefault(); finder.current.focus(); finder.current.select(); }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return finder;
}

function Download({ run, trial, ranks }) {
  const url = (rank) => address(["runs", run, "files", "logs", `g0-rank${rank}.log`], { trial });
  if (!ranks.length) return null;
  return html`<details class="menu"><summary class="button">Download rank</summary><div class="body">${ranks.slice(0, 64).map((rank) => html`<a key=${rank} href=${url(rank)} download>Rank ${rank}</a>`)}
    <a href=${link(["run", run, "files"], { trial, path: "logs" })}>All log files</a></div></details>`;
}

function Logs({ run, trial, isRunning, isSearch }) {
  const [rank, setRank] = useState(""), [level, setLevel] = useState(""), [typed, setTyped] = useState("");
  const [follow, setFollow] = useState(isRunning);
  const query = { trial, rank, level, text: useDebounced(typed) };
  const lines = useLines(run, query), find = useFind(run, query);
  const finder = useFindShortcut();
  const search = (backwards, input) => { setFollow(false); find.next(backwards, input); };
  const wanted = find.text.toLowerCase();
  const draw = (row) => {
    const line = lines.line(row);
    return html`<div key=${row} class=${`row ${line?.level ?? ""} ${find.hit?.row === row ? "found" : ""}`}><span class="where">${line && line.rank !== null ? line.rank : ""}</span><span class="bar"></span><span class="text">${line ? marked(plain(line.text), wanted) : ""}</span></div>`;
  };
  const narrowed = rank || level || query.text;
  return html`<div class="stack">
    <div class="tools">
      <input class="wide" type="search" placeholder="Filter lines" aria-label="Filter lines by text" value=${typed} onInput=${(e) => setTyped(e.target.value)} />
      <label class="field">Rank <select value=${rank} onChange=${(e) => setRank(e.target.value)}><option value="">all</option>${lines.ranks.map((number) => html`<option key=${number} value=${number}>${number}</option>`)}</select></label>
      <label class="field">Minimum level <select value=${level} onChange=${(e) => setLevel(e.target.value)}><option value="">all</option><option>info</option><option>warning</option><option>error</option></select></label>
      <input ref=${finder} type="search" placeholder="Find" aria-label="Find in these lines" value=${find.text} onInput=${(e) => find.type(e.target.value)}
        onKeyDown=${(e) => { if (e.key === "Enter") { e.preventDefault(); search(e.shiftKey, e.target.value); } }} />
      <button onClick=${() => search(true)} disabled=${!find.text} aria-label="Previous match" title="Previous match">↑</button><button onClick=${() => search(false)} disabled=${!find.text} aria-label="Next match" title="Next match">↓</button>
      <button aria-pressed=${follow} onClick=${() => setFollow(!follow)}>Follow</button>
      <a class="small" href=${address(["runs", run, "logs.zip"], { trial })} download>Download all (zip)</a>
      <${Download} run=${run} trial=${trial} ranks=${lines.ranks} />
    </div>
    ${find.error && html`<${ErrorMessage} error=${find.error} />`}
    ${lines.error && html`<${ErrorMessage} error=${lines.error} />`}
    ${lines.known && lines.total === 0 ? html`<${Empty} title=${narrowed ? "No line matches the filters" : "No output"}>
        <p>${narrowed ? "Remove a filter." : isSearch ? "The output of each trial is on the page of the trial; open one in the Search tab." : isRunning ? "Lines appear here as soon as a worker prints one." : "No worker of this run printed anything."}</p></${Empty}>`
      : html`<${Rows} total=${lines.total} height=${ROW} draw=${draw} seen=${lines.seen} follow=${follow} onRelease=${() => setFollow(false)} at=${find.hit} label="Log" number="rank" />`}
    <p class="progress" aria-live="polite">${count(lines.total)} lines${find.none ? "; no match" : ""}${lines.read < lines.bytes ? `; ${bytes(lines.read)} of ${bytes(lines.bytes)} searched` : `, ${bytes(lines.bytes)}`}</p>
  </div>`;
}

export { Logs, marked, useFindShortcut };
