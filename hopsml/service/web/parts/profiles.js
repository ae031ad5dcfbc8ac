// Stack profiles of a run's workers: the list, one as a flame graph, and a form that requests one.
import { html, useEffect, useState, useWidth, useRef } from "../lib.js";
import { address, send, useData } from "../api.js";
import { bytes, duration, exactTime, number, time } from "../format.js";
import { Empty, ErrorMessage } from "./components.js";

const ROW = 18, LETTER = 6.6, HAS_GRAPH = /\.speedscope\.json$/; // pixels
const ALL = 0.999, MAX_LINES = 8; // share of the whole; entries of the list above the graph

/** "step (/home/ana/train.py:8)" as "step train.py:8". */
const short = (label) => label.replace(/ \((?:.*\/)?([^/]+:\d+)\)$/, " $1");
const percent = (part) => `${number(Math.round(part * 1000) / 10)} %`;

/** Return the lowest box that has the whole width: the boxes above it only start the worker. */
function trunkOf(boxes) {
  let trunk = null;
  for (const box of boxes) if (box[2] >= ALL && box[0] === (trunk ? trunk[0] + 1 : 0)) trunk = box;
  return trunk;
}

/** Return [line, share of the time] of the lines that take the most time themselves, without the functions that they call. */
function selfTimes(boxes) {
  const stack = [], own = new Map();
  const inOrder = boxes.map((box) => ({ box, own: box[2] })).sort((a, b) => a.box[1] - b.box[1] || a.box[0] - b.box[0]);
  for (const entry of inOrder) {
    while (stack.length && stack.at(-1).box[0] >= entry.box[0]) stack.pop();
    if (stack.length) stack.at(-1).own -= entry.box[2];
    stack.push(entry);
  }
  for (const { box, own: left } of inOrder) own.set(box[3], (own.get(box[3]) ?? 0) + left);
  return [...own].sort((a, b) => b[1] - a[1]).slice(0, MAX_LINES).filter(([, part]) => part >= 0.005);
}

function Box({ box, x, y, pixels, onOpen }) {
  const [depth, , wide, label] = box, letters = Math.floor((pixels - 8) / LETTER), caption = `${short(label)} · ${percent(wide)}`;
  const keyed = pixels > 30 ? { role: "button", tabindex: 0, "aria-label": caption, onKeyDown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); onOpen(); } } } : {};
  return html`<g class=${`box c${depth % 2}`} onClick=${onOpen} ...${keyed}><title>${label} · ${percent(wide)}</title>
    <rect x=${x} y=${y} width=${Math.max(1, pixels)} height=${ROW} />
    ${pixels > 30 && html`<text x=${x + 4} y=${y + 13}>${caption.length <= letters ? caption : short(label).slice(0, letters)}</text>`}</g>`;
}

/** Flame graph with callers above the functions that they call; a click on a box enlarges it to the full width. */
function Flame({ run, name }) {
  const { data, error } = useData(address(["runs", run, "profiles", name]), () => false);
  const box = useRef(null), width = useWidth(box), [selected, setSelected] = useState(undefined); // null: the whole graph
  useEffect(() => setSelected(undefined), [name]);
  const boxes = data?.boxes ?? [], trunk = trunkOf(boxes);
  const whole = selected === undefined ? trunk : selected;
  const [depth0, begin0, width0] = whole ?? [0, 0, 1];
  const isBelow = ([, begin, wide]) => begin >= begin0 - 1e-9 && begin + wide <= begin0 + width0 + 1e-9;
  const shown = boxes.filter((entry) => entry[0] >= depth0 && isBelow(entry) && (entry[2] / width0) * width >= 1);
  const rows = shown.reduce((most, [depth]) => Math.max(most, depth - depth0 + 1), 0), own = selfTimes(boxes);
  return html`<section class="record flame" aria-label=${`Flame graph of ${name}`}>
    ${own.length > 0 && html`<h3>Lines that take the most time</h3><ul class="own">${own.map(([label, part]) => html`<li key=${label} title=${label}><span class="number">${percent(part)}</span>
      <span class="track" aria-hidden="true"><span class="fill" style=${{ width: `${(part * 100).toFixed(1)}%` }}></span></span><span class="mono">${short(label)}</span></li>`)}</ul>`}
    <div class="tools"><span class="soft small">${data ? `${duration(data.seconds)} of all threads. Functions are below their callers. Select a box to enlarge it.` : "Loading the profile…"}</span>
      <span class="end tools">${whole && depth0 > 0 && html`<button onClick=${() => setSelected(null)}>${whole === trunk ? `Show ${depth0} ${depth0 === 1 ? "caller" : "callers"}` : "Show all"}</button>`}
      ${trunk?.[0] > 0 && whole !== trunk && html`<button onClick=${() => setSelected(undefined)}>Hide callers</button>`}</span></div>
    ${error && html`<${ErrorMessage} error=${error} />`}
    <div ref=${box}>${width > 0 && shown.length > 0 && html`<svg width=${width} height=${rows * ROW} role="group" aria-label="Flame graph: the wider a line of code, the more time it took">
      ${shown.map((entry) => html`<${Box} key=${`${entry[0]}/${entry[1]}`} box=${entry} x=${((entry[1] - begin0) / width0) * width} y=${(entry[0] - depth0) * ROW} pixels=${(entry[2] / width0) * width} onOpen=${() => setSelected(entry)} />`)}</svg>`}</div>
    ${data && !boxes.length && html`<p class="soft small">No thread used the processor. Take a profile that includes idle threads.</p>`}</section>`;
}

