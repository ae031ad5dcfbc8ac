// Run record by section, with the source of the training function.
import { html, useState } from "../lib.js";
import { count, number } from "../format.js";
import { Empty } from "./components.js";

const OPEN = ["Arguments", "Result", "Search"];

const text = (value) => (typeof value === "number" ? number(value) : typeof value === "boolean" ? String(value) : value);

function Section({ title, pairs, wanted }) {
  const matching = pairs.filter(([name, value]) => !wanted || `${name} ${value}`.toLowerCase().includes(wanted));
  if (!matching.length) return null;
  return html`<details class="record" open=${OPEN.includes(title) || Boolean(wanted)}>
    <summary>${title}<span class="soft">${count(matching.length)}</span></summary>
    <table><caption class="hidden">${title}</caption><tbody>${matching.map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td class="mono">${text(value)}</td></tr>`)}</tbody></table></details>`;
}

function Configuration({ detail }) {
  const [typed, setTyped] = useState("");
  const wanted = typed.trim().toLowerCase();
  const shown = detail.sections.filter(([, pairs]) => !wanted || pairs.some(([name, value]) => `${name} ${value}`.toLowerCase().includes(wanted)));
  return html`<div class="stack">
    <div class="tools"><input class="wide" type="search" placeholder="Find a setting, package or value" aria-label="Find a setting, package or value" value=${typed} onInput=${(e) => setTyped(e.target.value)} /></div>
    ${detail.source && !wanted && html`<details class="record" open><summary>Source<span class="soft">sent to the workers</span></summary><pre tabindex="0">${detail.source}</pre></details>`}
    ${shown.map(([title, pairs]) => html`<${Section} key=${title} title=${title} pairs=${pairs} wanted=${wanted} />`)}
    ${!shown.length && !detail.source && html`<${Empty} title=${wanted ? "No matching entry" : "No configuration recorded"}><p>${wanted ? "No setting, package or value contains this text." : "The configuration of this trial is on the page of its search."}</p></${Empty}>`}
  </div>`;
}

export { Configuration };
