// For administrators: who has which token, and what was done with them.
import { html, useLayoutEffect, useRef, useState } from "../lib.js";
import { address, get, send } from "../api.js";
import { exactTime, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { Empty, Trouble } from "../parts/small.js";
import { Table } from "../parts/table.js";
import { Confirm } from "../parts/verbs.js";
import { Audit } from "../parts/audit.js";

const ROLES = { viewer: "looks", user: "submits, and changes own jobs", operator: "changes everybody's jobs", admin: "gives tokens" };
const LASTS = [["", "for ever"], ["86400", "a day"], ["2592000", "30 days"], ["31536000", "a year"]];
const DAY_S = 86400;

const when = (seconds) => html`<span title=${exactTime(seconds)}>${time(seconds)}</span>`;

/** A token that was made: it stands here until it is put away, and nowhere else. */
function Made({ made, onDone }) {
  const [told, setTold] = useState(""), field = useRef(null);
  useLayoutEffect(() => { field.current.focus(); field.current.select(); }, [made.token]);
  const copy = async () => {
    field.current.select();
    try { await navigator.clipboard.writeText(made.token); setTold("It is copied."); } catch { setTold("This browser lets no page copy: it is chosen, press Ctrl-C."); }
  };
  return html`<section class="confirm made" aria-label="The new token">
    <p>The token of <strong>${made.user}</strong>. It is shown this once; nobody can read it again.</p>
    <div class="tools"><input ref=${field} class="wide mono" type="text" readonly value=${made.token} aria-label="The new token" /><button onClick=${copy}>Copy</button><button onClick=${onDone}>Put away</button></div>
    <p class="soft small" role="status">${told}</p></section>`;
}

function Create({ onMade }) {
  const [asked, setAsked] = useState({ user: "", role: "user", label: "", lasts: "" }), [error, setError] = useState(null), busy = useRef(false);
  const set = (name) => (event) => setAsked({ ...asked, [name]: event.target.value });
  const onSubmit = async (event) => {
    event.preventDefault();
    if (busy.current) return;
    busy.current = true;
    try {
      const { user, role, label, lasts } = asked;
      const { token } = await send(address(["v1", "tokens"]), { user, role, label, lasts_s: lasts ? Number(lasts) : null });
      setError(null);
      setAsked({ ...asked, user: "", label: "" });
      onMade({ token, user });
    } catch (refused) { setError(refused); }
    busy.current = false;
  };
  return html`<form class="card" aria-label="A new token" onSubmit=${onSubmit}><h2>A new token</h2>
    <div class="tools"><label class="field">User <input type="text" required maxlength="200" autocomplete="off" value=${asked.user} onInput=${set("user")} /></label>
      <label class="field">Role <select value=${asked.role} onChange=${set("role")}>${Object.entries(ROLES).map(([role, does]) => html`<option key=${role} value=${role}>${role}: ${does}</option>`)}</select></label>
      <label class="field">For <input type="text" maxlength="200" autocomplete="off" placeholder="a laptop, Airflow" value=${asked.label} onInput=${set("label")} /></label>
      <label class="field">Lasts <select value=${asked.lasts} onChange=${set("lasts")}>${LASTS.map(([seconds, said]) => html`<option key=${seconds} value=${seconds}>${said}</option>`)}</select></label>
      <button type="submit">Create</button></div>
    ${error && html`<${Trouble} error=${error} />`}</form>`;
}

/** Whether a token can still be used, in words. */
function standing(token, now) {
  if (token.revoked_s) return html`revoked ${when(token.revoked_s)}`;
  if (!token.expires_s) return "for ever";
  return token.expires_s <= now ? html`over since ${when(token.expires_s)}` : html`until ${when(token.expires_s)}`;
}

const isOver = (token, now) => Boolean(token.revoked_s) || Boolean(token.expires_s && token.expires_s <= now);

/** One that ended lately still stands in the list: whoever has just revoked it sees that it is. */
const isLongOver = (token, now) => isOver(token, now) && (token.revoked_s ?? token.expires_s) < now - DAY_S;

function Tokens({ tokens, onRevoke, asked, setAsked }) {
  const [all, setAll] = useState(false), now = Date.now() / 1000;
  const shown = tokens.filter((token) => all || !isLongOver(token, now)).reverse();
  const columns = [
    { label: "User", cell: (token) => token.user }, { label: "Role", cell: (token) => token.role },
    { label: "For", kind: "why", cell: (token) => token.label || html`<span class="soft">–</span>` },
    { label: "Token", cell: (token) => html`<span class="mono soft" title="the beginning of its digest">${token.id}</span>` },
    { label: "Created", kind: "number", cell: (token) => when(token.created_s) },
    { label: "Valid", kind: "number", cell: (token) => html`<span class=${isOver(token, now) ? "soft" : ""}>${standing(token, now)}</span>` },
    { label: "End it", cell: (token) => (isOver(token, now) ? html`<span class="soft">–</span>` : html`<button data-token=${token.id} aria-label=${`Revoke ${token.id} of ${token.user}`} onClick=${() => setAsked(token)}>Revoke</button>`) },
  ];
  const close = () => { const id = asked.id; setAsked(null); setTimeout(() => document.querySelector(`[data-token="${id}"]`)?.focus(), 0); };
  return html`<section class="stack"><div class="heading"><h2>Tokens</h2><label class="field"><input type="checkbox" checked=${all} onChange=${(e) => setAll(e.target.checked)} /> Also those that are long over</label></div>
    ${asked && html`<${Confirm} question=${`Revoke the token ${asked.id} of ${asked.user}${asked.label ? `, for ${asked.label}` : ""}? Whoever uses it is refused from now on, and it cannot be brought back.`} yes="Revoke it" no="Keep it" onYes=${onRevoke} onNo=${close} />`}
    <${Table} title="Tokens" columns=${columns} rows=${shown} keyOf=${(token) => token.id} /></section>`;
}

function People() {
  const { data, error, again } = usePolled((abort) => get(address(["v1", "tokens"]), abort), "tokens");
  const [made, setMade] = useState(null), [asked, setAsked] = useState(null), [refused, setRefused] = useState(null);
  const revoke = async () => {
    try { await send(address(["v1", "tokens", asked.id]), {}, "DELETE"); setRefused(null); } catch (found) { setRefused(found); }
    setAsked(null);
    again();
  };
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<p class="soft">Reading the tokens…</p>`;
  return html`${error && html`<${Trouble} error=${error} />`}
    ${made ? html`<${Made} made=${made} onDone=${() => setMade(null)} />` : html`<${Create} onMade=${(found) => { setMade(found); again(); }} />`}
    ${refused && html`<${Trouble} error=${refused} />`}
    <${Tokens} tokens=${data} onRevoke=${revoke} asked=${asked} setAsked=${setAsked} />`;
}

const TABS = [["tokens", "Tokens"], ["audit", "What was done"]];

function Users({ tab, query, role }) {
  const here = tab === "audit" ? "audit" : "tokens";
  if (role !== "admin") return html`<h1>Users</h1><${Empty} title="This is for administrators"><p>You are ${role}. An administrator gives tokens, and sees who did what: ask one for what you need.</p></${Empty}>`;
  return html`<h1>Users</h1><nav class="tabs" aria-label="Of users">${TABS.map(([name, label]) => html`<a key=${name} href=${link(["users", name])} aria-current=${name === here ? "page" : undefined}>${label}</a>`)}</nav>
    ${here === "audit" ? html`<${Audit} query=${query} />` : html`<${People} />`}`;
}

export { Users };
