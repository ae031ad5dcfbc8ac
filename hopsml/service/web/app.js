// The frame around all pages: where one is, what there is, whether it is live.
import { html, render, useEffect, useRef, useState, useValue } from "./lib.js";
import { address, connection, listen, useData } from "./api.js";
import { link, route } from "./route.js";
import { theme } from "./parts/chart.js";
import { Empty } from "./parts/small.js";
import { chosen } from "./chosen.js";
import { Compare } from "./pages/compare.js";
import { Run } from "./pages/run.js";
import { Runs } from "./pages/runs.js";

const LIVE = { connecting: "connecting", live: "live", away: "not connected" };

function Top({ place }) {
  const about = useData(address(["about"])).data;
  const ids = useValue(chosen), state = useValue(connection), dark = useValue(theme) === "dark";
  const turn = () => {
    theme.value = document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("hopsml-theme", theme.value); } catch { /* for this page alone */ }
  };
  return html`<header class="top">
    <a class="brand" href=${link([])}>hopsml</a>
    <span class="project" title=${about?.url}>${about?.project}</span>
    <nav aria-label="Pages">
      <a href=${link([])} aria-current=${place === "runs" || place === "run" ? "page" : undefined}>Runs</a>
      <a href=${link(["compare"], { run: ids })} aria-current=${place === "compare" ? "page" : undefined}>Compare${ids.length ? ` (${ids.length})` : ""}</a>
    </nav>
    <span class="live" role="status"><span class=${`state ${state === "live" ? "RUNNING" : "WAITING"}`}><span class="word">${LIVE[state]}</span><span class="hidden">${LIVE[state]}</span></span></span>
    <button class="bare" onClick=${turn} aria-label=${dark ? "Use the light theme" : "Use the dark theme"} title=${dark ? "Light" : "Dark"}>${dark ? "☀" : "☾"}</button>
  </header>`;
}

function Page({ at }) {
  const [place = "runs", id, tab] = at.path;
  if (place === "run" && id) return html`<${Run} key=${`${id}/${at.query.get("trial")}`} id=${id} tab=${tab} trial=${at.query.get("trial") || ""} query=${at.query} />`;
  if (place === "compare") return html`<${Compare} query=${at.query} />`;
  if (place === "runs") return html`<${Runs} query=${at.query} />`;
  return html`<${Empty} title="There is no such page"><p><a href=${link([])}>All runs</a></p></${Empty}>`;
}

function App() {
  const at = useValue(route), main = useRef(null);
  const place = at.path[0] ?? "runs", where = at.path.slice(0, 2).join("/");
  const [first, setFirst] = useState(true);
  useEffect(() => { // the keyboard goes on where the new page begins
    if (first) setFirst(false);
    else main.current.focus({ preventScroll: true });
    scrollTo(0, 0);
    document.title = `${at.path[1] || { runs: "Runs", compare: "Compare" }[place] || place} · hopsml`;
  }, [where]);
  return html`<a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); main.current.focus(); }}>To the content</a>
    <${Top} place=${place} /><main id="main" ref=${main} tabindex="-1"><${Page} at=${at} /></main>`;
}

listen();
const root = document.getElementById("page");
root.textContent = "";
render(html`<${App} />`, root);
