// All jobs that have not ended: those that wait in the order in which they would start, and those that run.

import { html, useInSight, useLine, useMemo, useSignals, useRef, Link, State, Progress, Empty, Meter, query, setQuery } from "./view.js";
import { head, jobs, nowS, queues } from "./data.js";
import { colour, duration, moment, percent, plural, size, spread } from "./format.js";
import { Why } from "./why.js";

const ROW = 56, NARROW_ROW = 118; // pixels: rows are of one height, so that only those in sight are drawn
const FORETOLD = 60; // jobs whose start and end are asked for
const SHORT_S = 60; // a future that was not simulated farther says nothing
const STATES = { waiting: (job) => !job.gpus, running: (job) => job.gpus > 0 };

export function Queue() {
  const [all, now, bounds] = useSignals(jobs, head, queues);
  const [span, setSpan] = [useRef([0, 40]), (next) => { span.current = next; }];
  const shownIds = useRef([]);
  const line = useLine(() => ({ ids: shownIds.current.slice(...span.current).slice(0, FORETOLD), limit: span.current[1] + 200 }));
  const words = query("find").toLowerCase(), state = query("state"), queue = query("queue");
  const rows = useMemo(() => ordered(all, line, (job) => (!state || (STATES[state] ?? (() => true))(job)) && (!queue || job.queue === queue)
    && (!words || `${job.id} ${job.name} ${job.user} ${job.queue} ${job.state}`.toLowerCase().includes(words))), [all, line, words, state, queue]);
  shownIds.current = rows.map((row) => row.job.id);
  if (!now) return html`<${Empty}>Waiting for the service…<//>`;
  const chosen = all.get(query("job"));
  const isFiltered = words || state || queue;
  return html`
    ${bounds.length > 0 && html`<section aria-labelledby="queues"><h2 id="queues">Queues</h2><ul class="cards">${bounds.map((each) => html`<${QueueCard} key=${each.name} queue=${each} isChosen=${Boolean(queue) && each.name === queue} />`)}</ul></section>`}
    <section aria-labelledby="jobs"><h2 id="jobs">Jobs <span class="quiet">${rows.length.toLocaleString("en")}</span></h2>
      <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
        <label class="sr" for="find">Find jobs</label>
        <input id="find" type="search" placeholder="Name, user, queue or id" title="the / key leads here" aria-keyshortcuts="/" value=${query("find")} onInput=${(event) => setQuery({ find: event.target.value })} />
        <span class="choice" role="group" aria-label="which jobs">${["", "waiting", "running"].map((each) => html`<button type="button" aria-pressed=${state === each} onClick=${() => setQuery({ state: each })}>${each || "all"}</button>`)}</span>
      </form>
      ${line && rows.length > 0 && html`<p class="quiet about">${about(line)}</p>`}
      ${chosen && !chosen.gpus && chosen.ended_s === null && html`<section class="panel-box" aria-labelledby="why"><h3 id="why">Why <${Link} href=${`/jobs/${chosen.id}`}>${chosen.name} ${chosen.id}<//> waits <code class="quiet">stretto explain ${chosen.id}</code> <button class="small" onClick=${() => setQuery({ job: "" })}>Close</button></h3>
        <p>${sentence(chosen.why)}</p><${Why} key=${chosen.id} id=${chosen.id} place=${line && [line.place.get(chosen.id) ?? null, line.waiting]} /></section>`}
      ${rows.length ? html`<${Table} rows=${rows} line=${line} onSpan=${setSpan} />` : isFiltered ? html`<${Empty}>No job fits. <button class="small" onClick=${() => setQuery({ find: "", state: "", queue: "" })}>Show all jobs</button><//>` : html`<${Empty} command="stretto submit job.yaml">No job waits or runs.<//>`}
    </section>`;
}

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

/** In which order jobs stand, and how far starts and ends are foreseen. */
function about({ waiting, policy, order, forecast, is_foreseeing: isForeseeing, failed }) {
  if (!waiting) return "";
  if (forecast?.started) return `Those that wait come in the order in which ${plural(forecast.draws, "simulated future")} under ${policy} start${forecast.draws === 1 ? "s" : ""} them; looked at until ${moment(forecast.until_unix_s)}.`;
  const first = `Those that wait come in the order in which ${policy} is shown them: by priority, then by fair share.${order ? ` Who comes first under ${policy}: ${order}.` : ""}`;
  return `${first}${isForeseeing ? " When they start is being worked out…" : failed ? ` There is no forecast: ${failed}.` : ""}`;
}

/** Rows that fit: jobs that wait by their place, then those that run, by their start. */
function ordered(all, line, fits) {
  const waiting = [], running = [], later = [];
  let count = 0;
  for (const job of all.values()) {
    if (job.ended_s !== null) continue;
    const place = job.gpus ? 0 : line?.place.get(job.id) ?? 0;
    if (!job.gpus) count += 1;
    if (!fits(job)) continue;
    (job.gpus ? running : place ? waiting : later).push({ job, place });
  }
  waiting.sort((a, b) => a.place - b.place);
  running.sort((a, b) => (a.job.started_s ?? 0) - (b.job.started_s ?? 0));
  return [...waiting, ...later, ...running];
}

function QueueCard({ queue, isChosen }) {
  const quota = queue.quota_gpus;
  const borrowed = quota !== null && queue.held_gpus > quota ? queue.held_gpus - quota : 0;
  return html`<li class="card"><button class="plain" aria-pressed=${isChosen} onClick=${() => setQuery({ queue: isChosen ? "" : queue.name })}>
    <h3>${queue.name || "no queue"}</h3>
    <p class="figure">${queue.held_gpus.toLocaleString("en")}<span class="unit">${quota === null ? " GPUs, no quota" : ` of ${quota.toLocaleString("en")} GPUs`}</span></p>
    <${Meter} share=${quota ? Math.min(queue.held_gpus / quota, 1) : 0} label="of its quota" isHidden=${quota === null} />
    <p class="quiet">${plural(queue.jobs, "job")}, ${queue.waiting.toLocaleString("en")} waiting${borrowed ? `, ${borrowed} GPUs borrowed` : ""}</p>
  </button></li>`;
}

function Table({ rows, line, onSpan }) {
  const body = useRef(null);
  const height = innerWidth < 720 ? NARROW_ROW : ROW;
  const span = useInSight(body, height);
  const [first, last] = [Math.min(span[0], Math.max(rows.length - 1, 0)), Math.min(span[1], rows.length)];
  onSpan([first, last]);
  const gap = (key, count) => count > 0 && html`<tr key=${key} class="gap" aria-hidden="true" style=${{ height: `${count * height}px` }}></tr>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="jobs"><table class="jobs stacks" role="table" aria-rowcount=${rows.length + 1}>
    <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col" class="number">Place</th><th role="columnheader" scope="col">Job</th><th role="columnheader" scope="col">State</th><th role="columnheader" scope="col">GPUs</th><th role="columnheader" scope="col">Done</th><th role="columnheader" scope="col">Starts or ends</th><th role="columnheader" scope="col" class="why">Why it waits</th></tr></thead>
    <tbody ref=${body} role="rowgroup">${gap("above", first)}${rows.slice(first, last).map(({ job, place }, index) => html`<${Row} key=${job.id} job=${job} place=${place} at=${first + index} foreseen=${line?.forecast?.jobs[job.id]} until=${line?.forecast?.until_unix_s} />`)}${gap("below", rows.length - last)}</tbody></table></div>`;
}

function Row({ job, place, at, foreseen, until }) {
  const chosen = query("job") === job.id;
  return html`<tr role="row" aria-rowindex=${at + 2} class=${chosen ? "chosen" : ""}>
    <td role="cell" class="number place">${place ? place.toLocaleString("en") : ""}</td>
    <th role="rowheader" scope="row" class="who"><${Link} href=${`/jobs/${job.id}`}><span class=${`swatch ${colour(job.id)}`} aria-hidden="true"></span><span class="called">${job.name}</span> <span class="quiet">${job.id}</span><//><small class="quiet">${job.user || "no user"} · ${job.queue || "no queue"}${job.priority ? ` · priority ${job.priority}` : ""}</small></th>
    <td role="cell" class="is"><${State} state=${job.state} /></td>
    <td role="cell" class="size">${size(job)}<small class="quiet">${job.gpus ? job.gpu_type : ""}</small></td>
    <td role="cell" class="done">${job.share_done === null ? "" : html`<${Progress} share=${job.share_done} text=${percent(job.share_done)} />`}</td>
    <td role="cell" class="when"><${When} job=${job} foreseen=${foreseen} until=${until} /></td>
    <td role="cell" class="why">${job.gpus ? "" : html`<button class="plain-text" aria-expanded=${chosen} title=${`${job.why}: which jobs hold what it waits for`} onClick=${() => setQuery({ job: chosen ? "" : job.id })}>${job.why}</button>`}</td></tr>`;
}

/** When a job starts or ends: the middle of some futures, and below it where most of them lie. */
function When({ job, foreseen, until }) {
  const span = job.gpus ? foreseen?.end : foreseen?.start;
  const nowUnix = head.value.unix_s + nowS() - head.value.now_s;
  if (span?.middle) {
    if (span.middle - nowUnix < 2) return job.gpus ? "ends soon" : "starts soon";
    return html`${job.gpus ? "ends" : "starts"} in ${duration(span.middle - nowUnix)}${span.low !== span.high && html`<small class="quiet">${spread(span, nowUnix, true)}</small>`}`;
  }
  if (job.gpus && job.left_s !== null) return html`ends in ${duration(job.left_s)}<small class="quiet">at its present pace</small>`;
  if (span && until - nowUnix >= SHORT_S) return html`<span class="quiet">not within ${duration(until - nowUnix)}</span>`;
  if (span) return html`<span class="quiet">not foreseen yet</span>`;
  return html`<span class="quiet nothing">–</span>`;
}
