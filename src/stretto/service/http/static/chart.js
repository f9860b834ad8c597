// A chart with a title, units, and two axes; read by pointer, by arrow keys and by screen readers.

import { html } from "./view.js";
import { WIDE, scale } from "./shapes.js";
import { Scrub } from "./scrub.js";
import { number } from "./format.js";

const TALL = 150;

/** About so many round numbers from `low` to `high`; of what is counted, whole ones. */
export function rounds(low, high, count = 4, isWhole = false) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  const round = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= rough) ?? 10);
  const step = isWhole ? Math.ceil(round) : round;
  const marks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) marks.push(Math.abs(at) < step / 1e6 ? 0 : at);
  return marks;
}

/** Labels at the edges stay inside; of a narrow picture they are a larger part. */
export const edge = (x) => {
  const near = innerWidth < 720 ? 100 : 45;
  return x < near ? "start" : x > WIDE - near ? "end" : "";
};

const line = (points, isStepped) => points.map(([x, y], index) => (index && isStepped ? `H${x.toFixed(1)}V${y.toFixed(2)}` : `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(2)}`)).join("");

/**
 * series: {name, colour: a class, points: [[x, y]], kind: "line", "steps" or "dots", words: (x, y) => lines that are said of a point}.
 * xMarks: [[x, text]]; without them round numbers. fromZero: whether the vertical axis begins at 0. isWhole: whether its values are counts.
 * until: what is now, on a horizontal axis of times; it ends there.
 */
export function Chart({ title, unit, xName, series, xMarks, until, fromZero = true, isWhole = false, note = "" }) {
  const there = series.filter((each) => each.points.length);
  const all = there.flatMap((each) => each.points);
  if (!all.length) return null;
  const xs = all.map(([x]) => x), ys = all.map(([, y]) => y);
  const at = scale(Math.min(...xs), Math.max(until ?? -Infinity, ...xs));
  const least = fromZero ? Math.min(0, ...ys) : Math.min(...ys), highest = Math.max(...ys), most = highest > least ? highest : least + 1; // a line that is flat has a scale, too
  const marks = rounds(least, most, 4, isWhole), low = fromZero ? least : Math.min(least, marks[0]), high = Math.max(most, marks.at(-1)) + 0.04 * (most - low);
  const y = (value) => TALL - ((value - low) / (high - low)) * TALL;
  const across = (xMarks ?? rounds(at.fromS, at.untilS, 6).map((x) => [x, number(x)])).map(([x, text]) => [at.x(x), text]);
  const apart = innerWidth < 720 ? 200 : 150, isNow = until !== undefined;
  const labels = isNow ? [...across.filter(([x]) => x < WIDE - apart), [WIDE, "now"]] : across;
  const shapes = there.map((each) => ({ ...each, path: each.points.map(([px, py]) => [at.x(px), y(py)]) }));
  const stops = there.flatMap((each) => each.points.map(([px, py]) => ({ x: at.x(px) / WIDE, text: each.words(px, py) }))).sort((a, b) => a.x - b.x);
  return html`<figure class="chart"><figcaption><h3>${title} <span class="quiet">${unit}</span></h3>
      ${there.length > 1 && html`<ul class="names">${there.map((each) => html`<li key=${each.name}><span class=${`swatch ${each.kind === "dots" ? "round" : ""} ${each.colour}`} aria-hidden="true"></span>${each.name}</li>`)}</ul>`}</figcaption>
    <div class="plot"><div class="y-axis" aria-hidden="true">${marks.map((mark) => html`<span key=${mark} style=${{ top: `${(100 * y(mark)) / TALL}%` }}>${number(mark)}</span>`)}</div>
      <div class="canvas"><${Scrub} label=${`${title}, ${unit}`} stops=${stops}><svg viewBox=${`0 0 ${WIDE} ${TALL}`} preserveAspectRatio="none" aria-hidden="true">
        ${marks.map((mark) => html`<line key=${mark} class="tick" x1="0" x2=${WIDE} y1=${y(mark)} y2=${y(mark)} />`)}
        ${shapes.filter((each) => each.kind !== "dots").map((each) => html`<path key=${each.name} class=${`curve ${each.colour}`} d=${line([...each.path, ...(each.kind === "steps" ? [[WIDE, each.path.at(-1)[1]]] : [])], each.kind === "steps")} />`)}
        </svg>${shapes.filter((each) => each.kind === "dots").map((each) => each.path.map(([px, py], index) => html`<i key=${`${each.name} ${index}`} class=${`spot ${each.colour}`} style=${{ left: `${px / 10}%`, top: `${(100 * py) / TALL}%` }}></i>`))}<//></div>
      <div class="axis" aria-hidden="true">${labels.filter(([x]) => x >= 0 && x <= WIDE).map(([x, text]) => html`<${isNow && x === WIDE ? "b" : "span"} key=${x} class=${edge(x)} style=${{ left: `${x / 10}%` }}>${text}<//>`)}</div></div>
    <p class="x-name quiet">${xName}${note && html` · ${note}`}</p></figure>`;
}

/** Stacked bars. bars: {label, parts: {name, colour, value}}, from left to right. */
export function Bars({ title, unit, bars, legend }) {
  const sums = bars.map((bar) => bar.parts.reduce((sum, part) => sum + part.value, 0));
  const most = Math.max(...sums, 1e-9), marks = rounds(0, most), high = Math.max(most, marks.at(-1));
  const every = Math.ceil(bars.length / (innerWidth < 720 ? 4 : 10));
  const stops = bars.map((bar, index) => ({ x: (index + 0.5) / bars.length, text: [bar.label, `${number(sums[index])} ${unit}`, ...bar.parts.filter((part) => part.value > 0).map((part) => `${number(part.value)} ${part.name}`)] }));
  return html`<figure class="chart"><figcaption><h3>${title} <span class="quiet">${unit}</span></h3><ul class="names">${legend.map((each) => html`<li key=${each.name}><span class=${`swatch ${each.colour}`} aria-hidden="true"></span>${each.name}</li>`)}</ul></figcaption>
    <div class="plot"><div class="y-axis" aria-hidden="true">${marks.map((mark) => html`<span key=${mark} style=${{ top: `${100 - (100 * mark) / high}%` }}>${number(mark)}</span>`)}</div>
      <div class="canvas"><${Scrub} label=${`${title}, ${unit}`} stops=${stops}><div class="bars" aria-hidden="true">${bars.map((bar) => html`<span key=${bar.label} class="stack">${[...bar.parts].reverse().map((part) => html`<i key=${part.name} class=${part.colour} style=${{ height: `${(100 * part.value) / high}%` }}></i>`)}</span>`)}</div><//></div>
      <div class="axis" aria-hidden="true">${bars.map((bar, index) => index % every === 0 && html`<span key=${bar.label} style=${{ left: `${(100 * (index + 0.5)) / bars.length}%` }}>${bar.label}</span>`)}</div></div></figure>`;
}
