// One run, or one trial of a search: how it stands, and a tab for each thing that is known of it.
import { html } from "../lib.js";
import { address, useData } from "../api.js";
import { duration, exactTime, number, progressText, time } from "../format.js";
import { link } from "../route.js";
import { Curves } from "../parts/curves.js";
import { Failure, hasFailed } from "../parts/failure.js";
import { Files } from "../parts/files.js";
import { Logs } from "../parts/logs.js";
import { Profiles } from "../parts/profiles.js";
import { Records } from "../parts/records.js";
import { Search } from "../parts/search.js";
import { Workers } from "../parts/workers.js";
import { Facts, State, Trouble } from "../parts/small.js";
import { took, useNow } from "./runs.js";

const TABS = [["error", "Error"], ["trials", "Search"], ["curves", "Curves"], ["workers", "Workers"], ["profiles", "Profiles"], ["logs", "Logs"], ["configuration", "Configuration"], ["files", "Files"]];
const ONGOING = ["RUNNING", "WAITING", "STARTING", "CLOSING"];

function Head({ detail, now }) {
  const { row } = detail;
  const other = (id) => html`<a href=${link(["run", id])}>${id}</a>`;
  return html`<header class="head">
    ${detail.trial && html`<p class="small"><a href=${link(["run", detail.url.split("/").at(-3), "trials"])}>Search ${detail.url.split("/").at(-3)}</a></p>`}
    <div class="title"><h1>${row.name || row.id}</h1><${State} state=${row.state} /></div>
    <p class="soft small mono">${row.id}</p>
    ${detail.description && html`<p>${detail.description}</p>`}
    ${(row.cause || detail.error) && html`<div class="trouble"><strong>${row.cause || detail.error.split("\n")[0]}</strong>${detail.error.includes("\n") && !hasFailed(row) && html`<details><summary class="small">The whole error</summary><pre>${detail.error}</pre></details>`}</div>`}
    <${Facts} first=${row.metric_name ? 2 : 1} facts=${[
      [row.is_search ? `Best ${row.metric_name}` : ONGOING.includes(row.state) ? row.metric_name : `Returned ${row.metric_name}`, row.metric_name ? number(row.metric) : null],
      [ONGOING.includes(row.state) ? "Running for" : "Took", duration(took(row, now))],
      [row.progress ? `${row.progress.unit[0].toUpperCase()}${row.progress.unit.slice(1)}` : "Step", progressText(row.progress) ?? (detail.step === null ? null : number(detail.step))],
      ["Started", html`<span title=${exactTime(row.started)}>${time(row.started)}</span>`],
      ["Workers", row.workers],
      ["User", row.user], ["Driver", detail.host], ["Script", detail.script], ["Verb", row.verb],
      ["Goes on with", detail.continues ? other(detail.continues) : null],
      ["Continued by", detail.continued_by ? other(detail.continued_by) : null],
    ]} />
  </header>`;
}

function Run({ id, tab, trial, query }) {
  const { data: detail, error } = useData(address(["runs", id], { trial }), (kind, run) => run === id);
  const goesOn = detail ? ONGOING.includes(detail.row.state) : false;
  const now = useNow(goesOn);
  if (!detail) return error ? html`<${Trouble} error=${error} /><p><a href=${link(["runs"])}>All runs</a></p>` : html`<p class="soft">Reading the run…</p>`;
  const fits = { error: hasFailed(detail.row), trials: detail.row.is_search, profiles: !trial };
  const tabs = TABS.filter(([name]) => fits[name] ?? true);
  const here = tabs.some(([name]) => name === tab) ? tab : fits.error ? "error" : fits.trials ? "trials" : "curves";
  return html`<${Head} detail=${detail} now=${now} />
    ${error && html`<${Trouble} error=${error} />`}
    <nav class="tabs" aria-label="What is known of this run">${tabs.map(([name, label]) => html`<a key=${name} href=${link(["run", id, name], { trial })} aria-current=${name === here ? "page" : undefined}>${label}</a>`)}</nav>
    ${here === "error" && html`<${Failure} run=${id} trial=${trial} detail=${detail} />`}
    ${here === "trials" && html`<${Search} id=${id} />`}
    ${here === "curves" && html`<${Curves} run=${id} trial=${trial} began=${detail.row.started ?? 0} goesOn=${goesOn} />`}
    ${here === "workers" && html`<${Workers} run=${id} trial=${trial} workers=${detail.workers} goesOn=${goesOn} />`}
    ${here === "profiles" && html`<${Profiles} run=${id} workers=${detail.workers} goesOn=${goesOn} />`}
    ${here === "logs" && html`<${Logs} run=${id} trial=${trial} query=${query} goesOn=${goesOn} isSearch=${detail.row.is_search} />`}
    ${here === "configuration" && html`<${Records} detail=${detail} />`}
    ${here === "files" && html`<${Files} run=${id} trial=${trial} path=${query.get("path") ?? ""} />`}`;
}

export { Run };
