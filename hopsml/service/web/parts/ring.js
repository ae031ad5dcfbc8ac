// Workers of a run in ring order: slow workers, and hosts where they are known.
import { html } from "../lib.js";

const RADIUS = 118, MIN_RADIUS = 74, PER_WORKER = 18, MARGIN = 52, FLAT = 24; // pixels
const MAX_WORKERS = 48; // of a legible ring

/** Return a host's name without its domain, of at most `letters` letters; an address unchanged. */
const shortHost = (host, letters) => (/^[\d.]+$|:/.test(host) ? host : host.split(".")[0].slice(0, letters));

function Ring({ workers, marks, isRunning }) {
  if (workers.length < 2 || workers.length > MAX_WORKERS) return null;
  const radius = Math.min(RADIUS, Math.max(MIN_RADIUS, workers.length * PER_WORKER)); // a small ring for few workers
  const dot = Math.min(18, (radius * 2) / workers.length + 6);
  const isPair = workers.length === 2; // side by side, on a flat ellipse
  const width = 2 * (radius + MARGIN), height = isPair ? 2 * (dot + FLAT) : width, middle = width / 2, level = height / 2;
  const at = (place, far = radius) => {
    const angle = (2 * Math.PI * place) / workers.length - (isPair ? Math.PI : Math.PI / 2);
    return [middle + far * Math.cos(angle), level + far * Math.sin(angle)].map((coordinate) => coordinate.toFixed(1));
  };
  const kind = (rank) => {
    const mark = marks.find((item) => item.rank === rank);
    return mark ? (mark.phase === "waits" ? "waits" : "slow") : "";
  };
  const hosts = []; // neighbours on the same host: [name, first place, number]
  workers.forEach(({ host }, place) => {
    if (!host) return;
    const last = hosts.at(-1);
    if (last && last[0] === host && last[1] + last[2] === place) last[2] += 1;
    else hosts.push([host, place, 1]);
  });
  const isLoaded = (rank) => marks.some((mark) => mark.rank === rank && mark.phase === "network");
  const links = workers.map(({ rank, host }, place) => { // to the next worker in the ring
    const next = workers[(place + 1) % workers.length];
    return { place, from: rank, to: next.rank, kind: `${isLoaded(rank) || isLoaded(next.rank) ? "slow " : ""}${host && next.host && host !== next.host ? "between" : ""}` };
  });
  const slow = marks.filter((mark) => mark.phase !== "waits"), waiting = marks.length - slow.length;
  const slowLinks = links.filter(({ kind: classes }) => classes.startsWith("slow"));
  const isOne = hosts.length === 1 && hosts[0][2] === workers.length;
  return html`<section class="ring-of record" aria-label="Workers in ring order">
    <svg class="ring" viewBox=${`0 0 ${width} ${height}`} style=${{ maxWidth: `${width}px` }} role="img" aria-label=${`${workers.length} workers in ring order. ${slow.map((mark) => `rank ${mark.rank}: ${mark.why}`).join(". ") || "No worker is slow."}`}>
    ${links.map(({ place, from, to, kind: classes }) => {
      const [x, y] = at(place), [toX, toY] = at(place + 1);
      return html`<path key=${from} class=${`link ${classes}`} d=${`M ${x} ${y} A ${radius} ${isPair ? FLAT : radius} 0 0 1 ${toX} ${toY}`}><title>${`from rank ${from} to rank ${to}`}</title></path>`;
    })}
    ${workers.map(({ rank }, place) => {
      const [x, y] = at(place), why = marks.find((mark) => mark.rank === rank)?.why;
      return html`<g key=${rank} class=${kind(rank)}><title>${`rank ${rank}${why ? `: ${why}` : ""}`}</title><circle cx=${x} cy=${y} r=${dot} /><text x=${x} y=${y}>${rank}</text></g>`;
    })}
    ${isOne ? html`<text class="host" x=${middle} y=${level}>all on ${shortHost(hosts[0][0], 20)}</text>` : hosts.length <= 8 && hosts.map(([name, first, many]) => {
      const [x, y] = isPair ? [at(first)[0], level + dot + 13] : at(first + (many - 1) / 2, radius - dot - 18);
      return html`<text key=${`${name}/${first}`} class="host" x=${x} y=${y}>${shortHost(name, 12)}</text>`;
    })}</svg>
    <div class="stack"><h2>${slow.length ? `${slow.length === 1 ? `Rank ${slow[0].rank} slows` : `${slow.length} ranks slow`} the others down` : isRunning ? "No slow worker" : "Ring order"}</h2>
      ${slow.length > 0 && html`<ul class="why">${slow.map((mark) => html`<li key=${mark.rank}><strong>Rank ${mark.rank}:</strong> ${mark.why}</li>`)}</ul>`}
      ${slowLinks.length > 0 && html`<p class="small">Links with more traffic than the others: ${slowLinks.map((link) => `${link.from} → ${link.to}`).join(", ")}</p>`}
      ${waiting > 0 && html`<p class="soft small">${waiting === 1 ? "One rank waits" : `${waiting} ranks wait`} for it (dashed circles).</p>`}
      ${!slow.length && html`<p class="soft small">${isRunning ? "Based on the resource usage of the last minute; the first result needs a few samples." : "Slow workers are only detected while a run is running."}</p>`}</div></section>`;
}

export { Ring };
