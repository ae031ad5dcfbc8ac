// Data sets that job files name, and the jobs that use them.
import { html } from "../lib.js";
import { address, get } from "../api.js";
import { count, exactTime, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { Empty, State, ErrorMessage } from "../parts/components.js";
import { Table } from "../parts/table.js";

const runsOf = (job) => link(["runs"], { filter: `id:${job.id}-` }); // the id of a run begins with that of its job

function Uses({ dataset }) {
  return html`<ul class="plain">${dataset.jobs.map((job) => html`<li key=${job.id}><a href=${link(["job", job.id])}>${job.id}</a> <${State} state=${job.state} /> <span class="soft">${job.owner}, </span><a class="soft" href=${runsOf(job)} aria-label=${`Runs of ${job.id}`}>runs</a></li>`)}
    ${dataset.count > dataset.jobs.length && html`<li class="soft">and ${count(dataset.count - dataset.jobs.length)} older jobs</li>`}</ul>`;
}

const COLUMNS = [
  { label: "Data set", cell: (dataset) => html`<span class="mono">${dataset.url}</span>` },
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
      : html`<${Empty} title="No job names a data set"><p>Name the input data in the job file. Workers read its URL from <code>HOPSML_DATASET</code>, and this page lists the jobs that use it:</p>
        <pre>dataset: hdfs:///data/digits</pre></${Empty}>`)}`;
}

export { Datasets };
