// For administrators: tokens of users, and the audit log.
import { html, useLayoutEffect, useRef, useState } from "../lib.js";
import { address, get, send } from "../api.js";
import { exactTime, time } from "../format.js";
import { usePolled } from "../poll.js";
import { link } from "../route.js";
import { Empty, ErrorMessage } from "../parts/components.js";
import { Table } from "../parts/table.js";
import { Confirm } from "../parts/job_actions.js";
import { Audit } from "../parts/audit.js";

const ROLES = { viewer: "reads", user: "submits and changes own jobs", operator: "changes all jobs", admin: "manages tokens" };
const LIFETIMES = [["", "no expiry"], ["86400", "1 day"], ["2592000", "30 days"], ["31536000", "1 year"]];
const DAY_S = 86400;

const when = (seconds) => html`<span title=${exactTime(seconds)}>${time(seconds)}</span>`;

/** A new token: displayed until it is closed, and never again. */
function NewToken({ made, onDone }) {
  const [outcome, setOutcome] = useState(""), field = useRef(null);
  useLayoutEffect(() => { field.current.focus(); field.current.select(); }, [made.token]);
  const copy = async () => {
    field.current.select();
    try { await navigator.clipboard.writeText(made.token); setOutcome("Copied."); } catch { setOutcome("This browser does not allow pages to copy. The token is selected: press Ctrl-C."); }
  };
  return html`<section class="confirm wide-form" aria-label="New token">
    <p>Token of <strong>${made.user}</strong>. Copy it now: it is not displayed again.</p>
    <div class="tools"><input ref=${field} class="wide mono" type="text" readonly value=${made.token} aria-label="New token" /><button onClick=${copy}>Copy</button><button onClick=${onDone}>Done</button></div>
    <p class="soft small" role="status">${outcome}</p></section>`;
}

function CreateToken({ onMade }) {
  const [values, setValues] = useState({ user: "", role: "user", label: "", lasts: "" }), [error, setError] = useState(null), busy = useRef(false);
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const onSubmit = async (event) => {
    event.preventDefault();
    if (busy.current) return;
    busy.current = true;
    try {
      const { user, role, label, lasts } = values;
      const { token } = await send(address(["v1", "tokens"]), { user, role, label, lasts_s: lasts ? Number(lasts) : null });
      setError(null);
      setValues({ ...values, user: "", label: "" });
      onMade({ token, user });
    } catch (refused) { setError(refused); }
    busy.current = false;
  };
  return html`<form class="card" aria-label="Create a token" onSubmit=${onSubmit}><h2>Create a token</h2>
    <div class="tools"><label class="field">User <input type="text" required maxlength="200" autocomplete="off" value=${values.user} onInput=${set("user")} /></label>
      <label class="field">Role <select value=${values.role} onChange=${set("role")}>${Object.entries(ROLES).map(([role, does]) => html`<option key=${role} value=${role}>${role}: ${does}</option>`)}</select></label>
      <label class="field">Purpose <input type="text" maxlength="200" autocomplete="off" placeholder="laptop, Airflow" value=${values.label} onInput=${set("label")} /></label>
      <label class="field">Expires after <select value=${values.lasts} onChange=${set("lasts")}>${LIFETIMES.map(([seconds, label]) => html`<option key=${seconds} value=${seconds}>${label}</option>`)}</select></label>
      <button type="submit">Create token</button></div>
    ${error && html`<${ErrorMessage} error=${error} />`}</form>`;
}

/** Describe how long a token is valid. */
function validity(token, now) {
  if (token.revoked_s) return html`revoked ${when(token.revoked_s)}`;
  if (!token.expires_s) return "no expiry";
  return token.expires_s <= now ? html`expired ${when(token.expires_s)}` : html`until ${when(token.expires_s)}`;
}

const hasEnded = (token, now) => Boolean(token.revoked_s) || Boolean(token.expires_s && token.expires_s <= now);

