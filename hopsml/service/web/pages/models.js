// Models of the project: versions, aliases, metrics, signature and lineage.
import { html } from "../lib.js";
import { address, useData } from "../api.js";
import { bytes, count, exactTime, number, time } from "../format.js";
import { link } from "../route.js";
import { Empty, ErrorMessage, PropertyList } from "../parts/components.js";
import { Table } from "../parts/table.js";

const METRICS = 4; // in a table

const hasEnded = (kind) => kind === "run"; // runs export models

const versionLink = (name, version) => link(["model", name], { version });

function Aliases({ name, aliases, version = null }) {
  const shown = Object.entries(aliases).filter(([, number]) => version === null || number === version);
  if (!shown.length) return html`<span class="soft">–</span>`;
  return html`<span class="run-notes">${shown.map(([alias, number]) => html`<a key=${alias} class="tag" href=${versionLink(name, number)}>${alias}${version === null ? ` → ${number}` : ""}</a>`)}</span>`;
}

function Metrics({ metrics }) {
  const shown = Object.entries(metrics);
  if (!shown.length) return html`<span class="soft">–</span>`;
  return html`<span>${shown.slice(0, METRICS).map(([name, value], at) => html`<span key=${name}>${at > 0 && ", "}<span class="soft">${name}</span> ${number(value)}</span>`)}${shown.length > METRICS && html`<span class="soft">, …</span>`}</span>`;
}

const MODELS = [
  { label: "Model", cell: (model) => html`<a href=${link(["model", model.name])}>${model.name}</a>${model.problem && html`<small>${model.problem}</small>`}` },
  { label: "Newest version", kind: "number", cell: (model) => (model.newest === null ? "–" : count(model.newest)) },
  { label: "Aliases", cell: (model) => html`<${Aliases} name=${model.name} aliases=${model.aliases} />` },
  { label: "Metrics", cell: (model) => html`<${Metrics} metrics=${model.metrics} />` },
  { label: "Framework", cell: (model) => html`<span>${model.flavor || "–"}</span>` },
  { label: "User", cell: (model) => html`<span>${model.creator || "–"}</span>` },
  { label: "Exported", kind: "number", cell: (model) => html`<span title=${exactTime(model.created)}>${time(model.created)}</span>` },
];

