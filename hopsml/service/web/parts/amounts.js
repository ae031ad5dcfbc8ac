// GPUs, cores and memory as text and bars.
import { html } from "../lib.js";
import { count, gibibytes } from "../format.js";

const KINDS = [["gpus", "GPUs", count], ["cores", "Cores", count], ["memory_mib", "Memory", (mib) => `${gibibytes(mib)} GiB`]];
const UNITS = { gpus: (value) => `${count(value)} ${value === 1 ? "GPU" : "GPUs"}`, cores: (value) => `${count(value)} ${value === 1 ? "core" : "cores"}`, memory_mib: (mib) => `${gibibytes(mib)} GiB` };

/** Return "4 GPUs, 8 cores, 32 GiB" without the resources that are 0 or missing; `none` if all are. */
function amountText(amount, none = "–") {
  const parts = Object.entries(UNITS).filter(([kind]) => amount[kind]).map(([kind, text]) => text(amount[kind]));
  return parts.join(", ") || none;
}

const part = (value, all) => `${(100 * (all > 0 ? Math.min(1, Math.max(0, value / all)) : 0)).toFixed(1)}%`;

/** Bar of the share `filled` of `all`, then the hatched share of other tenants; `mark`: position of a guarantee. The text next to it has the same numbers. */
function Bar({ filled, others = 0, all, mark = 0 }) {
  return html`<span class="track" aria-hidden="true"><span class="fill" style=${{ width: part(filled, all) }}></span>
    ${others > 0 && html`<span class="fill others" style=${{ width: part(others, all) }}></span>`}${mark > 0 && html`<span class="mark" style=${{ left: part(mark, all) }}></span>`}</span>`;
}

export { amountText, Bar, KINDS };
