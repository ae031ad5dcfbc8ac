// Notes and tags of runs, and saved views of the run list; the job service stores both.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { address, get, refresh, send } from "../api.js";
import { exactTime } from "../format.js";
import { link } from "../route.js";
import { ErrorMessage } from "./components.js";

const LONGEST_NOTE = 4000;

/** Tags and first line of the note, in the run list. */
function RunNotes({ row }) {
  if (!row.tags.length && !row.note) return null;
  return html`<span class="run-notes">${row.tags.map((tag) => html`<a key=${tag} class="tag" href=${link(["runs"], { filter: `tag:${tag}` })}>${tag}</a>`)}
    ${row.note && html`<span class="note" title=${row.note}>${row.note.split("\n")[0].slice(0, 200)}</span>`}</span>`;
}

/** Form for tags and note of a run; `onDone` is called after saving or cancelling. */
function NoteEditor({ row, onDone }) {
  const [note, setNote] = useState(row.note), [tags, setTags] = useState(row.tags.join(" ")), [last, setLast] = useState(null), [error, setError] = useState(null);
  const first = useRef(null), busy = useRef(false);
  useLayoutEffect(() => { first.current.focus(); }, []);
  useEffect(() => {
    const abort = new AbortController();
    get(address(["v1", "run-notes", row.id]), abort.signal).then(setLast, () => {}); // the author is optional information
    return () => abort.abort();
  }, []);
  const onSubmit = async (event) => {
    event.preventDefault();
    if (busy.current) return;
    busy.current = true;
    try {
      await send(address(["v1", "run-notes", row.id]), { note, tags: tags.split(/[\s,]+/).filter(Boolean) }, "PUT");
      refresh();
      onDone();
    } catch (refused) { setError(refused); }
    busy.current = false;
  };
  return html`<form class="confirm wide-form" aria-label=${`Note of ${row.id}`} onSubmit=${onSubmit} onKeyDown=${(e) => { if (e.key === "Escape") onDone(); }}>
    <p>${row.name || row.id} <span class="soft mono">${row.id}</span></p>
    <label class="stacked">Tags, separated by spaces <input ref=${first} type="text" maxlength="820" placeholder="good baseline" value=${tags} onInput=${(e) => setTags(e.target.value)} /></label>
    <label class="stacked">Note <textarea rows="3" maxlength=${LONGEST_NOTE} value=${note} onInput=${(e) => setNote(e.target.value)}></textarea></label>
    ${error && html`<${ErrorMessage} error=${error} />`}
    <div class="tools"><button type="submit">Save</button><button type="button" onClick=${onDone}>Cancel</button>
      ${last?.who && html`<span class="soft small">last changed by ${last.who}, ${exactTime(last.at_s)}</span>`}</div></form>`;
}

/** Menu of saved views: open, save and delete. `query`: filter and order of the current list. */
function Views({ query, user }) {
  const [views, setViews] = useState(null), [error, setError] = useState(null), [name, setName] = useState(""), [shared, setShared] = useState(false);
  const load = () => get(address(["v1", "views"])).then((loaded) => { setViews(loaded); setError(null); }, setError);
  const change = async (act) => { try { await act(); await load(); } catch (refused) { setError(refused); } };
  const save = (event) => {
    event.preventDefault();
    change(async () => { await send(address(["v1", "views"]), { name, query, shared }); setName(""); });
  };
  return html`<details class="menu views" onToggle=${(e) => { if (e.target.open) load(); }}><summary class="button">Views</summary><div class="body">
    ${error && html`<${ErrorMessage} error=${error} />`}
    ${views && !views.length && html`<p class="soft small">No saved views. Filter and sort the list, then save the view under a name.</p>`}
    ${views && views.length > 0 && html`<ul>${views.map((view) => html`<li key=${view.id}><a href=${`#/runs?${view.query}`}>${view.name}</a> <span class="soft small">${view.owner === user ? (view.shared ? "shared" : "") : view.owner}</span>
      <button class="bare" aria-label=${`Delete the view ${view.name}`} title="Delete" onClick=${() => change(() => send(address(["v1", "views", String(view.id)]), {}, "DELETE"))}>×</button></li>`)}</ul>`}
    <form class="stack" onSubmit=${save}><label class="stacked">Name of the view <input type="text" required maxlength="100" value=${name} onInput=${(e) => setName(e.target.value)} /></label>
      <label class="field"><input type="checkbox" checked=${shared} onChange=${(e) => setShared(e.target.checked)} /> Share with other users</label><button type="submit">Save view</button></form></div></details>`;
}

export { RunNotes, NoteEditor, Views };
