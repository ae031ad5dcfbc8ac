// Profiles of a run's workers: those that are there, one as a flame graph, and a button where somebody can take one.
import { html, useEffect, useState, useWidth, useRef } from "../lib.js";
import { address, send, useData } from "../api.js";
import { bytes, duration, exactTime, number, time } from "../format.js";
import { Empty, Trouble } from "./small.js";

const ROW = 18, LETTER = 6.6, DRAWN = /\.speedscope\.json$/; // pixels

/** A part of the graph fills its width when it is pressed; callers stand above the called. */
function Flame({ run, name }) {
  const { data, error } = useData(address(["runs", run, "profiles", name]), () => false);
  const box = useRef(null), width = useWidth(box), [whole, setWhole] = useState(null);
  useEffect(() => setWhole(null), [name]);
  const [depth0, begin0, width0] = whole ?? [0, 0, 1];
  const isBelow = ([, begin, wide]) => begin >= begin0 - 1e-9 && begin + wide <= begin0 + width0 + 1e-9;
  const shown = (data?.boxes ?? []).filter((one) => one[0] >= depth0 && isBelow(one) && (one[2] / width0) * width >= 1);
  const rows = shown.reduce((most, [depth]) => Math.max(most, depth - depth0 + 1), 0);
  return html`<section class="record flame" aria-label=${`Flame graph of ${name}`}>
    <div class="tools"><span class="soft small">${data ? `${duration(data.seconds)} of all threads together` : "Reading the profile…"}</span>
      ${whole && html`<button class="end" onClick=${() => setWhole(null)}>All of it</button>`}</div>
    ${error && html`<${Trouble} error=${error} />`}
    <div ref=${box}>${width > 0 && html`<svg width=${width} height=${Math.max(1, rows) * ROW} role="img" aria-label=${`What was on the processor, widest first: ${shown.slice(-1).map((one) => one[3])}`}>
      ${shown.map((one) => {
        const [depth, begin, wide, label] = one, x = ((begin - begin0) / width0) * width, pixels = (wide / width0) * width;
        return html`<g key=${`${depth}/${begin}`} class=${`box c${depth % 4}`} onClick=${() => setWhole(one)}><title>${label} · ${number(wide * 100)} %</title>
          <rect x=${x} y=${(depth - depth0) * ROW} width=${Math.max(0, pixels - 1)} height=${ROW - 1} />
          ${pixels > 30 && html`<text x=${x + 4} y=${(depth - depth0) * ROW + 13}>${label.slice(0, Math.floor((pixels - 8) / LETTER))}</text>`}</g>`;
      })}</svg>`}</div></section>`;
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
    ${goesOn && about && !about.jobs && html`<p class="soft small">This page only reads. To take one: <code>hopsml profile ${run} --rank 0 --seconds 10</code></p>`}
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
