// The run's directory, folder by folder; texts can be looked at, everything can be downloaded.
import { html, useEffect, useState } from "../lib.js";
import { address, useData } from "../api.js";
import { bytes, exactTime, time } from "../format.js";
import { link } from "../route.js";
import { Empty, Trouble } from "./small.js";

const PREVIEW = 64 * 1024; // bytes
const TEXTS = /\.(json|jsonl|log|txt|py|csv|md|yaml|yml|diff|err|out)$/;

function Preview({ url, name, length }) {
  const [content, set] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    fetch(url, { headers: length > PREVIEW ? { range: `bytes=0-${PREVIEW - 1}` } : {}, signal: abort.signal })
      .then((answer) => answer.text()).then(set).catch(() => {});
    return () => abort.abort();
  }, [url]);
  return html`<section class="record preview" aria-label=${`Content of ${name}`}><h3 class="hidden">${name}</h3>
    <pre tabindex="0">${content === null ? "…" : content === "" ? "(empty)" : content}</pre>
    ${length > PREVIEW && html`<p class="soft small">The first ${bytes(PREVIEW)} of ${bytes(length)}.</p>`}</section>`;
}

function Files({ run, trial, path }) {
  const parts = path.split("/").filter(Boolean);
  const { data, error } = useData(address(["runs", run, "files", ...parts], { trial }), (kind, id) => id === run);
  const [opened, setOpened] = useState({ path: "", name: "" });
  const open = opened.path === path ? opened.name : "";
  const folder = (to) => link(["run", run, "files"], { trial, path: to.join("/") });
  const file = (name) => address(["runs", run, "files", ...parts, name], { trial });
  return html`<div class="stack">
    <nav class="crumbs" aria-label="Folder"><a href=${folder([])}>${run}</a>${parts.map((part, at) => html`<span key=${at}>/ <a href=${folder(parts.slice(0, at + 1))}>${part}</a></span>`)}</nav>
    ${error && html`<${Trouble} error=${error} />`}
    ${data && !data.entries.length && html`<${Empty} title="This folder is empty"><p>Files that the training function saves in its working folder come to <code>artifacts</code>, models to <code>export</code>.</p></${Empty}>`}
    ${data && data.entries.length > 0 && html`<div class="sheet" tabindex="0"><table><caption class="hidden">Files</caption>
      <thead><tr><th scope="col">Name</th><th scope="col" class="number">Size</th><th scope="col" class="number">Changed</th><th scope="col"><span class="hidden">Download</span></th></tr></thead>
      <tbody>${data.entries.map((entry) => html`<tr key=${entry.name}>
        <td class="mono">${entry.is_folder ? html`<a href=${folder([...parts, entry.name])}>${entry.name}/</a>`
          : TEXTS.test(entry.name) ? html`<button class="linklike mono" aria-expanded=${open === entry.name} onClick=${() => setOpened({ path, name: open === entry.name ? "" : entry.name })}>${entry.name}</button>` : entry.name}</td>
        <td class="number">${entry.is_folder ? "" : bytes(entry.bytes)}</td><td class="number" title=${exactTime(entry.modified)}>${time(entry.modified)}</td>
        <td class="number">${!entry.is_folder && html`<a href=${file(entry.name)} download=${entry.name} aria-label=${`Download ${entry.name}`}>Download</a>`}</td></tr>`)}</tbody></table></div>`}
    ${open && data && html`<${Preview} url=${file(open)} name=${open} length=${data.entries.find((one) => one.name === open)?.bytes ?? 0} />`}
  </div>`;
}

export { Files };
