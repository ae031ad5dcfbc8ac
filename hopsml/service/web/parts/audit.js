// What people and programs did with the service, the newest first, as its server keeps it.
import { html, useEffect, useState } from "../lib.js";
import { address, get } from "../api.js";
import { count, exactTime, moment } from "../format.js";
import { usePolled } from "../poll.js";
import { go, link } from "../route.js";
import { Empty, Trouble } from "./small.js";
import { Table } from "./table.js";

const ROWS = 100, MOST = 1000; // entries at first, and for each "more"; of one answer
const FIELDS = { user: "Who", action: "What" };

/** So many entries as are shown, in as few answers as may be; `cursor`: null at the end. */
async function look(filter, shown, abort) {
  const entries = [];
  let before = null;
  do {
    const page = await get(address(["v1", "audit"], { ...filter, before, limit: Math.min(MOST, shown - entries.length) }), abort);
    entries.push(...page.entries);
    before = page.cursor;
  } while (before !== null && entries.length < shown);
  return { entries, cursor: before };
}

const COLUMNS = [
  { label: "When", cell: (entry) => html`<span class="number" title=${exactTime(entry.at_s)}>${moment(entry.at_s)}</span>` },
  { label: "Who", cell: (entry) => html`${entry.user}<small>${entry.role}</small>` },
  { label: "What", cell: (entry) => entry.action },
  { label: "Of what", kind: "why", cell: (entry) => entry.target },
  { label: "Outcome", cell: (entry) => entry.outcome },
  { label: "From", cell: (entry) => html`<span class="mono soft">${entry.peer}</span>` },
];

function Filter({ filter }) {
  const [typed, setTyped] = useState(filter), said = JSON.stringify(filter);
  useEffect(() => { setTyped(filter); }, [said]);
  useEffect(() => {
    const timer = setTimeout(() => { if (JSON.stringify(typed) !== said) go(link(["users", "audit"], typed), true); }, 250);
    return () => clearTimeout(timer);
  }, [JSON.stringify(typed)]);
  return html`<div class="tools filter" role="search">${Object.entries(FIELDS).map(([name, label]) =>
    html`<input key=${name} type="search" placeholder=${label} aria-label=${label} value=${typed[name]} onInput=${(e) => setTyped({ ...typed, [name]: e.target.value })} />`)}</div>`;
}

function Audit({ query }) {
  const filter = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, query.get(name) ?? ""]));
  const [shown, setShown] = useState(ROWS);
  const { data, error } = usePolled((abort) => look(filter, shown, abort), JSON.stringify([filter, shown]));
  if (error?.status === 404) return html`<${Empty} title="This server keeps no record of what was done"><p>It is of an older hopsml: with a newer one each change of a job and of a token stands here, with who made it.</p></${Empty}>`;
  const narrowed = Object.values(filter).some(Boolean);
  return html`<${Filter} filter=${filter} />
    ${error && html`<${Trouble} error=${error} />`}
    ${!data && !error && html`<p class="soft">Reading what was done…</p>`}
    ${data && (data.entries.length ? html`<${Table} title="What was done" columns=${COLUMNS} rows=${data.entries} keyOf=${(entry) => entry.id} />
      <div class="pager" aria-live="polite"><span>${count(data.entries.length)} ${data.entries.length === 1 ? "entry" : "entries"}${data.cursor === null ? "" : ", and older ones"}</span>
        ${data.cursor !== null && html`<button onClick=${() => setShown(data.entries.length + ROWS)}>More</button>`}</div>`
      : narrowed ? html`<${Empty} title="Nothing passes this filter"><p>Who and what have to be whole.</p><button onClick=${() => go(link(["users", "audit"]))}>Show all</button></${Empty}>`
        : html`<${Empty} title="Nothing was done yet"><p>Each change of a job and of a token stands here, with who made it and from where.</p></${Empty}>`)}`;
}

export { Audit };
