// Profiles of a run's workers: those that are there, one as a flame graph, and a button where somebody can take one.
import { html, useEffect, useState, useWidth, useRef } from "../lib.js";
import { address, send, useData } from "../api.js";
import { bytes, duration, exactTime, number, time } from "../format.js";
import { Empty, Trouble } from "./small.js";

const ROW = 18, LETTER = 6.6, DRAWN = /\.speedscope\.json$/; // pixels
const ALL = 0.999, MOST_OWN = 8; // of the whole; lines of the list below the graph

/** "step (/home/ana/train.py:8)" as "step train.py:8". */
const short = (label) => label.replace(/ \((?:.*\/)?([^/]+:\d+)\)$/, " $1");
const percent = (part) => `${number(Math.round(part * 1000) / 10)} %`;

/** The last box of those that stand above all others: what starts a worker stands there, and tells nothing. */
function trunkOf(boxes) {
  let found = null;
  for (const box of boxes) if (box[2] >= ALL && box[0] === (found ? found[0] + 1 : 0)) found = box;
  return found;
}

/** Where the time goes in the end: lines with what they did not call others for, as parts of the whole. */
function ownOf(boxes) {
  const stack = [], own = new Map();
  const inOrder = boxes.map((box) => ({ box, own: box[2] })).sort((one, other) => one.box[1] - other.box[1] || one.box[0] - other.box[0]);
  for (const one of inOrder) {
    while (stack.length && stack.at(-1).box[0] >= one.box[0]) stack.pop();
    if (stack.length) stack.at(-1).own -= one.box[2];
    stack.push(one);
  }
  for (const { box, own: left } of inOrder) own.set(box[3], (own.get(box[3]) ?? 0) + left);
  return [...own].sort((one, other) => other[1] - one[1]).slice(0, MOST_OWN).filter(([, part]) => part >= 0.005);
}

function Box({ box, x, y, pixels, onOpen }) {
  const [depth, , wide, label] = box, letters = Math.floor((pixels - 8) / LETTER), said = `${short(label)} · ${percent(wide)}`;
  const keyed = pixels > 30 ? { role: "button", tabindex: 0, "aria-label": said, onKeyDown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); onOpen(); } } } : {};
  return html`<g class=${`box c${depth % 2}`} onClick=${onOpen} ...${keyed}><title>${label} · ${percent(wide)}</title>
    <rect x=${x} y=${y} width=${Math.max(1, pixels)} height=${ROW} />
    ${pixels > 30 && html`<text x=${x + 4} y=${y + 13}>${said.length <= letters ? said : short(label).slice(0, letters)}</text>`}</g>`;
}

/** A part of the graph fills its width when it is pressed; callers stand above the called. */
function Flame({ run, name }) {
  const { data, error } = useData(address(["runs", run, "profiles", name]), () => false);
  const box = useRef(null), width = useWidth(box), [chosen, setChosen] = useState(undefined); // null: all of it
  useEffect(() => setChosen(undefined), [name]);
  const boxes = data?.boxes ?? [], trunk = trunkOf(boxes);
  const whole = chosen === undefined ? trunk : chosen;
  const [depth0, begin0, width0] = whole ?? [0, 0, 1];
  const isBelow = ([, begin, wide]) => begin >= begin0 - 1e-9 && begin + wide <= begin0 + width0 + 1e-9;
  const shown = boxes.filter((one) => one[0] >= depth0 && isBelow(one) && (one[2] / width0) * width >= 1);
  const rows = shown.reduce((most, [depth]) => Math.max(most, depth - depth0 + 1), 0), own = ownOf(boxes);
  return html`<section class="record flame" aria-label=${`Flame graph of ${name}`}>
    ${own.length > 0 && html`<h3>Where the time goes</h3><ul class="own">${own.map(([label, part]) => html`<li key=${label} title=${label}><span class="number">${percent(part)}</span>
      <span class="track" aria-hidden="true"><span class="fill" style=${{ width: `${(part * 100).toFixed(1)}%` }}></span></span><span class="mono">${short(label)}</span></li>`)}</ul>`}
    <div class="tools"><span class="soft small">${data ? `${duration(data.seconds)} of all threads together. Below a line stands what it called; press one to see it alone.` : "Reading the profile…"}</span>
      <span class="end tools">${whole && depth0 > 0 && html`<button onClick=${() => setChosen(null)}>${whole === trunk ? `With its ${depth0} ${depth0 === 1 ? "caller" : "callers"}` : "All of it"}</button>`}
      ${trunk?.[0] > 0 && whole !== trunk && html`<button onClick=${() => setChosen(undefined)}>Where it branches</button>`}</span></div>
    ${error && html`<${Trouble} error=${error} />`}
    <div ref=${box}>${width > 0 && shown.length > 0 && html`<svg width=${width} height=${rows * ROW} role="group" aria-label="Lines of the code, the widest took longest">
      ${shown.map((one) => html`<${Box} key=${`${one[0]}/${one[1]}`} box=${one} x=${((one[1] - begin0) / width0) * width} y=${(one[0] - depth0) * ROW} pixels=${(one[2] / width0) * width} onOpen=${() => setChosen(one)} />`)}</svg>`}</div>
    ${data && !boxes.length && html`<p class="soft small">Nothing was on the processor. Take one with threads that wait, too.</p>`}</section>`;
}

