// Size over time: what each job has held and why that changed, and what it would hold.

import { html, still, useInSight, useMemo, useSignals, useEffect, useRef, useState, Link, Empty, query, setQuery } from "./view.js";
import { call, head, jobs, notRenewed, queues, renewed } from "./data.js";
import { colour, moment, number, plural } from "./format.js";
import { WIDE, between, fanOf, line, scale, stepped, ticks } from "./shapes.js";
import { edge, rounds } from "./chart.js";
import { Scrub, Tip } from "./scrub.js";
import { Changes, reasonOf, timeOf } from "./changes.js";
import { FORETOLD, useForecast } from "./forecast.js";

const HOURS = [0.25, 1, 4, 12, 24, 72, 168], AHEAD = [0, 0.5, 2, 6, 24];
const USUAL_HOURS = 4, USUAL_AHEAD = 2;
const AT_ONCE = 100; // jobs that are asked for together
const LIVE_MS = 700, QUIET_MS = 10_000, PATIENT = 8; // between two looks; a look that takes long is taken less often
const ROW = 46, NARROW_ROW = 74; // pixels: rows are of one height
const TALL = 30, SUM_TALL = 150;
const SEEN = 1 / 75; // of the height of the sum: what is smaller shows no colour

const chosen = (key, usual, choices) => {
  const value = Number(query(key) || usual);
  return value >= 0 && value <= choices.at(-1) && (value > 0 || choices[0] === 0) ? value : usual;
};

/** Less ahead where little is asked for of the past, which would be squeezed into a corner else. */
const usualAhead = (hours) => (hours < USUAL_AHEAD ? AHEAD[1] : USUAL_AHEAD);

export function Timeline() {
  const [now] = useSignals(head);
  const hours = chosen("hours", USUAL_HOURS, HOURS), ahead = chosen("ahead", usualAhead(hours), AHEAD);
  const [span, setSpan] = useState([0, 40]);
  const [shown, error] = useSizes(hours, span);
  const inSight = shown ? shown.rows.slice(span[0], Math.min(span[1], span[0] + FORETOLD)).filter(Boolean).filter((row) => row.ended_s === null).map((row) => row.id) : [];
  const foreseen = useForecast(ahead, inSight, Boolean(shown));
  const at = useMemo(() => shown && scaleOf(shown, ahead), [shown, ahead]);
  if (error) return html`<${Empty} command="stretto list">${error}<//>`;
  if (!now || !shown) return html`<${Empty}>Looking at what jobs have held…<//>`;
  const isFiltered = query("find") || query("queue");
  return html`
    <section aria-labelledby="sizes"><h2 id="sizes">Size over time <span class="quiet">${plural(shown.total, "job")}</span></h2>
      <${Choices} hours=${hours} ahead=${ahead} />
      <${StillSum} shown=${shown} at=${at} fan=${foreseen.answer} />
      <p class="quiet foretold" role="status">${said(ahead, foreseen)} ${foreseen.since > 0 && html`<button class="small" onClick=${foreseen.stop}>Stop</button>`}</p>
      ${query("job") && html`<${Changes} key=${query("job")} id=${query("job")} hours=${hours} seq=${shown.now_s} />`}
      ${shown.total ? html`<${Rows} shown=${shown} at=${at} fans=${foreseen.answer} onSpan=${setSpan} />`
        : html`<${Empty} command=${isFiltered ? "" : "stretto submit job.yaml"}>${isFiltered ? "No job fits." : "No job was there in this time."}<//>`}
    </section><${Tip} />`;
}

/** Where times lie, and which of them have a line; writing times costs more than all the rest. */
function scaleOf(shown, ahead) {
  const at = scale(shown.from_s, shown.now_s + ahead * 3600), isNarrow = innerWidth < 720;
  const marks = ticks(at, shown.unix_s - shown.now_s, isNarrow ? 4 : 10).map(([atS, text]) => [at.x(atS), text]);
  return { ...at, marks, nowX: at.x(shown.now_s), apart: isNarrow ? 150 : innerWidth < 1500 ? 105 : 50 };
}

function said(ahead, { answer, error, since }) {
  if (!ahead) return "No forecast is asked for.";
  if (since) return `The forecast is being worked out${since > 1 ? `, ${since} s so far` : ""}…`;
  if (error) return `There is no forecast: ${error.replace(/^the forecast /, "it ")}`;
  if (!answer) return "";
  const known = answer.held.middle.findIndex((value) => value === null);
  const far = known < 0 ? "" : ` It reaches ${moment(answer.unix_s + known * answer.step_s)}, in the seconds that a question may take.`;
  return answer.draws === 1 ? `Right of now: one simulated future under ${answer.policy}.${far}` : `Right of now: the middle of ${plural(answer.draws, "simulated future")} under ${answer.policy}, and where eight in ten of them lie.${far}`;
}

function Choices({ hours, ahead }) {
  const [bounds] = useSignals(queues);
  const pick = (key) => (event) => setQuery({ [key]: event.target.value });
  const span = (value) => (value < 1 ? `${value * 60} min` : value < 48 ? `${value} h` : `${value / 24} days`);
  const options = (values, value) => [...new Set([...values, value])].sort((a, b) => a - b);
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="sr" for="find">Find jobs</label>
    <input id="find" type="search" placeholder="Name, user, queue or id" title="the / key leads here" aria-keyshortcuts="/" value=${query("find")} onInput=${pick("find")} />
    ${bounds.length > 0 && html`<label>Queue <select value=${query("queue")} onChange=${pick("queue")}><option value="">all</option>${bounds.filter((each) => each.name).map((each) => html`<option value=${each.name}>${each.name}</option>`)}</select></label>`}
    <label>Back <select value=${hours} onChange=${pick("hours")}>${options(HOURS, hours).map((each) => html`<option value=${each}>${span(each)}</option>`)}</select></label>
    <label>Ahead <select value=${ahead} onChange=${pick("ahead")}>${options(AHEAD, ahead).map((each) => html`<option value=${each}>${each ? span(each) : "none"}</option>`)}</select></label>
  </form>`;
}

