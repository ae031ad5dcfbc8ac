// The runs that are to be compared, kept while one goes from page to page.
import { signal } from "./lib.js";

const NAME = "hopsml-chosen", MOST = 200;

function read() {
  try { return JSON.parse(sessionStorage.getItem(NAME)) ?? []; } catch { return []; }
}

const chosen = signal(read());
chosen.subscribe((ids) => { try { sessionStorage.setItem(NAME, JSON.stringify(ids)); } catch { /* for this page alone */ } });

/** Choose a run, or no longer; of more than 200 the first ones stay. */
function choose(id, wanted) {
  const others = chosen.value.filter((one) => one !== id);
  chosen.value = wanted ? [...others, id].slice(0, MOST) : others;
}

export { choose, chosen };
