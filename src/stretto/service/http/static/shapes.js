// Shapes of pictures over time, in a box that is 1,000 wide; times are on the clock of the service.

export const WIDE = 1000;

/** Where times lie: from the left edge to the right one. */
export function scale(fromS, untilS) {
  const perS = WIDE / Math.max(untilS - fromS, 1e-9);
  const x = (atS) => Math.min(Math.max((atS - fromS) * perS, 0), WIDE);
  return { fromS, untilS, x };
}

const points = (path) => path.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(2)}`);

/** The corners of a stepped line: each value holds until the next one. */
function corners(steps, untilS, at, height) {
  const path = [];
  steps.forEach(([fromS, value], index) => {
    const until = index + 1 < steps.length ? steps[index + 1][0] : untilS;
    path.push([at.x(fromS), height(value)], [at.x(until), height(value)]);
  });
  return path;
}

/** A stepped area over the ground. steps: [time, value]. */
export function stepped(steps, untilS, at, most, tall) {
  if (!steps.length) return "";
  const top = corners(steps, untilS, at, (value) => tall - (value / most) * tall);
  return `M${top[0][0].toFixed(1)} ${tall}L${points(top).join("L")}L${top.at(-1)[0].toFixed(1)} ${tall}Z`;
}

/** The area between two stepped lines. low, high: [time, value], at the same times. */
export function between(low, high, untilS, at, most, tall) {
  if (!low.length) return "";
  const height = (value) => tall - (value / most) * tall;
  const above = corners(high, untilS, at, height), below = corners(low, untilS, at, height);
  return `M${points(above).join("L")}L${points(below.reverse()).join("L")}Z`;
}

export function line(steps, untilS, at, most, tall) {
  if (!steps.length) return "";
  return `M${points(corners(steps, untilS, at, (value) => tall - (value / most) * tall)).join("L")}`;
}

/** The rows of a fan as [time, value], as far as all futures are known; of what has passed since it was made nothing. */
export function fanOf(fan, madeS, stepS, nowS) {
  const known = fan.middle.findIndex((value) => value === null);
  const count = known < 0 ? fan.middle.length : known;
  const first = Math.max(0, Math.floor((nowS - madeS) / stepS));
  const row = (values) => values.slice(first, count).map((value, index) => [Math.max(madeS + (first + index) * stepS, nowS), value]);
  return { low: row(fan.low), middle: row(fan.middle), high: row(fan.high), endS: madeS + count * stepS };
}

const STEPS_S = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];

/** Whole times of the day between two moments: [time of the service, label]. unixS: what is added to get a Unix time. */
export function ticks(at, unixS, count) {
  const span = at.untilS - at.fromS;
  const step = STEPS_S.find((each) => span / each <= count) ?? 604800;
  const zone = new Date().getTimezoneOffset() * 60;
  const first = Math.ceil((at.fromS + unixS - zone) / step) * step + zone - unixS;
  const marks = [];
  for (let atS = first; atS < at.untilS; atS += step) marks.push([atS, label(atS + unixS, step)]);
  return marks;
}

function label(unixS, step) {
  const date = new Date(unixS * 1000);
  if (step >= 86400 || (date.getHours() === 0 && date.getMinutes() === 0)) return date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
}
