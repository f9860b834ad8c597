// The changes of one job's size as a table: what a picture shows to those who see it.

import { html, usePolled, Empty, Link, setQuery } from "./view.js";
import { duration, plural } from "./format.js";

const EVERY_S = 3;
const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: "medium", hour12: false }); // made once: making one takes long
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** A time of the service for people. answer: says what the clock shows now. */
export function timeOf(answer, atS) {
  const date = new Date((answer.unix_s + atS - answer.now_s) * 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? TIME.format(date) : `${DAY.format(date)} ${TIME.format(date)}`;
}

export const reasonOf = (reason, row) => reason || (row.is_mean ? "so long ago that no reason is kept" : "");

export function Changes({ id, hours }) {
  const [answer, error] = usePolled(`/api/v1/timeline?hours=${hours}&limit=1&job=${encodeURIComponent(id)}`, EVERY_S);
  const close = html`<button class="small" onClick=${() => setQuery({ job: "" })}>Close</button>`;
  if (error) return html`<${Empty}>${error} ${close}<//>`;
  if (!answer) return html`<${Empty}>Looking at job ${id}…<//>`;
  const job = answer.jobs[0];
  if (!job) return html`<${Empty} command=${`stretto describe ${id}`}>Job ${id} was not there in this time. ${close}<//>`;
  const steps = job.steps.map((step, index) => ({ step, endS: job.steps[index + 1]?.[0] ?? job.ended_s ?? answer.now_s })).reverse();
  return html`<section class="changes" aria-labelledby="changes"><h3 id="changes">Changes of <${Link} href=${`/jobs/${id}`}>${job.name} ${id}<//> ${close}</h3>
    ${steps.length ? html`<div class="scroll" tabindex="0" role="region" aria-label=${`changes of ${job.name}`}><table><thead><tr><th scope="col">Since</th><th scope="col" class="number">GPUs</th><th scope="col">Type</th><th scope="col">For</th><th scope="col">Why</th></tr></thead>
      <tbody>${steps.map(({ step: [atS, gpus, type, reason], endS }) => html`<tr key=${atS}><td><time>${timeOf(answer, atS)}</time></td><td class="number">${gpus}</td><td>${type || "–"}</td><td>${gpus || endS !== job.ended_s ? duration(endS - atS) : "–"}</td><td>${reasonOf(reason, job) || "–"}</td></tr>`)}</tbody></table></div>`
      : html`<p class="quiet">It has held nothing yet.</p>`}
    <p class="quiet">${plural(steps.length, "change")}${job.is_mean ? "; of long ago there are means of a quarter of an hour" : ""}.</p></section>`;
}
