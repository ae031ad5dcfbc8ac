// Audit log of the service: changes by people and programs, newest first.
import { html, useEffect, useState } from "../lib.js";
import { address, get } from "../api.js";
import { count, exactTime, moment } from "../format.js";
import { usePolled } from "../poll.js";
import { go, link } from "../route.js";
import { Empty, ErrorMessage } from "./components.js";
import { Table } from "./table.js";

const ROWS = 100, MAX_PAGE = 1000; // entries at first and per "Load more"; of one response
const FIELDS = { user: "User", action: "Action" };

/** Return the newest `shown` entries; `cursor` is null if there are no older ones. */
async function load(filter, shown, abort) {
  const entries = [];
  let before = null;
  do {
    const page = await get(address(["v1", "audit"], { ...filter, before, limit: Math.min(MAX_PAGE, shown - entries.length) }), abort);
    entries.push(...page.entries);
    before = page.cursor;
  } while (before !== null && entries.length < shown);
  return { entries, cursor: before };
}

const COLUMNS = [
  { label: "Time", cell: (entry) => html`<span class="number" title=${exactTime(entry.at_s)}>${moment(entry.at_s)}</span>` },
  { label: "User", cell: (entry) => html`${entry.user}<small>${entry.role}</small>` },
  { label: "Action", cell: (entry) => entry.action },
  { label: "Object", kind: "why", cell: (entry) => entry.target },
  { label: "Outcome", cell: (entry) => entry.outcome },
  { label: "Address", cell: (entry) => html`<span class="mono soft">${entry.peer}</span>` },
];

function Filter({ filter }) {
  const [typed, setTyped] = useState(filter), filterText = JSON.stringify(filter);
  useEffect(() => { setTyped(filter); }, [filterText]);
  useEffect(() => {
    const timer = setTimeout(() => { if (JSON.stringify(typed) !== filterText) go(link(["users", "audit"], typed), true); }, 250);
    return () => clearTimeout(timer);
  }, [JSON.stringify(typed)]);
  return html`<div class="tools filter" role="search">${Object.entries(FIELDS).map(([name, label]) =>
    html`<input key=${name} type="search" placeholder=${label} aria-label=${label} value=${typed[name]} onInput=${(e) => setTyped({ ...typed, [name]: e.target.value })} />`)}</div>`;
}

function Audit({ query }) {
  const filter = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, query.get(name) ?? ""]));
  const [shown, setShown] = useState(ROWS);
  const { data, error } = usePolled((abort) => load(filter, shown, abort), JSON.stringify([filter, shown]));
  if (error?.status === 404) return html`<${Empty} title="This server has no audit log"><p>It runs an older version of hopsml. Newer versions record who changed which job or token.</p></${Empty}>`;
  const narrowed = Object.values(filter).some(Boolean);
  return html`<${Filter} filter=${filter} />
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading the audit log…</p>`}
    ${data && (data.entries.length ? html`<${Table} title="Audit log" columns=${COLUMNS} rows=${data.entries} keyOf=${(entry) => entry.id} />
      <div class="pager" aria-live="polite"><span>${count(data.entries.length)} ${data.entries.length === 1 ? "entry" : "entries"}${data.cursor === null ? "" : " (older ones exist)"}</span>
        ${data.cursor !== null && html`<button onClick=${() => setShown(data.entries.length + ROWS)}>Load more</button>`}</div>`
      : narrowed ? html`<${Empty} title="No entry matches the filter"><p>User and action must match exactly.</p><button onClick=${() => go(link(["users", "audit"]))}>Clear filter</button></${Empty}>`
        : html`<${Empty} title="The audit log is empty"><p>It records each change of a job or token, with its user and network address.</p></${Empty}>`)}`;
}

export { Audit };
