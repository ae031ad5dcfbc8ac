// The workers of a run in ring order: who holds the others up, and which stand on one host, as far as that is known.
import { html } from "../lib.js";

const SIZE = 340, MIDDLE = SIZE / 2, RADIUS = 118, MOST = 48; // pixels; ranks that can be told apart

function Ring({ workers, marks }) {
  if (workers.length < 2 || workers.length > MOST) return null;
  const dot = Math.min(18, (RADIUS * 2) / workers.length + 6);
  const at = (place, far = RADIUS) => {
    const angle = (2 * Math.PI * place) / workers.length - Math.PI / 2;
    return [MIDDLE + far * Math.cos(angle), MIDDLE + far * Math.sin(angle)].map((one) => one.toFixed(1));
  };
  const kind = (rank) => {
    const mark = marks.find((one) => one.rank === rank);
    return mark ? (mark.phase === "waits" ? "waits" : "slow") : "";
  };
  const hosts = []; // runs of neighbours on one host: [name, first place, how many]
  workers.forEach(({ host }, place) => {
    if (!host) return;
    const last = hosts.at(-1);
    if (last && last[0] === host && last[1] + last[2] === place) last[2] += 1;
    else hosts.push([host, place, 1]);
  });
  const slow = marks.filter((one) => one.phase !== "waits").map((one) => `rank ${one.rank}: ${one.why}`);
  return html`<svg class="ring" viewBox=${`0 0 ${SIZE} ${SIZE}`} role="img" aria-label=${`${workers.length} workers in ring order. ${slow.join(". ") || "Nobody is marked as slow."}`}>
    <circle class="link" cx=${MIDDLE} cy=${MIDDLE} r=${RADIUS} />
    ${workers.map(({ rank }, place) => {
      const [x, y] = at(place), why = marks.find((one) => one.rank === rank)?.why;
      return html`<g key=${rank} class=${kind(rank)}><title>${`rank ${rank}${why ? `: ${why}` : ""}`}</title><circle cx=${x} cy=${y} r=${dot} /><text x=${x} y=${y}>${rank}</text></g>`;
    })}
    ${hosts.length <= 8 && hosts.map(([name, first, many]) => {
      const [x, y] = at(first + (many - 1) / 2, RADIUS + dot + 18);
      return html`<text key=${`${name}/${first}`} class="host" x=${x} y=${y}>${name.split(".")[0].slice(0, 12)}</text>`;
    })}</svg>`;
}

export { Ring };
