// Parallel coordinates: an axis for each parameter and one for the metric, a line for each trial. Dragging along an axis
// filters the trials (a brush); the input fields below do the same from the keyboard.
import { html, useRef, useWidth } from "../lib.js";
import { number } from "../format.js";
import { TextField } from "./components.js";

const HEIGHT = 300, TOP = 34, BOTTOM = 26, SIDE = 46;

/** The axes of a search: {name, kind ("number" or "choice"), low, high, log, values}. */
function axesOf(search) {
  const names = Object.keys(search.space).filter((name) => search.trials.some((trial) => name in trial.config));
  const axes = names.map((name) => {
    const values = search.trials.map((trial) => trial.config[name]).filter((value) => value !== undefined);
    const [type] = Array.isArray(search.space[name]) ? search.space[name] : [""];
    const numeric = type !== "CATEGORICAL" && values.every((value) => typeof value === "number");
    return numeric ? numericAxis(name, values, /LOG/.test(String(type))) : { name, kind: "choice", values: [...new Set(values.map(String))].sort() };
  });
  const results = search.trials.map((trial) => trial.value).filter((value) => typeof value === "number");
  return results.length ? [...axes, { ...numericAxis(search.metric, results, false), isMetric: true }] : axes;
}

function numericAxis(name, values, log) {
  const low = Math.min(...values), high = Math.max(...values);
  return { name, kind: "number", low, high: high > low ? high : low + 1, log: log && low > 0 };
}

const valueOn = (axis, trial) => (axis.isMetric ? trial.value : trial.config[axis.name]);

/** Return the position of a value on its axis, from 0 (bottom) to 1; null for no value. */
function share(axis, value) {
  if (value === null || value === undefined) return null;
  if (axis.kind === "choice") return axis.values.length < 2 ? 0.5 : axis.values.indexOf(String(value)) / (axis.values.length - 1);
  const scale = axis.log ? Math.log : (value) => value;
  return (scale(value) - scale(axis.low)) / (scale(axis.high) - scale(axis.low));
}

function valueAt(axis, at) {
  return axis.log ? Math.exp(Math.log(axis.low) + at * (Math.log(axis.high) - Math.log(axis.low))) : axis.low + at * (axis.high - axis.low);
}

/** Return true if a trial is within all brushes; `brushes`: [from, to] by axis name, as positions on the axis. */
function passes(trial, axes, brushes) {
  return axes.every((axis) => {
    const brush = brushes[axis.name];
    if (!brush) return true;
    const at = share(axis, valueOn(axis, trial));
    return at !== null && at >= brush[0] - 1e-9 && at <= brush[1] + 1e-9;
  });
}

