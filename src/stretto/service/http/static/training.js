// How the training of a job went: its size and loss over time, its speed at each size, and what resizes cost.

import { html, usePolled } from "./view.js";
import { duration, figure, gpuTime, number, plural } from "./format.js";
import { ticks } from "./shapes.js";
import { Chart } from "./chart.js";
import { timeOf } from "./changes.js";

const EVERY_S = 5;
const WORDS = { start: "start", restart: "restart", "in place": "in place", stop: "stop" };

export function Training({ id, speeds, metric = "Metric" }) {
  const [answer, error] = usePolled(`/api/v1/jobs/${encodeURIComponent(id)}/training`, EVERY_S);
  if (error) return html`<p class="quiet">${error}</p>`;
  if (!answer) return html`<p class="quiet">Looking at how it trained…</p>`;
  const { points, resizes } = answer;
  return html`<div class="charts">
      <${Sizes} answer=${answer} resizes=${resizes} />
      <${Curve} name="loss" title="Loss" points=${points} />
      <${Curve} name="metric" title=${metric} points=${points} />
      <${Batches} answer=${answer} points=${points} />
      <${Speed} answer=${answer} speeds=${speeds} />
    </div>
    ${resizes.length > 0 && html`<${Resizes} answer=${answer} resizes=${resizes} />`}`;
}

const overTime = (answer, fromS) => ticks({ fromS, untilS: answer.now_s }, answer.unix_s - answer.now_s, innerWidth < 720 ? 3 : 5);

function Sizes({ answer, resizes }) {
  if (resizes.length < 2) return null;
  const points = resizes.map((each) => [each.at_s, each.gpus]);
  const reasons = new Map(resizes.map((each) => [each.at_s, each]));
  const words = (at, gpus) => [timeOf(answer, at), `${plural(gpus, "GPU")}${reasons.get(at).gpu_type ? ` ${reasons.get(at).gpu_type}` : ""}`, reasons.get(at).reason];
  return html`<${Chart} title="Size" unit="GPUs" isWhole xName="time of day" until=${answer.now_s} xMarks=${overTime(answer, points[0][0])} series=${[{ name: "GPUs", colour: "p0", kind: "steps", points, words }]} />`;
}

/** A value that the training reports, over its steps; over time where it counts none. */
function Curve({ name, title, points }) {
  const there = points.filter((each) => each[name] !== null);
  if (there.length < 2) return null;
  const bySteps = there.every((each) => each.step !== null) && there.at(-1).step > there[0].step;
  const x = (each) => (bySteps ? each.step : each.at_s - there[0].at_s);
  const words = (at, value) => [figure(value), bySteps ? `at step ${Math.round(at).toLocaleString("en")}` : `${duration(at)} after its first report`];
  return html`<${Chart} title=${title} unit="as the training reports it" xName=${bySteps ? "step" : "seconds since the first report"} fromZero=${false} series=${[{ name, colour: name === "loss" ? "p1" : "p2", kind: "line", points: there.map((each) => [x(each), each[name]]), words }]} />`;
}

function Batches({ answer, points }) {
  const there = points.filter((each) => each.batch !== null);
  if (new Set(there.map((each) => each.batch)).size < 2) return null;
  const words = (at, batch) => [timeOf(answer, at), `${batch.toLocaleString("en")} samples a step`];
  return html`<${Chart} title="Batch size" unit="samples of a step, on all GPUs" xName="time of day" until=${answer.now_s} xMarks=${overTime(answer, there[0].at_s)} series=${[{ name: "batch", colour: "p3", kind: "steps", points: there.map((each) => [each.at_s, each.batch]), words }]} />`;
}

