// One run, or one trial of a search: its state, and a tab for each kind of information.
import { html } from "../lib.js";
import { address, useData } from "../api.js";
import { duration, exactTime, number, progressText, time } from "../format.js";
import { link } from "../route.js";
import { Curves } from "../parts/curves.js";
import { Failure, hasFailed } from "../parts/failure.js";
import { Files } from "../parts/files.js";
import { Logs } from "../parts/logs.js";
import { Profiles } from "../parts/profiles.js";
import { Configuration } from "../parts/configuration.js";
import { Search } from "../parts/search.js";
import { Workers } from "../parts/workers.js";
import { PropertyList, State, ErrorMessage } from "../parts/components.js";
import { took, useNow } from "./runs.js";

const TABS = [["error", "Error"], ["trials", "Search"], ["curves", "Curves"], ["workers", "Workers"], ["profiles", "Profiles"], ["logs", "Logs"], ["configuration", "Configuration"], ["files", "Files"]];
const ONGOING = ["RUNNING", "WAITING", "STARTING", "CLOSING"];

function Head({ detail, now }) {
  const { row } = detail;
  const runLink = (id) => html`<a href=${link(["run", id])}>${id}</a>`;
  return html`<header class="head">
    ${detail.trial && html`<p class="small"><a href=${link(["run", detail.url.split("/").at(-3), "trials"])}>Search ${detail.url.split("/").at(-3)}</a></p>`}
    <div class="title"><h1>${row.name || row.id}</h1><${State} state=${row.state} /></div>
    <p class="soft small mono">${row.id}</p>
    ${detail.description && html`<p>${detail.description}</p>`}
    ${(row.cause || detail.error) && html`<div class="error-message"><strong>${row.cause || detail.error.split("\n")[0]}</strong>${detail.error.includes("\n") && !hasFailed(row) && html`<details><summary class="small">Full error</summary><pre>${detail.error}</pre></details>`}</div>`}
    <${PropertyList} first=${row.metric_name ? 2 : 1} properties=${[
      [row.is_search ? `Best ${row.metric_name}` : ONGOING.includes(row.state) ? row.metric_name : `Returned ${row.metric_name}`, row.metric_name ? number(row.metric) : null],
      [ONGOING.includes(row.state) ? "Running for" : "Duration", duration(took(row, now))],
      [row.progress ? `${row.progress.unit[0].toUpperCase()}${row.progress.unit.slice(1)}` : "Step", progressText(row.progress) ?? (detail.step === null ? null : number(detail.step))],
      ["Started", html`<span title=${exactTime(row.started)}>${time(row.started)}</span>`],
      ["Workers", row.workers],
      ["User", row.user], ["Driver", detail.host], ["Script", detail.script], ["Verb", row.verb],
      ["Resumed from", detail.continues ? runLink(detail.continues) : null],
      ["Resumed as", detail.continued_by ? runLink(detail.continued_by) : null],
    ]} />
  </header>`;
}

function Run({ id, tab, trial, query }) {
  const { data: detail, error } = useData(address(["runs", id], { trial }), (kind, run) => run === id);
  const isRunning = detail ? ONGOING.includes(detail.row.state) : false;
  const now = useNow(isRunning);
  if (!detail) return error ? html`<${ErrorMessage} error=${error} /><p><a href=${link(["runs"])}>All runs</a></p>` : html`<p class="soft">Loading the run…</p>`;
  const isAvailable = { error: hasFailed(detail.row), trials: detail.row.is_search, profiles: !trial };
  const tabs = TABS.filter(([name]) => isAvailable[name] ?? true);
  const here = tabs.some(([name]) => name === tab) ? tab : isAvailable.error ? "error" : isAvailable.trials ? "trials" : "curves";
  return html`<${Head} detail=${detail} now=${now} />
    ${error && html`<${ErrorMessage} error=${error} />`}
    <nav class="tabs" aria-label="Sections of the run">${tabs.map(([name, label]) => html`<a key=${name} href=${link(["run", id, name], { trial })} aria-current=${name === here ? "page" : undefined}>${label}</a>`)}</nav>
    ${here === "error" && html`<${Failure} run=${id} trial=${trial} detail=${detail} />`}
    ${here === "trials" && html`<${Search} id=${id} />`}
    ${here === "curves" && html`<${Curves} run=${id} trial=${trial} began=${detail.row.started ?? 0} isRunning=${isRunning} />`}
    ${here === "workers" && html`<${Workers} run=${id} trial=${trial} workers=${detail.workers} isRunning=${isRunning} />`}
    ${here === "profiles" && html`<${Profiles} run=${id} workers=${detail.workers} isRunning=${isRunning} />`}
    ${here === "logs" && html`<${Logs} run=${id} trial=${trial} query=${query} isRunning=${isRunning} isSearch=${detail.row.is_search} />`}
    ${here === "configuration" && html`<${Configuration} detail=${detail} />`}
    ${here === "files" && html`<${Files} run=${id} trial=${trial} path=${query.get("path") ?? ""} />`}`;
}

export { Run };
