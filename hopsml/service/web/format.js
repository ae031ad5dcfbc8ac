// Format numbers, times and sizes.

/** Convert a number of the server, which sends "NaN" and "Infinity" as text; null for other values. */
const asNumber = (value) => (typeof value === "number" ? value : value === "NaN" || value === "Infinity" || value === "-Infinity" ? Number(value) : null);

/** A value with at most `digits` significant digits; "–" for none. */
function number(value, digits = 5) {
  const known = asNumber(value);
  if (known === null) return value === null || value === undefined || value === "" ? "–" : String(value);
  if (!Number.isFinite(known)) return Number.isNaN(known) ? "NaN" : known > 0 ? "∞" : "−∞";
  if (Number.isInteger(known) && Math.abs(known) < 1e9) return count(known);
  const size = Math.abs(known);
  const text = size !== 0 && (size < 1e-3 || size >= 1e7) ? known.toExponential(3) : String(Number(known.toPrecision(digits)));
  return text.replace("-", "−");
}

/** A whole number with thin spaces between thousands. */
const count = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f").replace("-", "−");

/** Seconds as "3.2 s", "4 min 05 s", "2 h 07 min", "3 d 4 h". */
function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** Age in seconds as rounded text: "12 s", "4 min", "2 h 07 min", "3 d 4 h". */
function age(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 60) return `${Math.floor(whole)} s`;
  return whole < 3600 ? `${Math.floor(whole / 60)} min` : duration(whole);
}

/** MiB as GiB, with one decimal below 10 GiB. */
const gibibytes = (mib) => (mib < 10240 ? String(Math.round(mib / 102.4) / 10) : count(Math.round(mib / 1024)));

/** Seconds since 1970 as "27 Nov, 14:05", in another year "27 Nov 2024, 14:05"; "–" for none. */
function time(seconds) {
  if (!seconds) return "–";
  const moment = new Date(seconds * 1000), two = (value) => String(value).padStart(2, "0");
  const year = moment.getFullYear() === new Date().getFullYear() ? "" : ` ${moment.getFullYear()}`;
  const month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][moment.getMonth()];
  return `${moment.getDate()} ${month}${year}, ${two(moment.getHours())}:${two(moment.getMinutes())}`;
}

/** The same with seconds: "27 Nov, 14:05:09". */
const moment = (seconds) => (seconds ? `${time(seconds)}:${String(new Date(seconds * 1000).getSeconds()).padStart(2, "0")}` : "–");

/** Seconds since 1970 as date and time of the browser's locale, for tooltips. */
const exactTime = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString() : "");

/** "12 kB", "3.4 GB". */
function bytes(value) {
  let rest = value, unit = 0;
  const units = ["B", "kB", "MB", "GB", "TB"];
  while (rest >= 1000 && unit < units.length - 1) { rest /= 1000; unit += 1; }
  return `${unit && rest < 10 ? rest.toFixed(1) : Math.round(rest)} ${units[unit]}`;
}

/** "1 200 of 5 000" or "1 200"; null for none. `progress`: {done, total}, where total may be null. */
const progressText = (progress) => (progress ? `${number(progress.done)}${progress.total ? ` of ${number(progress.total)}` : ""}` : null);

/** "step 10 of 40" or "trials 3 of 12"; "starting" before the first report. The same words as `hopsml jobs ls`. */
const jobProgressText = (progress) => (progress.done === null ? "starting" : `${progress.unit === "trial" ? "trials" : progress.unit} ${progressText(progress)}`);

/** Control sequences of terminals: colours, cursor, titles. */
const FOR_TERMINALS = /\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/g; // eslint-disable-line no-control-regex

/** Return the last state of a log line that a progress bar has overwritten, without control sequences. */
const plain = (line) => (line.includes("\r") ? line.replace(/\r+$/, "").split("\r").at(-1) : line).replace(FOR_TERMINALS, "");

export { age, asNumber, bytes, count, duration, exactTime, gibibytes, jobProgressText, moment, number, plain, progressText, time };
