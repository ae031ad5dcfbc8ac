// Line chart of uPlot. Screen readers cannot read a canvas: the legend has the values as text.
import { html, signal, useEffect, useMemo, useRef, useValue, useWidth } from "../lib.js";
import { duration, number } from "../format.js";

const LINES = 8; // colours
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((first) => first * 10 ** power)).flat(); // distances of marks on an axis of steps
const theme = signal(document.documentElement.dataset.theme);

/** Return the width for the longest label of the y axis, in pixels; small numbers have labels such as 2.000e−4. */
const roomFor = (labels) => Math.max(50, 14 + 6.5 * Math.max(0, ...(labels || []).map((label) => label.length)));

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Return the labels of axis marks, with as many digits as they need to differ; "" for no mark. */
function markLabels(marks) {
  const known = marks.filter((mark) => mark !== null);
  const digits = [5, 7, 9, 12].find((most) => new Set(known.map((mark) => number(mark, most))).size === new Set(known).size);
  return marks.map((mark) => (mark === null ? "" : number(mark, digits)));
}

/** Return the exponential moving average of a curve, corrected for its start at zero; `weight` from 0 to 0.99. */
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, total = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    mean = mean * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return mean / total;
  });
}

/** Join curves with different x values to one table, as uPlot requires. */
function joined(curves) {
  const tables = curves.map(({ x, y }) => {
    const order = x.map((value, at) => at).sort((a, b) => x[a] - x[b] || a - b);
    const xs = [], ys = [];
    for (const at of order) {
      if (xs.length && xs[xs.length - 1] === x[at]) ys[ys.length - 1] = y[at]; // of a step that was reported twice the newer value
      else { xs.push(x[at]); ys.push(y[at]); }
    }
    return [xs, ys];
  });
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

/**
 * curves: [{label, x, y, colour (1 to 8), faint, points, stepped}]. `log`: the y axis; `seconds`: x is a time span.
 */
function Chart({ curves, label, log = false, seconds = false, height = 190, onHover }) {
  const box = useRef(null), plot = useRef(null);
  const width = useWidth(box);
  const drawnIn = useValue(theme);
  const data = useMemo(() => joined(curves), [curves]);
  const shape = `${curves.map((curve) => `${curve.label}/${curve.colour}/${curve.faint}/${curve.stepped}/${curve.points}`).join("|")}|${log}|${seconds}|${drawnIn}|${height}`;
  const wholeSteps = useMemo(() => !seconds && curves.every(({ x }) => x.every(Number.isInteger)), [curves, seconds]);
  const hasPositive = useMemo(() => curves.some(({ y }) => y.some((value) => value > 0)), [curves]);
  useEffect(() => {
    if (!width || typeof uPlot === "undefined") return undefined;
    const axis = { stroke: css("--soft"), grid: { stroke: css("--rule"), width: 1 }, ticks: { show: false }, font: `11px ${css("--sans")}` };
    const series = curves.map((curve) => ({
      label: curve.label,
      stroke: css(`--line-${curve.colour}`),
      width: curve.points ? 0 : 1.75,
      alpha: curve.faint ? 0.28 : 1,
      spanGaps: true,
      points: { show: Boolean(curve.points) || curve.x.length === 1, size: 5, fill: css(`--line-${curve.colour}`), width: 0 },
      ...(curve.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
    }));
    const options = {
      width, height, series: [{}, ...series], legend: { show: false }, padding: [10, seconds ? 32 : 20, 0, 0], // room for half of the last label of the x axis
      scales: { x: { time: false }, y: log && hasPositive ? { distr: 3 } : {} },
      axes: [
        { ...axis, size: 28, values: (_, marks) => (seconds ? marks.map((mark) => duration(mark).replace(".0 s", " s")) : markLabels(marks)), space: seconds ? 80 : 60, ...(wholeSteps ? { incrs: WHOLE } : {}) },
        { ...axis, size: (_, labels) => roomFor(labels), values: (_, marks) => markLabels(marks) },
      ],
      cursor: { drag: { x: true, y: false }, points: { size: 6 }, sync: undefined },
      hooks: onHover ? { setCursor: [(made) => onHover(made.cursor.idx, made.data)] } : {},
    };
    plot.current = new uPlot(options, data, box.current);
    return () => { plot.current.destroy(); plot.current = null; };
  }, [shape, width > 0, hasPositive, wholeSteps]);
  useEffect(() => { if (plot.current && width) plot.current.setSize({ width, height }); }, [width, height]);
  useEffect(() => { if (plot.current) plot.current.setData(data); }, [data]);
  return html`<div class="chart" ref=${box} role="img" aria-label=${label}></div>`;
}

export { Chart, LINES, markLabels, smoothed, theme };
