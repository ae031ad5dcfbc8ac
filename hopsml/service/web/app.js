// Frame of all pages: navigation, connection state, theme.
import { html, render, useEffect, useRef, useState, useValue } from "./lib.js";
import { address, connection, listen, send, useData } from "./api.js";
import { link, route } from "./route.js";
import { theme } from "./parts/chart.js";
import { Empty } from "./parts/components.js";
import { selected } from "./selected_runs.js";
import { ClusterPage } from "./pages/cluster.js";
import { Compare } from "./pages/compare.js";
import { Dataset, Datasets } from "./pages/datasets.js";
import { Job } from "./pages/job.js";
import { Jobs } from "./pages/jobs.js";
import { Model, Models } from "./pages/models.js";
import { Overview } from "./pages/overview.js";
import { Run } from "./pages/run.js";
import { Runs } from "./pages/runs.js";
import { Servings } from "./pages/servings.js";
import { Users } from "./pages/users.js";

const LIVE = { connecting: "connecting", live: "live", away: "not connected" };
const TITLES = { overview: "Overview", jobs: "Jobs", cluster: "Cluster", datasets: "Data sets", dataset: "Data set", runs: "Runs", compare: "Compare", models: "Models", servings: "Servings", users: "Users" };
const PARENTS = { job: "jobs", run: "runs", model: "models", dataset: "datasets" }; // the list page of a detail page

function Header({ about, place }) {
  const ids = useValue(selected), state = useValue(connection), dark = useValue(theme) === "dark";
  const switchTheme = () => {
    theme.value = document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("hopsml-theme", theme.value); } catch { /* storage is disabled */ }
  };
  const leave = () => send("sign-out").catch(() => null).then(() => location.reload());
  const here = PARENTS[place] ?? place, pages = about?.jobs ? ["overview", "jobs", "cluster", "datasets", "runs", "compare", "models", "servings", ...(about.role === "admin" ? ["users"] : [])] : ["runs", "compare", "models", "servings"];
  const extra = (name) => (name === "compare" && ids.length ? ` (${ids.length})` : "");
  return html`<header class="top">
    <a class="brand" href=${link([])}>hopsml</a>
    <span class="project" title=${about?.url}>${about?.project}</span>
    <nav aria-label="Pages">
      ${pages.map((name) => html`<a key=${name} href=${link([name], name === "compare" ? { run: ids } : {})} aria-current=${name === here ? "page" : undefined}>${TITLES[name]}${extra(name)}</a>`)}
    </nav>
    <span class="live" role="status"><span class=${`state ${state === "live" ? "RUNNING" : "WAITING"}`}><span class="word">${LIVE[state]}</span><span class="hidden">${LIVE[state]}</span></span></span>
    ${about?.signs_in && html`<button class="bare" onClick=${leave} title=${`Signed in as ${about.user}`}>Sign out</button>`}
    <button class="bare" onClick=${switchTheme} aria-label=${dark ? "Use the light theme" : "Use the dark theme"} title=${dark ? "Use the light theme" : "Use the dark theme"}>${dark ? "☀" : "☾"}</button>
  </header>`;
}

function Page({ at, place, hasJobs, about }) {
  const [, id, tab] = at.path, role = about?.role ?? "";
  if (place === "run" && id) return html`<${Run} key=${`${id}/${at.query.get("trial")}`} id=${id} tab=${tab} trial=${at.query.get("trial") || ""} query=${at.query} />`;
  if (place === "compare") return html`<${Compare} query=${at.query} />`;
  if (place === "runs") return html`<${Runs} query=${at.query} user=${about?.user} hasNotes=${Boolean(about?.role)} />`;
  if (place === "models") return html`<${Models} />`;
  if (place === "model" && id) return html`<${Model} key=${id} name=${id} wanted=${at.query.get("version") ?? ""} />`;
  if (place === "servings") return html`<${Servings} />`;
  if (hasJobs && place === "overview") return html`<${Overview} />`;
  if (hasJobs && place === "jobs") return html`<${Jobs} query=${at.query} />`;
  if (hasJobs && place === "users" && role) return html`<${Users} tab=${id} query=${at.query} role=${role} />`;
  if (hasJobs && place === "cluster") return html`<${ClusterPage} />`;
  if (hasJobs && place === "datasets") return html`<${Datasets} />`;
  if (hasJobs && place === "dataset" && at.query.get("url")) return html`<${Dataset} key=${at.query.get("url")} url=${at.query.get("url")} path=${at.query.get("path") ?? ""} />`;
  if (hasJobs && place === "job" && id) return html`<${Job} key=${id} id=${id} tab=${tab} query=${at.query} />`;
  if (place === "" || (place === "users" && !role)) return html`<p class="soft">Loading…</p>`;
  return html`<${Empty} title="Page not found"><p><a href=${link(["runs"])}>All runs</a></p></${Empty}>`;
}

function App() {
  const at = useValue(route), main = useRef(null);
  const { data: about, error } = useData(address(["about"]), () => false);
  const home = about?.jobs ? "overview" : about || error ? "runs" : ""; // "": not known yet
  const place = at.path[0] ?? home, where = [place, at.path[1] ?? ""].join("/");
  const [first, setFirst] = useState(true);
  useEffect(() => { // keyboard focus moves to the beginning of the new page
    if (!place) return;
    if (first) setFirst(false);
    else main.current.focus({ preventScroll: true });
    scrollTo(0, 0);
    document.title = `${(PARENTS[place] && at.path[1]) || TITLES[place] || place} · hopsml`;
  }, [where]);
  return html`<a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <${Header} about=${about} place=${place} /><main id="main" ref=${main} tabindex="-1"><${Page} at=${at} place=${place} hasJobs=${about?.jobs ?? true} about=${about} /></main>`;
}

listen();
const root = document.getElementById("page");
root.textContent = "";
render(html`<${App} />`, root);