/** What was held, asked for again as the stream says that something has happened: [{…, rows by place}, error]. */
function useSizes(hours, span) {
  const [shown, setShown] = useState([null, ""]);
  const first = Math.floor(span[0] / (AT_ONCE / 2)) * (AT_ONCE / 2);
  const path = `/api/v1/timeline?hours=${hours}&limit=${AT_ONCE}&offset=${first}&find=${encodeURIComponent(query("find"))}&queue=${encodeURIComponent(query("queue"))}`;
  useEffect(() => {
    const asking = new AbortController();
    let timer = 0, seq = -1, askedMs = 0, tookMs = 0, isAsking = false, isShown = false;
    const take = (answer) => setShown(([last]) => {
      const rows = last && last.total === answer.total && last.key === path.replace(/offset=\d+/, "") ? last.rows.slice() : new Array(answer.total);
      answer.jobs.forEach((job, index) => { rows[first + index] = job; });
      return [{ ...answer, rows, key: path.replace(/offset=\d+/, "") }, ""];
    });
    const look = async () => {
      if (isAsking || document.hidden) return;
      const isNew = head.value?.seq !== seq, passedMs = performance.now() - askedMs;
      if (askedMs && passedMs < (isNew ? Math.max(LIVE_MS, PATIENT * tookMs) : QUIET_MS)) return;
      isAsking = true;
      [seq, askedMs] = [head.value?.seq, performance.now()];
      try {
        take(await call("GET", path, undefined, asking.signal));
        isShown = true;
        renewed(path);
      } catch (wrong) {
        if (!asking.signal.aborted && isShown) notRenewed(path, wrong);
        if (!asking.signal.aborted) setShown(([last]) => [last, last ? "" : wrong.message]);
      }
      tookMs = performance.now() - askedMs;
      isAsking = false;
    };
    timer = setInterval(look, 250);
    look();
    return () => { clearInterval(timer); asking.abort(); renewed(path); };
  }, [path]);
  return shown;
}