/** Speed by GPUs: what policies believe as lines, what was measured as dots, a colour for each GPU type. */
function Speed({ answer, speeds }) {
  const believed = answer.believed.length ? answer.believed.map((each) => ({ ...each, of: "fitted" })) : fromTable(speeds);
  const isRelative = !answer.believed.length && speeds?.is_relative;
  const measured = isRelative ? [] : answer.measured;
  const types = [...new Set([...believed, ...measured].map((each) => each.gpu_type))];
  if (new Set([...believed, ...measured].map((each) => each.gpus)).size < 2) return null; // one size has no curve
  const unit = isRelative ? "1: on the GPUs that it asks for" : answer.believed.length ? "steps of the initial batch a second" : "steps a second";
  const series = types.flatMap((type, index) => [
    { name: `${type}, ${isRelative ? "assumed" : "fitted"}`, colour: `p${index % 8}`, kind: "line", points: believed.filter((each) => each.gpu_type === type).map((each) => [each.gpus, each.steps_per_s]), words: (gpus, value) => [`${number(value)} ${isRelative ? "times" : "a second"}`, `${plural(gpus, "GPU")} ${type}`, isRelative ? "assumed" : "fitted"] },
    { name: `${type}, measured`, colour: `p${index % 8}`, kind: "dots", points: measured.filter((each) => each.gpu_type === type).map((each) => [each.gpus, each.steps_per_s]), words: (gpus, value) => [`${number(value)} a second`, `${plural(gpus, "GPU")} ${type}`, "measured"] },
  ]);
  return html`<${Chart} title=${answer.believed.length ? "Goodput" : "Speed"} unit=${unit} xName="GPUs, on the fewest nodes" xMarks=${sizesOf([...believed, ...measured])} note=${isRelative ? "nothing was measured yet" : ""} series=${series} />`;
}

/** Marks at sizes that there are; of neighbours that would touch, the larger one. */
function sizesOf(rows) {
  const sizes = [...new Set(rows.map((each) => each.gpus))].sort((a, b) => b - a), most = sizes[0];
  return sizes.reduce((kept, size) => (kept.length && kept.at(-1)[0] - size < most / 16 ? kept : [...kept, [size, number(size)]]), []).reverse();
}

const fromTable = (speeds) => (speeds?.entries ?? []).filter((each) => !each.spread).map((each) => ({ gpu_type: each.gpu_type, gpus: each.gpus, steps_per_s: each.per_s }));

function Resizes({ answer, resizes }) {
  const rows = [...resizes].reverse();
  const lost = resizes.filter((each) => each.lost_s !== null);
  const sum = lost.reduce((all, each) => all + each.lost_s * each.gpus, 0);
  return html`<section aria-labelledby="resizes"><h3 id="resizes">Resizes <span class="quiet">${lost.length ? `${plural(lost.length, "change")} cost ${gpuTime(sum)} together` : ""}</span></h3>
    <div class="scroll bounded" tabindex="0" role="region" aria-label="resizes"><table><thead><tr><th scope="col">When</th><th scope="col">GPUs</th><th scope="col">Type</th><th scope="col">How</th><th scope="col" class="number">Trains after</th><th scope="col" class="number">Without training</th><th scope="col" class="number">Cost</th><th scope="col">Why</th></tr></thead>
    <tbody>${rows.map((each, index) => html`<tr key=${each.at_s}><td><time>${timeOf(answer, each.at_s)}</time></td><td>${each.gpus_before} → ${each.gpus}</td><td>${typeOf(each, rows[index + 1])}</td><td>${WORDS[each.how] ?? each.how}</td>
      <td class="number">${each.trains_after_s === null ? "–" : seconds(each.trains_after_s)}</td><td class="number">${each.lost_s === null ? "–" : seconds(each.lost_s)}</td><td class="number">${each.lost_s === null ? "–" : gpuTime(each.lost_s * each.gpus)}</td><td class="wraps">${each.reason || "–"}</td></tr>`)}</tbody></table></div></section>`;
}

const typeOf = (each, before) => (before?.gpu_type && each.gpu_type && before.gpu_type !== each.gpu_type ? `${before.gpu_type} → ${each.gpu_type}` : each.gpu_type || "–");
const seconds = (value) => (value < 10 ? `${value.toFixed(value < 1 ? 2 : 1)} s` : duration(value));