function Models() {
  const { data, error } = useData(address(["models"]), hasEnded);
  return html`<h1>Models</h1>
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading models…</p>`}
    ${data && (data.models.length ? html`<${Table} title="Models" kind="nodes" columns=${MODELS} rows=${data.models} keyOf=${(model) => model.name} />`
      : html`<${Empty} title="No models"><p>Export a trained model, and its versions are listed here:</p><pre>${"from hopsml import model\nmodel.export(trained, \"digits\", metrics={\"accuracy\": 0.98})"}</pre></${Empty}>`)}
    ${data?.is_cut && html`<p class="soft small">Only the first ${count(data.models.length)} models are listed.</p>`}`;
}

const versionColumns = (model) => [
  { label: "Version", cell: (version) => html`<a href=${versionLink(model.name, version.version)}>${count(version.version)}</a>` },
  { label: "Aliases", cell: (version) => html`<${Aliases} name=${model.name} aliases=${model.aliases} version=${version.version} />` },
  { label: "Metrics", cell: (version) => html`<${Metrics} metrics=${version.metrics} />` },
  { label: "Run", cell: (version) => (version.run ? html`<a href=${link(["run", version.run])}>${version.run}</a>` : html`<span class="soft">–</span>`) },
  { label: "User", cell: (version) => html`<span>${version.creator || "–"}</span>` },
  { label: "Size", kind: "number", cell: (version) => html`<span>${bytes(version.bytes)}</span>` },
  { label: "Exported", kind: "number", cell: (version) => html`<span title=${exactTime(version.created)}>${time(version.created)}</span>` },
];

/** "(any, 28, 28)" */
const shapeText = (shape) => `(${shape.map((size) => size ?? "any").join(", ")})`;

function Signature({ signature }) {
  if (!signature) return html`<p class="soft">The export recorded no inputs and outputs.</p>`;
  const rows = ["inputs", "outputs"].flatMap((side) => Object.entries(signature[side]).map(([name, spec]) => ({ side: side.slice(0, -1), name, ...spec })));
  const columns = [
    { label: "Name", cell: (row) => html`<span class="mono">${row.name}</span>` },
    { label: "Kind", cell: (row) => html`<span>${row.side}</span>` },
    { label: "Type", cell: (row) => html`<span class="mono">${row.dtype}</span>` },
    { label: "Shape", cell: (row) => html`<span class="mono">${shapeText(row.shape)}</span>` },
    { label: "Features", kind: "why", cell: (row) => html`<span>${row.features?.length ? row.features.join(", ") : "–"}</span>` },
  ];
  return html`<${Table} title="Inputs and outputs" columns=${columns} rows=${rows} keyOf=${(row) => `${row.side} ${row.name}`} />`;
}

function Lineage({ version }) {
  const properties = [
    ["Run", version.run ? html`<a href=${link(["run", version.run])}>${version.run}</a>` : version.origin && html`<span class="mono">${version.origin}</span>`],
    ["Commit", version.commit && html`<span class="mono">${version.commit.slice(0, 12)}${version.is_dirty ? " with changes" : ""}</span>`],
    ["Training data", version.inputs.length > 0 && html`<ul class="plain">${version.inputs.map((url) => html`<li key=${url} class="mono">${url}</li>`)}</ul>`],
  ].filter(([, value]) => value);
  return properties.length ? html`<${PropertyList} properties=${properties} />` : html`<p class="soft">The model was not exported by a run.</p>`;
}

function Version({ version }) {
  const metrics = Object.entries(version.metrics), packages = Object.entries(version.requirements);
  return html`<section class="stack" aria-label=${`Version ${version.version}`}><h2>Version ${count(version.version)}</h2>
    ${version.description && html`<p>${version.description}</p>`}
    <${PropertyList} properties=${[["Framework", version.flavor], ["Formats", version.artifacts.join(", ")], ["User", version.creator], ["Exported", html`<span title=${exactTime(version.created)}>${time(version.created)}</span>`], ["Size", bytes(version.bytes)], ["Directory", html`<span class="mono">${version.url}</span>`]]} />
    <h3>Metrics</h3>${metrics.length ? html`<${PropertyList} properties=${metrics.map(([name, value]) => [name, number(value)])} />` : html`<p class="soft">The export named no metrics.</p>`}
    <h3>Signature</h3><${Signature} signature=${version.signature} />
    <h3>Lineage</h3><${Lineage} version=${version} />
    <details class="record"><summary>Files<span class="soft">${count(version.file_count)}</span></summary><table><caption class="hidden">Files</caption><tbody>${version.files.map((file) => html`<tr key=${file.name}><th scope="row" class="mono">${file.name}</th><td class="number">${bytes(file.bytes)}</td></tr>`)}</tbody></table></details>
    ${packages.length > 0 && html`<details class="record"><summary>Packages<span class="soft">${count(packages.length)}</span></summary><table><caption class="hidden">Packages</caption><tbody>${packages.map(([name, version]) => html`<tr key=${name}><th scope="row">${name}</th><td class="mono">${version}</td></tr>`)}</tbody></table></details>`}</section>`;
}

/** One model; `wanted`: number of the version to show, "" for the newest one. */
function Model({ name, wanted }) {
  const { data, error } = useData(address(["models", name]), hasEnded);
  const head = html`<header class="head"><p class="small"><a href=${link(["models"])}>All models</a></p><h1>${name}</h1></header>`;
  if (!data) return html`${head}${error ? html`<${ErrorMessage} error=${error} />` : html`<p class="soft">Loading the model…</p>`}`;
  const shown = wanted ? data.versions.find((version) => String(version.version) === wanted) : data.versions[0];
  const unread = Object.entries(data.unread);
  return html`${head}
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${unread.map(([version, problem]) => html`<div key=${version} class="error-message"><strong>Version ${version} cannot be read.</strong><p class="small">${problem}</p></div>`)}
    ${data.versions.length ? html`<${Table} title="Versions" kind="nodes" columns=${versionColumns(data)} rows=${data.versions} keyOf=${(version) => version.version} />`
      : !unread.length && html`<${Empty} title="No complete version"><p>An export is running or was ended, or all versions were deleted.</p></${Empty}>`}
    ${data.older > 0 && html`<p class="soft small">${count(data.older)} older versions are not listed.</p>`}
    ${shown ? html`<${Version} key=${shown.version} version=${shown} />` : wanted && html`<p class="soft">Version ${wanted} is not among these versions.</p>`}`;
}

export { Model, Models };