function ProfileRequest({ request }) {
  if (!request || request.state === "done") return null;
  const text = `Rank ${request.rank}, ${request.seconds} s, requested by ${request.by}`;
  return request.state === "failed" ? html`<${ErrorMessage} error=${{ message: `${text}: profiling failed`, remedy: request.answer }} />` : html`<p role="status">${text}: profiling…</p>`;
}

function RequestProfile({ run, workers }) {
  const [rank, setRank] = useState(0), [seconds, setSeconds] = useState(10), [idle, setIdle] = useState(false);
  const [error, setError] = useState(null), [busy, setBusy] = useState(false);
  const requestProfile = async () => {
    setBusy(true);
    setError(null);
    try { await send(address(["v1", "runs", run, "profiles"]), { rank, seconds, idle }); } catch (problem) { setError(problem); }
    setBusy(false);
  };
  return html`<div class="tools">
    <label class="field">Rank <select value=${rank} onChange=${(e) => setRank(Number(e.target.value))}>${(workers.length ? workers : [{ rank: 0 }]).map((worker) => html`<option key=${worker.rank} value=${worker.rank}>${worker.rank}</option>`)}</select></label>
    <label class="field">Seconds <input type="number" min="1" max="300" value=${seconds} onInput=${(e) => setSeconds(Number(e.target.value))} /></label>
    <label class="field"><input type="checkbox" checked=${idle} onChange=${(e) => setIdle(e.target.checked)} /> Include idle threads</label>
    <button onClick=${requestProfile} disabled=${busy}>Take profile</button></div>${error && html`<${ErrorMessage} error=${error} />`}`;
}

function Profiles({ run, workers, isRunning }) {
  const { data, error } = useData(address(["runs", run, "profiles"]), (kind, id) => id === run);
  const { data: about } = useData(address(["about"]), () => false);
  const [opened, setOpened] = useState("");
  const graphs = data?.profiles.filter((profile) => HAS_GRAPH.test(profile.name)) ?? [];
  const open = opened || graphs[0]?.name;
  return html`<div class="stack">
    ${isRunning && about?.jobs && html`<${RequestProfile} run=${run} workers=${workers} />`}
    ${isRunning && about && !about.jobs && html`<p class="soft small">To take a profile, run: <code>hopsml runs profile ${run} --rank 0 --seconds 10</code></p>`}
    ${error && html`<${ErrorMessage} error=${error} />`}<${ProfileRequest} request=${data?.wish} />
    ${data && !data.profiles.length && html`<${Empty} title="No profiles"><p>A profile shows which lines of code take a worker's time. It can only be taken while the run is running.</p></${Empty}>`}
    ${data && data.profiles.length > 0 && html`<div class="table-frame" tabindex="0"><table><caption class="hidden">Profiles</caption>
      <thead><tr><th scope="col">Profile</th><th scope="col" class="number">Size</th><th scope="col" class="number">Taken</th><th scope="col"><span class="hidden">Download</span></th></tr></thead>
      <tbody>${data.profiles.map((profile) => html`<tr key=${profile.name}>
        <td class="mono">${HAS_GRAPH.test(profile.name) ? html`<button class="linklike mono" aria-expanded=${open === profile.name} onClick=${() => setOpened(profile.name)}>${profile.name}</button>` : profile.name}</td>
        <td class="number">${bytes(profile.bytes)}</td><td class="number" title=${exactTime(profile.modified)}>${time(profile.modified)}</td>
        <td class="number"><a href=${address(["runs", run, "files", "profiles", profile.name])} download=${profile.name} aria-label=${`Download ${profile.name}`}>Download</a></td></tr>`)}</tbody></table></div>`}
    ${open && html`<${Flame} run=${run} name=${open} />`}
  </div>`;
}

export { Profiles };
