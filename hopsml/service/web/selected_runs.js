// Runs that are selected for comparison; stored while the browser tab is open.
import { signal } from "./lib.js";

const NAME = "hopsml-selected", MAX_RUNS = 200;

function read() {
  try { return JSON.parse(sessionStorage.getItem(NAME)) ?? []; } catch { return []; }
}

const selected = signal(read());
selected.subscribe((ids) => { try { sessionStorage.setItem(NAME, JSON.stringify(ids)); } catch { /* storage is disabled */ } });

/** Add a run to the selection, or remove it; of more than 200 runs the first ones stay. */
function selectRun(id, isSelected) {
  const others = selected.value.filter((other) => other !== id);
  selected.value = isSelected ? [...others, id].slice(0, MAX_RUNS) : others;
}

export { selectRun, selected };
