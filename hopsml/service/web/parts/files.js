// Files of a run, of a job's code or of a data set: previews of texts, images and tables, and downloads.
import { html, useEffect, useState } from "../lib.js";
import { ApiError, address, responseTo, useData } from "../api.js";
import { bytes, count, exactTime, time } from "../format.js";
import { link } from "../route.js";
import { Empty, ErrorMessage } from "./components.js";

const PREVIEW = 64 * 1024; // bytes
const TEXTS = /\.(json|jsonl|log|txt|py|md|yaml|yml|diff|err|out|toml|ini|cfg|sh)$/i;
const IMAGES = /\.(png|jpe?g|gif|svg)$/i, TABLES = /\.(csv|tsv|parquet)$/i;

/** Return the API route of a file's preview; "" if there is no preview. */
const kindOf = (name) => (TEXTS.test(name) ? "files" : IMAGES.test(name) ? "images" : TABLES.test(name) ? "tables" : "");

function TextPreview({ url, length }) {
  const [content, set] = useState(null), [error, setError] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    responseTo(url, { headers: length > PREVIEW ? { range: `bytes=0-${PREVIEW - 1}` } : {}, signal: abort.signal })
      .then((answer) => {
        if (!answer.ok) throw new ApiError(`The file could not be loaded (status ${answer.status}).`, "Download the file, or open the preview again.", answer.status);
        return answer.text();
      }).then(set).catch((problem) => { if (problem.name !== "AbortError") setError(problem); });
    return () => abort.abort();
  }, [url]);
  if (error) return html`<${ErrorMessage} error=${error} />`;
  return html`<pre tabindex="0">${content === null ? "…" : content === "" ? "(empty)" : content}</pre>
    ${length > PREVIEW && html`<p class="soft small note">The first ${bytes(PREVIEW)} of ${bytes(length)}.</p>`}`;
}

/** Show a file in an <img> element, in which a browser does not run scripts of an SVG. */
function ImagePreview({ url, name }) {
  const [failed, setFailed] = useState("");
  if (failed === url) return html`<p class="soft small note">This image cannot be displayed. Download the file instead.</p>`;
  return html`<figure><img src=${url} alt=${name} onError=${() => setFailed(url)} /></figure>`;
}

function TablePreview({ url, name }) {
  const { data, error } = useData(url, () => false);
  if (error) return html`<${ErrorMessage} error=${error} />`;
  if (!data) return html`<p class="soft small note">Loading the rows…</p>`;
  const numeric = data.columns.map((column, at) => data.rows.length > 0 && data.rows.every((row) => row[at] === undefined || row[at] === "" || Number.isFinite(Number(row[at]))));
  const kind = (at) => (numeric[at] ? "number" : "");
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`Rows of ${name}`}><table><caption class="hidden">${name}</caption>
    <thead><tr>${data.columns.map((column, at) => html`<th key=${at} scope="col" class=${kind(at)}>${column}${data.types[at] && html`<small>${data.types[at]}</small>`}</th>`)}</tr></thead>
    <tbody>${data.rows.map((row, at) => html`<tr key=${at}>${row.map((cell, place) => html`<td key=${place} class=${kind(place)}>${cell}</td>`)}</tr>`)}</tbody></table></div>
    <p class="soft small note">${data.is_cut ? `The first ${count(data.rows.length)} rows` : `${count(data.rows.length)} rows`}${data.is_cut && data.total !== null ? ` of ${count(data.total)}` : ""}.</p>`;
}

function Preview({ kind, url, name, length }) {
  return html`<section class="record preview" aria-label=${`Content of ${name}`}><h3 class="hidden">${name}</h3>
    ${kind === "images" ? html`<${ImagePreview} url=${url} name=${name} />` : kind === "tables" ? html`<${TablePreview} url=${url} name=${name} />` : html`<${TextPreview} url=${url} length=${length} />`}</section>`;
}

/**
 * Files below a folder. `label`: its name; `at(kind, names)`: address of an entry, where `kind` is "files", "images" or "tables"; `folder(names)`:
 * link to a folder; `concerns`: as of `useData`; `first`: true to open the first table of a folder at once; `children`: shown for an empty one.
 */
function FileBrowser({ label, path, at, folder, concerns, first = false, children }) {
  const parts = path.split("/").filter(Boolean);
  const { data, error } = useData(at("files", parts), concerns);
  const [opened, setOpened] = useState({ path: null, name: "" });
  const table = first ? data?.entries.find((entry) => !entry.is_folder && kindOf(entry.name) === "tables")?.name ?? "" : "";
  const open = opened.path === path ? opened.name : table;
  const file = (name, kind = "files") => at(kind, [...parts, name]);
  return html`<div class="stack">
    <nav class="crumbs" aria-label="Folder"><a href=${folder([])}>${label}</a>${parts.map((part, at) => html`<span key=${at}>/ <a href=${folder(parts.slice(0, at + 1))}>${part}</a></span>`)}</nav>
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${!data && !error && html`<p class="soft">Loading the files…</p>`}
    ${data && !data.entries.length && html`<${Empty} title="This folder is empty">${children}</${Empty}>`}
    ${data && data.entries.length > 0 && html`<div class="table-frame" tabindex="0" role="region" aria-label="Files"><table><caption class="hidden">Files</caption>
      <thead><tr><th scope="col">Name</th><th scope="col" class="number">Size</th><th scope="col" class="number">Modified</th><th scope="col"><span class="hidden">Download</span></th></tr></thead>
      <tbody>${data.entries.map((entry) => html`<tr key=${entry.name}>
        <td class="mono">${entry.is_folder ? html`<a href=${folder([...parts, entry.name])}>${entry.name}/</a>`
          : kindOf(entry.name) ? html`<button class="linklike mono" aria-expanded=${open === entry.name} onClick=${() => setOpened({ path, name: open === entry.name ? "" : entry.name })}>${entry.name}</button>` : entry.name}</td>
        <td class="number">${entry.is_folder ? "" : bytes(entry.bytes)}</td><td class="number" title=${exactTime(entry.modified)}>${time(entry.modified)}</td>
        <td class="number">${!entry.is_folder && html`<a href=${file(entry.name)} download=${entry.name} aria-label=${`Download ${entry.name}`}>Download</a>`}</td></tr>`)}</tbody></table></div>`}
    ${open && data && html`<${Preview} key=${open} kind=${kindOf(open)} url=${file(open, kindOf(open))} name=${open} length=${data.entries.find((entry) => entry.name === open)?.bytes ?? 0} />`}
  </div>`;
}

/** Files of a run, or of one trial of a search. */
function Files({ run, trial, path }) {
  return html`<${FileBrowser} label=${run} path=${path} at=${(kind, names) => address(["runs", run, kind, ...names], { trial })}
    folder=${(names) => link(["run", run, "files"], { trial, path: names.join("/") })} concerns=${(kind, id) => id === run}>
    <p>Files that the training function writes to its working directory are stored in <code>artifacts</code>, models in <code>export</code>.</p></${FileBrowser}>`;
}

export { FileBrowser, Files };