/** All jobs together: the largest have areas of their own. */
function Sum({ shown, at, fan }) {
  const { held, step_s: stepS } = shown;
  const ahead = fan ? fanOf(fan.held, fan.now_s, fan.step_s, shown.now_s) : null;
  const most = 1.04 * Math.max(shown.gpus, ...held, ...(ahead ? ahead.high.map(([, value]) => value) : []), 1);
  const areas = shown.areas.filter((area) => Math.max(...area.held) > SEEN * most);
  const ground = held.map(() => 0);
  const times = held.map((_, index) => shown.from_s + index * stepS);
  const steps = (values) => values.map((value, index) => [times[index], value]);
  const layers = [...areas].reverse().map((area) => {
    const low = steps(ground);
    area.held.forEach((value, index) => { ground[index] += value; });
    return { area, path: between(low, steps(ground), shown.now_s, at, most, SUM_TALL) };
  });
  const stops = held.map((value, index) => ({ x: at.x(times[index] + stepS / 2) / WIDE, text: [timeOf(shown, times[index]), `${value.toFixed(1)} of ${shown.gpus} GPUs held`,
    ...areas.filter((area) => area.held[index] > 0).map((area) => `${area.held[index].toFixed(1)}  ${area.name} (${area.id})`)] }));
  (ahead?.middle ?? []).forEach(([atS, value], index) => stops.push({ x: at.x(atS) / WIDE, text: [`${timeOf(shown, atS)}, foreseen`, `${value} GPUs held (${ahead.low[index][1]} to ${ahead.high[index][1]})`] }));
  const marks = rounds(0, most / 1.04).map((mark) => [mark, SUM_TALL - (mark / most) * SUM_TALL]);
  return html`<div class="sum"><p class="quiet sum-unit">GPUs held by all jobs</p><div class="plot"><div class="y-axis" aria-hidden="true">${marks.map(([mark, y]) => html`<span key=${mark} style=${{ top: `${(100 * y) / SUM_TALL}%` }}>${number(mark)}</span>`)}</div><div class="canvas"><${Scrub} label="GPUs held by all jobs" stops=${stops}>
      <svg viewBox=${`0 0 ${WIDE} ${SUM_TALL}`} preserveAspectRatio="none" aria-hidden="true">
        <path class="others" d=${stepped(steps(held), shown.now_s, at, most, SUM_TALL)} />
        ${layers.map(({ area, path }) => html`<path key=${area.id} class=${`area ${colour(area.id)}`} d=${path} />`)}
        ${ahead && html`<path class="band" d=${between(ahead.low, ahead.high, ahead.endS, at, most, SUM_TALL)} /><path class="middle" d=${line(ahead.middle, ahead.endS, at, most, SUM_TALL)} />`}
        <${Grid} at=${at} tall=${SUM_TALL} />
        ${marks.map(([mark, y]) => html`<line key=${mark} class="tick" x1="0" x2=${WIDE} y1=${y} y2=${y} />`)}
        <line class="there" x1="0" x2=${WIDE} y1=${SUM_TALL - (shown.gpus / most) * SUM_TALL} y2=${SUM_TALL - (shown.gpus / most) * SUM_TALL} />
      </svg><//></div>
    <${Axis} at=${at} /></div>
    <div class="quiet key-line"><span>Dotted: all ${plural(shown.gpus, "GPU")} of the cluster.${layers.length > 0 ? " Grey: jobs that have no colour here." : shown.areas.length > 0 ? " Grey: jobs, each too small for a colour of its own." : ""}</span>${layers.length > 0 && html`<ul class="names" aria-label="jobs that held most">${[...layers].reverse().map(({ area }) => html`<li key=${area.id}><${Link} href=${`/jobs/${area.id}`}><span class=${`swatch ${colour(area.id)}`} aria-hidden="true"></span>${area.name} ${area.id}<//></li>`)}</ul>`}</div></div>`;
}

const StillSum = still(Sum);

const Grid = ({ at, tall }) => html`${at.marks.map(([x]) => html`<line key=${x} class="tick" x1=${x} x2=${x} y1="0" y2=${tall} />`)}<line class="now" x1=${at.nowX} x2=${at.nowX} y1="0" y2=${tall} />`;

/** Times below a picture; "now" stands by itself. */
const Axis = still(({ at }) => html`<div class="axis" aria-hidden="true">${at.marks.filter(([x]) => Math.abs(x - at.nowX) > at.apart).map(([x, text]) => html`<span key=${x} class=${edge(x)} style=${{ left: `${x / 10}%` }}>${text}</span>`)}<b style=${{ left: `${at.nowX / 10}%` }} class=${edge(at.nowX)}>now</b></div>`);

function Rows({ shown, at, fans, onSpan }) {
  const body = useRef(null);
  const height = innerWidth < 720 ? NARROW_ROW : ROW;
  const span = useInSight(body, height);
  useEffect(() => onSpan(span), [span]);
  const [live] = useSignals(jobs);
  const wanted = query("job");
  const last = Math.min(span[1], shown.total), first = Math.min(span[0], Math.max(shown.total - 1, 0));
  const places = Array.from({ length: Math.max(last - first, 0) }, (_, index) => first + index);
  return html`<div class="lanes"><div class="lane lane-head" aria-hidden="true"><span>Job</span><${Axis} at=${at} /><span>Size</span></div>
    <ol ref=${body} aria-label="jobs" style=${{ height: `${shown.total * height}px` }}>
      ${places.map((place) => html`<${StillLane} key=${shown.rows[place]?.id ?? `at ${place}`} row=${shown.rows[place]} top=${place * height} height=${height} shown=${shown} at=${at} fan=${fans?.jobs[shown.rows[place]?.id]} ahead=${fans} gpus=${live.get(shown.rows[place]?.id)?.gpus} isChosen=${Boolean(wanted) && shown.rows[place]?.id === wanted} count=${shown.total} place=${place} />`)}
    </ol></div>`;
}

