// Why a run or a trial did not finish: the error, and the last lines of the worker that failed.
import { html } from "../lib.js";
import { address, useData } from "../api.js";
import { link } from "../route.js";
import { Trouble } from "./small.js";

const LINES = 40; // of the log
const BAD = ["FAILED", "LOST"];

/** True if there is an error to show; `row`: of a run or a trial. */
const hasFailed = (row) => BAD.includes(row.state.toUpperCase());

function Failure({ run, trial, detail }) {
  const failed = detail.workers.find((worker) => worker.state === "FAILED") ?? detail.workers.find((worker) => worker.state === "LOST");
  const rank = failed?.rank ?? "";
  const { data, error } = useData(address(["runs", run, "logs"], { trial, rank, offset: -LINES, limit: LINES }), (kind, id) => id === run);
  const text = detail.error || detail.row.cause;
  return html`<div class="stack">
    ${text ? html`<section class="record" aria-label="Error"><pre tabindex="0">${text}</pre></section>`
      : html`<p class="soft">No error was recorded: its driver ended without a report.</p>`}
    <div class="heading"><h2>${rank === "" ? "Last lines of the log" : `Last lines of rank ${rank}`}</h2><a class="small" href=${link(["run", run, "logs"], { trial })}>All lines</a></div>
    ${error && html`<${Trouble} error=${error} />`}
    ${!data && !error && html`<p class="soft">Reading the log…</p>`}
    ${data && (data.lines.length ? html`<section class="record" aria-label="End of the log"><pre tabindex="0">${data.lines.map((line) => line.text).join("\n")}</pre></section>`
      : html`<p class="soft">Nothing was printed.</p>`)}</div>`;
}

export { Failure, hasFailed };
