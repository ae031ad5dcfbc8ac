// Data sets that job files name, the jobs that use them, and the files of one data set.
import { html } from "../lib.js";
import { address, get } from "../api.js";
import { bytes, count, exactTime, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { Empty, ErrorMessage, PropertyList, State } from "../parts/components.js";
import { FileBrowser } from "../parts/files.js";
import { Table } from "../parts/table.js";

const runsOf = (job) => link(["runs"], { filter: `id:${job.id}-` }); // the id of a run begins with that of its job

function Uses({ dataset }) {
  return html`<ul class="plain">${dataset.jobs.map((job) => html`<li key=${job.id}><a href=${link(["job", job.id])}>${job.id}</a> <${State} state=${job.state} /> <span class="soft">${job.owner}${job.name && ` as ${job.name}`}, </span><a class="soft" href=${runsOf(job)} aria-label=${`Runs of ${job.id}`}>runs</a></li>`)}
    ${dataset.count > dataset.jobs.length && html`<li class="soft">and ${count(dataset.count - dataset.jobs.length)} older jobs</li>`}</ul>`;
}

const COLUMNS = [
  { label: "Data set", cell: (dataset) => html`<a class="mono" href=${link(["dataset"], { url: dataset.url })}>${dataset.url}</a>` },
  { label: "Jobs", kind: "number", cell: (dataset) => count(dataset.count) },
  { label: "Active", kind: "number", cell: (dataset) => count(dataset.living) },
  { label: "Last used", kind: "number", cell: ({ jobs: [newest] }) => html`<span title=${exactTime(newest.submitted_s)}>${time(newest.submitted_s)}</span>` },
  { label: "Newest jobs", kind: "why", cell: (dataset) => html`<${Uses} dataset=${dataset} />` },
];

function Datasets() {
  const { data, error } = usePolled((abort) => get(address(["v1", "datasets"]), abort), "datasets", () => true);
  return html`<h1>Data sets</h1>
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading data sets…</p>`}
    ${data && (data.datasets.length ? html`<${Table} title="Data sets" kind="nodes" columns=${COLUMNS} rows=${data.datasets} keyOf=${(dataset) => dataset.url} />`
      : html`<${Empty} title="No job names a data set"><p>Name the input data in the job file. Workers read its URL from <code>HOPSML_DATASET_DIGITS</code>, and this page lists the jobs that use it:</p>
        <pre>datasets: {digits: hdfs:///data/digits}</pre></${Empty}>`)}`;
}

/** One data set: its jobs, its size, and its files with the schema and the first rows of tables. */
function Dataset({ url, path }) {
  const { data, error } = usePolled((abort) => get(address(["v1", "datasets", "detail"], { url }), abort), url, () => true);
  const back = html`<p class="small"><a href=${link(["datasets"])}>All data sets</a></p>`;
  if (!data) return html`<header class="head">${back}<h1 class="mono">${url}</h1></header>${error ? html`<${ErrorMessage} error=${error} />` : html`<p class="soft">Loading the data set…</p>`}`;
  const at = (kind, names) => address(["v1", "datasets", kind, ...names], { url });
  const more = data.size?.is_complete === false ? "more than " : "";
  return html`<header class="head">${back}<h1 class="mono">${url}</h1>
      <${PropertyList} properties=${[["Size", data.size && `${more}${bytes(data.size.bytes)}`], ["Files", data.size && `${more}${count(data.size.files)}`], ["Jobs", count(data.count)], ["Active jobs", count(data.living)]]} /></header>
    ${error && html`<${ErrorMessage} error=${error} />`}
    <section class="stack"><h2>Newest jobs</h2><${Uses} dataset=${data} /></section>
    <section class="stack"><h2>Files</h2>${data.why ? html`<div class="reason"><p>${data.why}</p></div>`
      : html`<${FileBrowser} key=${url} label="Data set" path=${path} first=${true} at=${at} folder=${(names) => link(["dataset"], { url, path: names.join("/") })} concerns=${() => false}><p>It has no files.</p></${FileBrowser}>`}</section>`;
}

export { Dataset, Datasets };
