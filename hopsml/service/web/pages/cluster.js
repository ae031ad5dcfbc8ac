// The cluster: jobs and free resources of each node, and usage and limits of each queue.
import { html, useState } from "../lib.js";
import { address, get } from "../api.js";
import { count } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { amountText, Bar, KINDS } from "../parts/amounts.js";
import { Empty, ErrorMessage } from "../parts/components.js";
import { Table } from "../parts/table.js";
import { Cluster } from "./overview.js";

const ROWS = 100; // nodes at first, and per "Load more"

async function load(abort) {
  const [cluster, { nodes }, { queues }] = await Promise.all(["cluster", "nodes", "queues"].map((name) => get(address(["v1", name]), abort)));
  return { cluster, nodes, queues };
}

function amountOf([kind, label, text]) {
  return { label, kind: "amount", cell: ({ capacity, free, others }) => {
    if (!capacity[kind]) return html`<span class="soft">–</span>`;
    return html`<span class="number">${text(free[kind])} <span class="soft">of ${text(capacity[kind])} free</span></span>
      <${Bar} filled=${free[kind]} others=${others[kind]} all=${capacity[kind]} />`;
  } };
}

function NodeJobs({ node }) {
  if (!node.jobs.length) return html`<span class="soft">none</span>`;
  return html`<ul class="plain">${node.jobs.map((job) => html`<li key=${job.id}><a href=${link(["job", job.id])}>${job.id}</a> <span class="soft">${job.owner}: ${amountText(job.uses)}</span></li>`)}</ul>`;
}

const NODES = [
  { label: "Node", cell: (node) => html`<span class="mono">${node.name}</span>${node.label && html`<small>${node.label}</small>`}` },
  ...KINDS.map(amountOf),
  { label: "Jobs", kind: "why", cell: (node) => html`<${NodeJobs} node=${node} />` },
  { label: "Other tenants", cell: (node) => html`<span class="soft">${amountText(node.others, "none")}</span>` },
];

/** Return true if a node's name, label or one of its jobs or owners contains the text. */
const matches = (node, text) => [node.name, node.label, ...node.jobs.flatMap((job) => [job.id, job.owner])].some((name) => name.toLowerCase().includes(text));

function Nodes({ nodes }) {
  const [typed, setTyped] = useState(""), [shown, setShown] = useState(ROWS);
  const matching = typed ? nodes.filter((node) => matches(node, typed.toLowerCase())) : nodes;
  return html`<section class="stack"><div class="heading"><h2>Nodes <span class="soft">${count(nodes.length)}</span></h2>
      ${nodes.length > 4 && html`<input type="search" placeholder="Node, label, job or owner" aria-label="Find nodes" value=${typed} onInput=${(e) => setTyped(e.target.value)} />`}</div>
    ${matching.length ? html`<${Table} title="Nodes" kind="nodes" columns=${NODES} rows=${matching.slice(0, shown)} keyOf=${(node) => node.name} />
      <p class="soft small key-line"><span class="swatch"></span> free <span class="swatch others"></span> used by other tenants <span class="swatch used"></span> used by jobs of this service</p>`
      : html`<p class="soft">No node, label, job or owner contains this text.</p>`}
    ${matching.length > shown && html`<div class="pager"><span>${count(shown)} of ${count(matching.length)}</span><button onClick=${() => setShown(shown + ROWS)}>Load more</button></div>`}</section>`;
}

/** Return the resource of which a queue uses the largest share, for its bar. */
function scarcest(queue, capacity) {
  const most = (kind) => Math.min(queue.limit[kind] ?? Infinity, capacity[kind] || Infinity);
  const known = KINDS.filter(([kind]) => Number.isFinite(most(kind)) && most(kind) > 0);
  return known.map(([kind]) => ({ kind, used: queue.used[kind], all: most(kind), mark: queue.guaranteed[kind] }))
    .sort((a, b) => b.used / b.all - a.used / a.all)[0];
}

const queueColumns = (capacity) => [
  { label: "Queue", cell: (queue) => html`<a href=${link(["jobs"], { queue: queue.name })}>${queue.name}</a>` },
  { label: "Weight", kind: "number", cell: (queue) => queue.weight },
  { label: "Used", kind: "amount", cell: (queue) => {
    const bar = scarcest(queue, capacity);
    return html`<span>${amountText(queue.used, "nothing")}</span>${bar && html`<${Bar} filled=${bar.used} all=${bar.all} mark=${bar.mark} />`}`;
  } },
  { label: "Guaranteed", cell: (queue) => amountText(queue.guaranteed, "nothing") },
  { label: "Limit", cell: (queue) => amountText(queue.limit, "none") },
  { label: "Running", kind: "number", cell: (queue) => count(queue.running) },
  { label: "Waiting", kind: "number", cell: (queue) => count(queue.waiting) },
];

function ClusterPage() {
  const { data, error } = usePolled(load, "cluster", undefined, () => true);
  return html`<h1>Cluster</h1>
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading the cluster…</p>`}
    ${data && html`<${Cluster} cluster=${data.cluster} title="All nodes" />
      <section class="stack"><h2>Queues <span class="soft">${count(data.queues.length)}</span></h2>
        <${Table} title="Queues" kind="queues" columns=${queueColumns(data.cluster.capacity)} rows=${data.queues} keyOf=${(queue) => queue.name} /></section>
      ${data.nodes.length ? html`<${Nodes} nodes=${data.nodes} />`
        : html`<${Empty} title="No nodes"><p>${data.cluster.leads ? "Nodes appear after the first response of the cluster. See its last error above." : "Only the server that manages the jobs knows the nodes. Open its address, which is displayed above."}</p></${Empty}>`}`}`;
}

export { ClusterPage };