/** What is said of a lane, from left to right: its changes, and when it is foreseen to start and to end. */
function stopsOf(row, shown, at, fan, waits) {
  const stops = row.steps.map(([atS, gpus, type, reason]) => ({ x: at.x(atS) / WIDE, text: [timeOf(shown, atS), `${plural(gpus, "GPU")}${type ? ` ${type}` : ""}`, reasonOf(reason, row)] }));
  const sinceLog = (unixS) => unixS - shown.unix_s + shown.now_s;
  const foresee = (what, { low, middle, high }) => stops.push({ x: at.x(sinceLog(middle)) / WIDE, text: [`foreseen to ${what} ${timeOf(shown, sinceLog(middle))}`,
    low !== null && low !== high ? `${timeOf(shown, sinceLog(low))} to ${high === null ? "later" : timeOf(shown, sinceLog(high))}` : ""] });
  if (waits && fan?.start.middle) foresee("start", fan.start);
  if (row.ended_s === null && fan?.end.middle) foresee("end", fan.end);
  return stops;
}

function Lane({ row, top, height, shown, at, fan, ahead, gpus: told, isChosen, count, place }) {
  const style = { top: `${top}px`, height: `${height}px` };
  if (!row) return html`<li class="lane" style=${style}><span class="quiet">…</span></li>`;
  const untilS = row.ended_s ?? shown.now_s;
  const steps = row.steps.map(([atS, gpus]) => [atS, gpus]);
  const held = told !== undefined && row.ended_s === null ? told : row.ended_s === null && steps.length ? steps.at(-1)[1] : 0;
  if (row.ended_s === null && steps.length && steps.at(-1)[1] !== held) steps.push([shown.now_s, held]);
  const lines = fan && row.ended_s === null ? fanOf(fan.held, ahead.now_s, ahead.step_s, shown.now_s) : null;
  const most = Math.max(...steps.map(([, gpus]) => gpus), ...(lines ? lines.high.map(([, gpus]) => gpus) : []), 1);
  const endS = lines?.endS;
  const waits = row.ended_s === null && !held;
  const stops = stopsOf(row, shown, at, fan, waits);
  return html`<li class=${`lane ${colour(row.id)}${isChosen ? " chosen" : ""}`} style=${style} aria-setsize=${count} aria-posinset=${place + 1}>
    <span class="who"><${Link} href=${`/jobs/${row.id}`}><span class=${`swatch ${colour(row.id)}`} aria-hidden="true"></span><span class="called">${row.name}</span> <span class="quiet">${row.id}</span><//></span>
    <${Scrub} label=${`Changes of ${row.name} (${row.id})`} stops=${stops} onPick=${() => setQuery({ job: isChosen ? "" : row.id })}>
      <svg viewBox=${`0 0 ${WIDE} ${TALL}`} preserveAspectRatio="none" aria-hidden="true">
        <${Grid} at=${at} tall=${TALL} />
        ${waits && row.submitted_s !== null && html`<line class="waits" x1=${at.x(Math.max(row.submitted_s, steps.at(-1)?.[0] ?? 0))} x2=${at.x(shown.now_s)} y1=${TALL - 2} y2=${TALL - 2} />`}
        <path class="area" d=${stepped(steps, untilS, at, most, TALL)} />
        ${lines && html`<path class="band" d=${between(lines.low, lines.high, endS, at, most, TALL)} /><path class="middle" d=${line(lines.middle, endS, at, most, TALL)} />`}
      </svg><//>
    <button class="small" aria-expanded=${isChosen} title="its changes, as a table" onClick=${() => setQuery({ job: isChosen ? "" : row.id })}>${waits ? "waits" : row.ended_s === null ? plural(held, "GPU") : row.state.toLowerCase() || "ended"}<span class="sr"> ${row.name}: table of changes</span></button>
  </li>`;
}

const StillLane = still(Lane);
