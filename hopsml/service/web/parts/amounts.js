// Graphics processors, cores and memory, as numbers beside bars.
import { html } from "../lib.js";
import { count, gibibytes } from "../format.js";

const KINDS = [["gpus", "GPUs", count], ["cores", "Cores", count], ["memory_mib", "Memory", (mib) => `${gibibytes(mib)} GiB`]];
const UNITS = { gpus: (value) => `${count(value)} ${value === 1 ? "GPU" : "GPUs"}`, cores: (value) => `${count(value)} ${value === 1 ? "core" : "cores"}`, memory_mib: (mib) => `${gibibytes(mib)} GiB` };

/** "4 GPUs, 8 cores, 32 GiB"; what there is none of is left out, and what a limit does not name. */
function amountText(amount, none = "–") {
  const said = Object.entries(UNITS).filter(([kind]) => amount[kind]).map(([kind, text]) => text(amount[kind]));
  return said.join(", ") || none;
}

const part = (value, all) => `${(100 * (all > 0 ? Math.min(1, Math.max(0, value / all)) : 0)).toFixed(1)}%`;

/** A share of `all`, filled; then that of other tenants, hatched; `mark`: where a guarantee ends. The text beside it has the same number. */
function Bar({ filled, others = 0, all, mark = 0 }) {
  return html`<span class="track" aria-hidden="true"><span class="fill" style=${{ width: part(filled, all) }}></span>
    ${others > 0 && html`<span class="fill others" style=${{ width: part(others, all) }}></span>`}${mark > 0 && html`<span class="mark" style=${{ left: part(mark, all) }}></span>`}</span>`;
}

export { amountText, Bar, KINDS };