/** A token that ended during the last day stays in the list, so that a revocation is visible. */
const hasEndedLongAgo = (token, now) => hasEnded(token, now) && (token.revoked_s ?? token.expires_s) < now - DAY_S;

function TokenTable({ tokens, onRevoke, error, confirming, setConfirming }) {
  const [all, setAll] = useState(false), now = Date.now() / 1000;
  const shown = tokens.filter((token) => all || !hasEndedLongAgo(token, now)).reverse();
  const columns = [
    { label: "User", cell: (token) => token.user }, { label: "Role", cell: (token) => token.role },
    { label: "Purpose", kind: "why", cell: (token) => token.label || html`<span class="soft">–</span>` },
    { label: "Token", cell: (token) => html`<span class="mono soft" title="beginning of the token's digest">${token.id}</span>` },
    { label: "Created", kind: "number", cell: (token) => when(token.created_s) },
    { label: "Valid", kind: "number", cell: (token) => html`<span class=${hasEnded(token, now) ? "soft" : ""}>${validity(token, now)}</span>` },
    { label: "Action", cell: (token) => (hasEnded(token, now) ? html`<span class="soft">–</span>` : html`<button data-token=${token.id} aria-label=${`Revoke ${token.id} of ${token.user}`} onClick=${() => setConfirming(token)}>Revoke</button>`) },
  ];
  const close = () => { const { id } = confirming; setConfirming(null); setTimeout(() => document.querySelector(`[data-token="${id}"]`)?.focus(), 0); };
  return html`<section class="stack"><div class="heading"><h2>Tokens</h2><label class="field"><input type="checkbox" checked=${all} onChange=${(e) => setAll(e.target.checked)} /> Include tokens that ended more than a day ago</label></div>
    ${confirming && html`<${Confirm} question=${`Revoke token ${confirming.id} of ${confirming.user}${confirming.label ? ` (${confirming.label})` : ""}? Requests with it will be refused. This cannot be undone.`} yes="Revoke token" no="Keep token" onYes=${onRevoke} onNo=${close} />`}
    ${error && html`<${ErrorMessage} error=${error} />`}
    <${Table} title="Tokens" columns=${columns} rows=${shown} keyOf=${(token) => token.id} /></section>`;
}

function TokensTab() {
  const { data, error, again } = usePolled((abort) => get(address(["v1", "tokens"]), abort), "tokens");
  const [made, setMade] = useState(null), [confirming, setConfirming] = useState(null), [refused, setRefused] = useState(null);
  const revoke = async () => {
    try { await send(address(["v1", "tokens", confirming.id]), {}, "DELETE"); setRefused(null); } catch (problem) { setRefused(problem); }
    setConfirming(null);
    again();
  };
  if (!data) return error ? html`<${ErrorMessage} error=${error} />` : html`<p class="soft">Loading tokens…</p>`;
  return html`${error && html`<${ErrorMessage} error=${error} />`}
    ${made ? html`<${NewToken} made=${made} onDone=${() => setMade(null)} />` : html`<${CreateToken} onMade=${(token) => { setMade(token); again(); }} />`}
    <${TokenTable} tokens=${data} onRevoke=${revoke} error=${refused} confirming=${confirming} setConfirming=${setConfirming} />`;
}

const TABS = [["tokens", "Tokens"], ["audit", "Audit log"]];

function Users({ tab, query, role }) {
  const here = tab === "audit" ? "audit" : "tokens";
  if (role !== "admin") return html`<h1>Users</h1><${Empty} title="Only administrators can open this page"><p>Your role is ${role}. Ask an administrator for a token or a higher role.</p></${Empty}>`;
  return html`<h1>Users</h1><nav class="tabs" aria-label="Users">${TABS.map(([name, label]) => html`<a key=${name} href=${link(["users", name])} aria-current=${name === here ? "page" : undefined}>${label}</a>`)}</nav>
    ${here === "audit" ? html`<${Audit} query=${query} />` : html`<${TokensTab} />`}`;
}

export { Users };
