// Servings of the project: replicas, versions with their share, and load.
import { html } from "../lib.js";
import { address, get } from "../api.js";
import { age, count, duration, exactTime, number, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { Empty, ErrorMessage, PropertyList, Spark, State } from "../parts/components.js";
import { Table } from "../parts/table.js";

const percent = (share) => `${number(Math.round(share * 1000) / 10)} %`;
const perSecond = (rate) => `${number(Math.round(rate * 10) / 10)} per second`;

/** Return the versions that answer, with their share of requests without a version, and other versions that have answered. */
function versionRows(load) {
  const shares = new Map();
  if (load.version !== null) shares.set(load.version, 1 - (load.canary === null ? 0 : load.share));
  if (load.canary !== null && load.canary !== load.version) shares.set(load.canary, load.share);
  const known = new Map(load.versions.map((version) => [version.version, version]));
  const numbers = [...new Set([...shares.keys(), ...known.keys()])].sort((a, b) => a - b);
  return numbers.map((version) => ({ version, share: shares.get(version) ?? null, isCanary: version === load.canary && version !== load.version, ...known.get(version) }));
}

const versionColumns = (serving) => [
  { label: "Version", cell: (row) => html`<a href=${link(["model", serving.model], { version: row.version })}>${count(row.version)}</a>${row.isCanary && html`<small>canary</small>`}` },
  { label: "Share", kind: "number", cell: (row) => html`<span>${row.share === null ? "–" : percent(row.share)}</span>` },
  { label: "Rate", kind: "number", cell: (row) => html`<span>${row.rate === undefined ? "–" : perSecond(row.rate)}</span>` },
  { label: "Answered", kind: "number", cell: (row) => html`<span>${count(row.requests ?? 0)}</span>` },
  { label: "Failed", kind: "number", cell: (row) => html`<span>${count(row.failed ?? 0)}</span>` },
];

function Load({ serving }) {
  const { load } = serving;
  return html`<div class="stack">
    <${PropertyList} properties=${[
      ["Replicas", `${count(load.ready)} of ${count(load.replicas)} answer`], ["Restarts", load.restarts ? count(load.restarts) : null],
      ["Requests", html`<span>${perSecond(load.rates.at(-1) ?? 0)} <${Spark} values=${load.rates} label=${`Requests per second of ${serving.name} over time`} /></span>`],
      ["Time to answer", load.seconds === null ? null : load.seconds < 1 ? `${number(Math.round(load.seconds * 10_000) / 10)} ms` : duration(load.seconds)], ["Waiting requests", load.waiting ? count(load.waiting) : null],
      ["Canary", load.canary !== null && load.canary !== load.version ? `version ${load.canary}, ${percent(load.share)}` : null],
      ["Address", html`<span class="mono">${load.url}</span>`], ["User", load.user], ["Machine", load.machine], ["Application", load.application && html`<span class="mono">${load.application}</span>`], ["Profile", serving.profile],
      ["Started", html`<span title=${exactTime(load.started_s)}>${time(load.started_s)}</span>`]]} />
    <${Table} title=${`Versions of ${serving.name}`} columns=${versionColumns(serving)} rows=${versionRows(load)} keyOf=${(row) => row.version} /></div>`;
}

function Serving({ serving }) {
  const asked = serving.requested && html`<p class="soft">${serving.model ? html`Model <a href=${link(["model", serving.model])}>${serving.model}</a>, version ${serving.requested}` : ""}${serving.creator && `, defined by ${serving.creator}`}</p>`;
  return html`<section class="stack serving" aria-label=${serving.name}><header class="head"><div class="title"><h2>${serving.name}</h2><${State} state=${serving.state} /></div>${asked}</header>
    ${serving.why && html`<div class="reason"><p>${serving.why}</p></div>`}
    ${serving.load && serving.state === "RUNNING" && html`<${Load} serving=${serving} />`}
    ${serving.load && serving.state !== "RUNNING" && html`<p class="soft">Last load ${age(Date.now() / 1000 - serving.load.updated_s)} ago.</p>`}</section>`;
}

function Servings() {
  const { data, error } = usePolled((abort) => get(address(["servings"]), abort), "servings");
  return html`<h1>Servings</h1>
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading servings…</p>`}
    ${data && !data.servings.length && html`<${Empty} title="No servings"><p>Serve a model of the project, and its replicas and load are shown here:</p><pre>hopsml serve run digits --version best</pre></${Empty}>`}
    ${data?.servings.map((serving) => html`<${Serving} key=${serving.name} serving=${serving} />`)}
    ${data?.is_cut && html`<p class="soft small">Only the first ${count(data.servings.length)} servings are listed.</p>`}`;
}

export { Servings };