function Parallel({ search, axes, brushes, onBrush }) {
  const box = useRef(null), drag = useRef(null);
  const width = useWidth(box) || 600;
  const inner = HEIGHT - TOP - BOTTOM;
  const x = (at) => (axes.length < 2 ? width / 2 : SIDE + (at * (width - 2 * SIDE)) / (axes.length - 1));
  const y = (at) => TOP + (1 - at) * inner;
  const path = (trial) => axes.map((axis, at) => {
    const place = share(axis, valueOn(axis, trial));
    return place === null ? null : `${x(at).toFixed(1)},${y(place).toFixed(1)}`;
  }).filter(Boolean);
  const sorted = search.trials.filter((trial) => typeof trial.value === "number").sort((a, b) => (search.direction === "min" ? b.value - a.value : a.value - b.value));
  const good = new Set(sorted.slice(-Math.max(1, Math.round(sorted.length / 4))).map((trial) => trial.number));
  const lines = [...sorted.filter((trial) => !good.has(trial.number)), ...sorted.filter((trial) => good.has(trial.number))]; // the best on top
  const at = (event) => {
    const place = box.current.querySelector("svg").getBoundingClientRect();
    return Math.max(0, Math.min(1, 1 - (event.clientY - place.top - TOP) / inner));
  };
  const down = (axis) => (event) => { event.target.setPointerCapture(event.pointerId); drag.current = { name: axis.name, from: at(event) }; };
  const move = (event) => {
    if (!drag.current) return;
    const { name, from } = drag.current, to = at(event);
    onBrush(name, Math.abs(to - from) < 0.01 ? null : [Math.min(from, to), Math.max(from, to)]);
  };
  const up = (event) => { move(event); drag.current = null; };
  return html`<div ref=${box}><svg class="parallel" viewBox=${`0 0 ${width} ${HEIGHT}`} height=${HEIGHT} role="img" aria-label=${`Configurations of ${sorted.length} trials over ${axes.length} axes; the table below has the same values`}>
    ${lines.map((trial) => html`<path key=${trial.number} d=${`M${path(trial).join("L")}`} class=${passes(trial, axes, brushes) ? (trial.number === search.best ? "best" : good.has(trial.number) ? "good" : "") : "out"}><title>trial ${trial.number}: ${search.metric} ${number(trial.value)}</title></path>`)}
    ${axes.map((axis, place) => {
      const brush = brushes[axis.name], anchor = place === 0 ? "start" : place === axes.length - 1 ? "end" : "middle", tx = place === 0 ? 4 : place === axes.length - 1 ? width - 4 : x(place);
      return html`<g key=${axis.name}>
        <text class="name" x=${tx} y="14" text-anchor=${anchor}>${axis.name}</text>
        <line class="axis" x1=${x(place)} x2=${x(place)} y1=${TOP} y2=${TOP + inner} />
        ${axis.kind === "number" ? [1, 0].map((end) => html`<text x=${tx} y=${end ? TOP - 6 : HEIGHT - 8} text-anchor=${anchor}>${number(end ? axis.high : axis.low)}</text>`)
          : axis.values.map((value) => html`<text x=${x(place) + (place === axes.length - 1 ? -6 : 6)} y=${y(share(axis, value)) + 4} text-anchor=${place === axes.length - 1 ? "end" : "start"}>${value}</text>`)}
        ${brush && html`<rect class="brush" x=${x(place) - 7} width="14" y=${y(brush[1])} height=${Math.max(2, y(brush[0]) - y(brush[1]))} />`}
        <rect class="grip" x=${x(place) - 14} width="28" y=${TOP - 8} height=${inner + 16} onPointerDown=${down(axis)} onPointerMove=${move} onPointerUp=${up} />
      </g>`;
    })}</svg></div>`;
}

/** Input fields for the brushes. */
function Brushes({ axes, brushes, onBrush }) {
  const field = (axis, end) => {
    const value = brushes[axis.name] ? valueAt(axis, brushes[axis.name][end]) : "";
    const change = (text) => {
      const typed = text === "" ? null : share(axis, Number(text));
      const [low, high] = brushes[axis.name] ?? [0, 1];
      const next = end ? [low, typed ?? 1] : [typed ?? 0, high];
      onBrush(axis.name, next[0] <= 0 && next[1] >= 1 ? null : next);
    };
    return html`<${TextField} type="number" step="any" aria-label=${`${axis.name}, ${end ? "highest" : "lowest"}`} placeholder=${number(end ? axis.high : axis.low)} value=${value === "" ? "" : Number(value.toPrecision(5))} onCommit=${change} />`;
  };
  const choice = (axis) => {
    const brush = brushes[axis.name], selected = brush ? axis.values.findIndex((value) => share(axis, value) >= brush[0] - 1e-9) : -1;
    const change = (event) => { const at = share(axis, event.target.value); onBrush(axis.name, event.target.value === "" ? null : [at, at]); };
    return html`<select aria-label=${axis.name} value=${selected < 0 ? "" : axis.values[selected]} onChange=${change}><option value="">all</option>${axis.values.map((value) => html`<option key=${value} value=${value}>${value}</option>`)}</select>`;
  };
  return html`<details><summary class="small">Filter by value</summary><div class="brushes">${axes.map((axis) => html`<span key=${axis.name} class="field small">${axis.name} ${axis.kind === "number" ? html`${field(axis, 0)} – ${field(axis, 1)}` : choice(axis)}</span>`)}</div></details>`;
}

export { Brushes, Parallel, axesOf, passes };