function Wish({ wish }) {
  if (!wish || wish.state === "done") return null;
  const what = `Rank ${wish.rank}, ${wish.seconds} s, asked for by ${wish.by}`;
  return wish.state === "failed" ? html`<${Trouble} error=${{ message: `${what}: no profile`, remedy: wish.answer }} />` : html`<p role="status">${what}: it is being taken…</p>`;
}

function Take({ run, workers }) {
  const [rank, setRank] = useState(0), [seconds, setSeconds] = useState(10), [idle, setIdle] = useState(false);
  const [error, setError] = useState(null), [busy, setBusy] = useState(false);
  const take = async () => {
    setBusy(true);
    setError(null);
    try { await send(address(["v1", "runs", run, "profiles"]), { rank, seconds, idle }); } catch (problem) { setError(problem); }
    setBusy(false);
  };
  return html`<div class="tools">
    <label>Rank <select value=${rank} onChange=${(e) => setRank(Number(e.target.value))}>${(workers.length ? workers : [{ rank: 0 }]).map((one) => html`<option key=${one.rank} value=${one.rank}>${one.rank}</option>`)}</select></label>
    <label>Seconds <input type="number" min="1" max="300" value=${seconds} onInput=${(e) => setSeconds(Number(e.target.value))} /></label>
    <label><input type="checkbox" checked=${idle} onChange=${(e) => setIdle(e.target.checked)} /> Threads that wait, too</label>
    <button onClick=${take} disabled=${busy}>Profile</button></div>${error && html`<${Trouble} error=${error} />`}`;
}

function Profiles({ run, workers, goesOn }) {
  const { data, error } = useData(address(["runs", run, "profiles"]), (kind, id) => id === run);
  const { data: about } = useData(address(["about"]), () => false);
  const [opened, setOpened] = useState("");
  const drawn = data?.profiles.filter((one) => DRAWN.test(one.name)) ?? [];
  const open = opened || drawn[0]?.name;
  return html`<div class="stack">
    ${goesOn && about?.jobs && html`<${Take} run=${run} workers=${workers} />`}
    ${goesOn && about && !about.jobs && html`<p class="soft small">This page only reads. To take one: <code>hopsml runs profile ${run} --rank 0 --seconds 10</code></p>`}
    ${error && html`<${Trouble} error=${error} />`}<${Wish} wish=${data?.wish} />
    ${data && !data.profiles.length && html`<${Empty} title="No profiles"><p>A profile shows on which lines of the code a worker spends its time. It is taken while the run goes on.</p></${Empty}>`}
    ${data && data.profiles.length > 0 && html`<div class="sheet" tabindex="0"><table><caption class="hidden">Profiles</caption>
      <thead><tr><th scope="col">Profile</th><th scope="col" class="number">Size</th><th scope="col" class="number">Taken</th><th scope="col"><span class="hidden">Download</span></th></tr></thead>
      <tbody>${data.profiles.map((one) => html`<tr key=${one.name}>
        <td class="mono">${DRAWN.test(one.name) ? html`<button class="linklike mono" aria-expanded=${open === one.name} onClick=${() => setOpened(one.name)}>${one.name}</button>` : one.name}</td>
        <td class="number">${bytes(one.bytes)}</td><td class="number" title=${exactTime(one.modified)}>${time(one.modified)}</td>
        <td class="number"><a href=${address(["runs", run, "files", "profiles", one.name])} download=${one.name} aria-label=${`Download ${one.name}`}>Download</a></td></tr>`)}</tbody></table></div>`}
    ${open && html`<${Flame} run=${run} name=${open} />`}
  </div>`;
}

export { Profiles };
