// All jobs that have not ended: which run, and why each of the others waits.

import { html, useInSight, useSignals, useRef, Link, State, Progress, Empty, query, setQuery } from "./view.js";
import { head, jobs, nowS, queues } from "./data.js";
import { colour, duration, percent, plural, size } from "./format.js";

const ROW = 44; // pixels: rows are of one height, so that only those in sight are drawn

const WORDS = { waiting: (job) => !job.gpus, running: (job) => job.gpus > 0 };

export function Queue() {
  const [all, now, bounds] = useSignals(jobs, head, queues);
  if (!now) return html`<${Empty}>Waiting for the service…<//>`;
  const words = query("find").toLowerCase(), state = query("state"), queue = query("queue");
  const rows = [];
  let position = 0;
  for (const job of all.values()) {
    if (job.ended_s !== null) continue;
    const place = job.gpus ? 0 : ++position;
    if (state && !(WORDS[state] ?? (() => true))(job)) continue;
    if (queue && job.queue !== queue) continue;
    if (words && !`${job.id} ${job.name} ${job.user} ${job.queue} ${job.state}`.toLowerCase().includes(words)) continue;
    rows.push({ job, place });
  }
  return html`
    ${bounds.length > 0 && html`<section aria-labelledby="queues"><h2 id="queues">Queues</h2><ul class="cards">${bounds.map((each) => html`<${QueueCard} key=${each.name} queue=${each} isChosen=${Boolean(queue) && each.name === queue} />`)}</ul></section>`}
    <section aria-labelledby="jobs"><h2 id="jobs">Jobs <span class="quiet">${rows.length.toLocaleString("en")}</span></h2>
      <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
        <label class="sr" for="find">Find jobs</label>
        <input id="find" type="search" placeholder="Name, user, queue or id" value=${query("find")} onInput=${(event) => setQuery({ find: event.target.value })} />
        ${["", "running", "waiting"].map((each) => html`<button type="button" aria-pressed=${state === each} onClick=${() => setQuery({ state: each })}>${each || "all"}</button>`)}
      </form>
      ${rows.length ? html`<${Table} rows=${rows} />` : html`<${Empty} command="stretto submit job.yaml">${words || state || queue ? "No job fits." : "No job waits or runs."}<//>`}
    </section>`;
}

function QueueCard({ queue, isChosen }) {
  const quota = queue.quota_gpus;
  const borrowed = quota !== null && queue.held_gpus > quota ? queue.held_gpus - quota : 0;
  return html`<li class="card"><button class="plain" aria-pressed=${isChosen} onClick=${() => setQuery({ queue: isChosen ? "" : queue.name })}>
    <h3>${queue.name || "no queue"}</h3>
    <p class="figure">${queue.held_gpus}<span class="unit">${quota === null ? " GPUs" : ` of ${quota} GPUs`}</span></p>
    ${quota !== null && html`<meter min="0" max=${Math.max(quota, 1)} value=${Math.min(queue.held_gpus, quota)} aria-label="of its quota"></meter>`}
    <p class="quiet">${plural(queue.jobs, "job")}, ${queue.waiting} waiting${borrowed ? `, ${borrowed} GPUs borrowed` : ""}</p>
  </button></li>`;
}

function Table({ rows }) {
  const body = useRef(null);
  const span = useInSight(body, ROW);
  const [first, last] = [Math.min(span[0], Math.max(rows.length - 1, 0)), Math.min(span[1], rows.length)];
  return html`<div class="scroll" tabindex="0" role="region" aria-label="jobs"><table class="jobs">
    <thead><tr><th scope="col">Job</th><th scope="col">State</th><th scope="col">GPUs</th><th scope="col">Type</th><th scope="col">Done</th><th scope="col">Time left</th><th scope="col" class="why">Why</th><th scope="col">User</th><th scope="col">Queue</th></tr></thead>
    <tbody ref=${body}>
      ${first > 0 && html`<tr key="above" aria-hidden="true" style=${{ height: `${first * ROW}px` }}></tr>`}
      ${rows.slice(first, last).map(({ job, place }) => html`<${Row} key=${job.id} job=${job} place=${place} />`)}
      ${last < rows.length && html`<tr key="below" aria-hidden="true" style=${{ height: `${(rows.length - last) * ROW}px` }}></tr>`}
    </tbody></table></div>`;
}

function Row({ job, place }) {
  return html`<tr>
    <th scope="row"><${Link} href=${`/jobs/${job.id}`}><span class=${`swatch ${colour(job.id)}`} aria-hidden="true"></span>${job.name} <span class="quiet">${job.id}</span><//></th>
    <td><${State} state=${job.state} /></td>
    <td>${size(job)}</td>
    <td>${job.gpus ? job.gpu_type || "–" : ""}</td>
    <td>${job.share_done === null ? "–" : html`<${Progress} share=${job.share_done} text=${percent(job.share_done)} />`}</td>
    <td>${job.gpus ? duration(job.left_s) : ""}</td>
    <td class="why" title=${job.evidence}>${job.gpus ? "" : html`<span class="place">${place}.</span> ${job.evidence || job.reason}`}</td>
    <td>${job.user || "–"}</td><td>${job.queue || "–"}</td></tr>`;
}
