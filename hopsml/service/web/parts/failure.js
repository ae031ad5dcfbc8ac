// Error of a run or trial, and the last log lines of the worker that failed.
import { html, useLayoutEffect, useRef } from "../lib.js";
import { address, useData } from "../api.js";
import { plain } from "../format.js";
import { link } from "../route.js";
import { ErrorMessage } from "./components.js";

const LINES = 40; // of the log
const FAILED_STATES = ["FAILED", "LOST"];

/** Return true if a run or trial has failed; `row`: its row. */
const hasFailed = (row) => FAILED_STATES.includes(row.state.toUpperCase());

/** Preformatted text, scrolled to its end. */
function TextEnd({ text }) {
  const box = useRef(null);
  useLayoutEffect(() => { box.current.scrollTop = box.current.scrollHeight; }, [text]);
  return html`<pre ref=${box} tabindex="0">${text}</pre>`;
}

function Failure({ run, trial, detail }) {
  const rank = detail.failed_rank ?? "";
  const { data, error } = useData(address(["runs", run, "logs"], { trial, rank, offset: -LINES, limit: LINES }), (kind, id) => id === run);
  const text = detail.error || detail.row.cause;
  return html`<div class="stack">
    ${text ? html`<section class="record" aria-label="Error"><pre tabindex="0">${text}</pre></section>`
      : html`<p class="soft">No error was recorded: the driver ended without writing one.</p>`}
    <div class="heading"><h2>${rank === "" ? "Last lines of the log" : `Last lines of rank ${rank}`}</h2><a class="small" href=${link(["run", run, "logs"], { trial })}>Full log</a></div>
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading the log…</p>`}
    ${data && (data.lines.length ? html`<section class="record" aria-label="End of the log"><${TextEnd} text=${data.lines.map((line) => plain(line.text)).join("\n")} /></section>`
      : html`<p class="soft">The worker printed nothing.</p>`)}</div>`;
}

export { Failure, hasFailed };
