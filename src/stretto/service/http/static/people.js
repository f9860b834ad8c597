// Queues and users: what each is entitled to, holds, has borrowed and has had, and what GPUs were held for.

import { html, parts, usePolled, useMemo, useSignals, Empty, Link, Meter, query, setQuery } from "./view.js";
import { jobs } from "./data.js";
import { number, percent, plural } from "./format.js";
import { Bars } from "./chart.js";
import { Tip } from "./scrub.js";

const EVERY_S = 5;
const PERIODS = { "": ["all time", null], "1d": ["today", 0], "7d": ["7 days", 6], "30d": ["30 days", 29], "90d": ["90 days", 89] };
const BY = { "": "user", queue: "queue", type: "GPU type", job: "job" };
const MANY = 10; // times a budget from which on no percent are counted; chosen
const MOST_ROWS = 200; // of a table; the largest ones
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const USES = [["useful", "useful"], ["unsaved", "not yet saved"], ["lost", "lost to restarts"], ["idle", "idle"]];

export function People() {
  const [shares, error] = usePolled("/api/v1/shares", EVERY_S);
  if (error) return html`<${Empty}>${error}. It is tried again.<//>`;
  if (!shares) return html`<${Empty}>Looking at shares and usage…<//>`;
  return html`
    <section aria-labelledby="shares"><h2 id="shares">Shares <code class="quiet">stretto shares</code></h2>
      <p class="quiet about">${shares.orders_jobs ? "Among jobs of one priority, those come first whose queue and user have had the least for their share. A full bar comes first."
        : "The policy orders jobs by itself; shares are shown, and order nothing."}</p>
      ${shares.shares.length ? html`<${Shares} rows=${shares.shares} />` : html`<${Empty} command="stretto shares set-user USER SHARES">Nobody has used anything yet.<//>`}
    </section>
    <${Budgets} />
    <${Usage} /><${Tip} />`;
}

/** A tree: each row is followed by those below it. */
function Shares({ rows }) {
  return html`<div class="scroll people" tabindex="0" role="region" aria-label="shares"><table><thead><tr><th scope="col">Queue or user</th><th scope="col" class="number">Holds</th><th scope="col" class="number">Entitled to</th>
    <th scope="col" class="number">Borrowed</th><th scope="col" class="number">Quota</th><th scope="col" class="number">Shares</th><th scope="col" class="number">Has had lately</th><th scope="col">Comes first</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${[...row.queues, row.name].join("/")}>
      <th scope="row"><span class=${`level-${Math.min(row.queues.length, 4)}`}>${parts(row.name || "no name")} <span class="quiet">${row.kind}</span></span></th>
      <td class="number">${plural(row.held_gpus, "GPU")}</td><td class="number">${number(row.entitled_gpus)} GPUs</td>
      <td class="number">${row.borrowed_gpus ? `${number(row.borrowed_gpus)} ${row.borrowed_gpus === 1 ? "GPU" : "GPUs"}` : "–"}</td><td class="number">${row.quota_gpus === null ? "–" : plural(row.quota_gpus, "GPU")}</td>
      <td class="number">${number(row.shares)}</td><td class="number">${places(row.usage_gpu_hours)} GPU-h</td>
      <td><${Meter} share=${row.factor} label="how far ahead it is in line" /></td></tr>`)}</tbody></table></div>`;
}

const LEVELS = { "": "–", warn: "warns", hold: "holds its jobs" };

/** What may be used in a period, and how much of it was. */
function Budgets() {
  const [budgets, error] = usePolled("/api/v1/budgets", EVERY_S);
  return html`<section aria-labelledby="budgets"><h2 id="budgets">Budgets <code class="quiet">stretto budgets</code></h2>
    ${error ? html`<${Empty}>${error}<//>` : !budgets ? html`<p class="quiet">Looking at budgets…</p>` : budgets.budgets.length ? html`<${BudgetRows} rows=${budgets.budgets} />` : html`<p class="quiet about">No budget has been set. <code>stretto budgets set NAME --user USER --gpu-hours 500 --hold 1</code></p>`}
  </section>`;
}

function BudgetRows({ rows }) {
  return html`<div class="scroll people" tabindex="0" role="region" aria-label="budgets"><table><thead><tr><th scope="col">Budget</th><th scope="col">For</th><th scope="col" class="number">Used</th><th scope="col" class="number">Of</th>
    <th scope="col" class="number">Share</th><th scope="col">Used part</th><th scope="col">Level</th><th scope="col">Until</th><th scope="col" class="number">Jobs that wait</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.name}><th scope="row">${parts(row.name)}</th><td>${forWhom(row)}</td>
      <td class="number">${places(row.used)}</td><td class="number">${number(row.amount)} ${row.unit === "cost" ? "" : "GPU-h"} a ${row.period}</td><td class="number">${partOf(row.share)}</td>
      <td><${Meter} share=${Math.min(row.share, 1)} label=${`used of ${row.name}`} level=${row.level} /></td>
      <td class=${row.level === "hold" ? "worse" : ""}>${LEVELS[row.level]}</td><td><time datetime=${row.until} title=${row.zone}>${row.until.slice(0, 16).replace("T", " ")}</time></td><td class="number">${row.level === "hold" ? row.waiting.toLocaleString("en") : "–"}</td></tr>`)}</tbody></table></div>`;
}

/** Of a budget; what is many times as much is said so. */
const partOf = (share) => (share < MANY ? `${Math.floor(100 * share).toLocaleString("en")} %` : `${number(share)} times`);

const forWhom = (row) => [row.user && `user ${row.user}`, row.queue && `queue ${row.queue}`].filter(Boolean).join(", ") || "all jobs";

/** Two places, so that columns line up. */
const places = (value) => value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** The first day of so many that end today, here. */
function firstDay(daysBack) {
  const day = new Date();
  day.setDate(day.getDate() - daysBack);
  return `${day.getFullYear()}-${String(day.getMonth() + 1).padStart(2, "0")}-${String(day.getDate()).padStart(2, "0")}`;
}

function Usage() {
  const period = PERIODS[query("period")] ? query("period") : "", by = BY[query("by")] ? query("by") : "";
  const back = PERIODS[period][1];
  const from = back === null ? "" : firstDay(back);
  const asked = `${from && `&from=${from}`}&zone=${encodeURIComponent(ZONE)}`;
  const path = `/api/v1/usage?by=${by || "user"}${asked}`;
  const [usage, error, of] = usePolled(path, EVERY_S);
  const [days] = usePolled(`/api/v1/usage?by=day${asked}`, 4 * EVERY_S);
  const command = `stretto usage --by ${by || "user"}${from && ` --from ${from} --zone ${ZONE}`}`;
  const key = by || "user";
  return html`<section aria-labelledby="usage"><h2 id="usage">Usage <code class="quiet">${command}</code></h2>
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <label>By <select value=${by} onChange=${(event) => setQuery({ by: event.target.value })}>${Object.entries(BY).map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>
      <label>Period <select value=${period} onChange=${(event) => setQuery({ period: event.target.value })}>${Object.entries(PERIODS).map(([value, [name]]) => html`<option value=${value}>${name}</option>`)}</select></label>
    </form>
    ${error ? html`<${Empty}>${error}<//>` : !usage || of !== path ? html`<p class="quiet">Adding up…</p>` : usage.usage.length === 0 ? html`<${Empty} command="stretto submit job.yaml">No job has held a GPU in this time.<//>` : html`
    <${Days} rows=${days?.usage ?? []} /><${Rows} rows=${usage.usage} of=${key} />`}
  </section>`;
}

const hoursOf = (row, use) => row[`${use}_gpu_seconds`] / 3600;

function Days({ rows }) {
  if (rows.length < 2) return null;
  const shown = rows.map((row) => ({ label: row.period, parts: USES.map(([use, name]) => ({ name, colour: use, value: hoursOf(row, use) })) }));
  return html`<${Bars} title="By day" unit="GPU-hours" bars=${shown} legend=${USES.map(([use, name]) => ({ name, colour: use }))} />`;
}

/** GPU-hours with two places, as `stretto usage` prints them, so that columns line up. */
const hours = (seconds) => places(seconds / 3600);

function Rows({ rows, of }) {
  const [open] = useSignals(jobs);
  const sorted = useMemo(() => [...rows].sort((a, b) => b.gpu_hours - a.gpu_hours), [rows]);
  const most = Math.max(sorted[0].gpu_hours, 1e-9);
  const priced = sorted.some((row) => row.cost !== null && row.cost !== undefined);
  const name = (row) => row[of] || (of === "user" ? "the cluster" : of === "queue" ? "no queue" : "–");
  return html`<div class="scroll people" tabindex="0" role="region" aria-label="usage"><table><thead><tr><th scope="col">${BY[of === "user" ? "" : of].replace(/^./, (letter) => letter.toUpperCase())}</th><th scope="col">Of the most</th><th scope="col" class="number">GPU-hours</th><th scope="col" class="number">Useful</th><th scope="col" class="number">Not yet saved</th><th scope="col" class="number">Lost</th><th scope="col" class="number">Idle</th><th scope="col" class="number">Charged</th>${priced && html`<th scope="col" class="number">Cost</th>`}<th scope="col" class="number">Jobs</th><th scope="col" class="number">GPUs now</th></tr></thead>
    <tbody>${sorted.slice(0, MOST_ROWS).map((row) => html`<tr key=${name(row)}><th scope="row">${of === "job" ? html`<${Link} href=${`/jobs/${row.job}`}>${open.has(row.job) && html`${parts(open.get(row.job).name)} `}<span class="quiet">${row.job}</span><//>` : parts(name(row))}</th><td><${Meter} share=${row.gpu_hours / most} label="of the most" /></td>
      <td class="number">${hours(row.gpu_seconds)}</td><td class="number">${hours(row.useful_gpu_seconds)}${row.gpu_seconds > 0 && html` <span class="quiet">${percent(row.useful_gpu_seconds / row.gpu_seconds)}</span>`}</td><td class="number">${hours(row.unsaved_gpu_seconds)}</td><td class="number">${hours(row.lost_gpu_seconds)}</td>
      <td class="number">${hours(row.idle_gpu_seconds)}</td><td class="number">${hours(row.charged_gpu_seconds)}</td>${priced && html`<td class="number">${row.cost === null ? "–" : places(row.cost)}</td>`}<td class="number">${row.jobs.toLocaleString("en")}</td><td class="number">${row.gpus}</td></tr>`)}</tbody></table></div>
    ${sorted.length > MOST_ROWS && html`<p class="quiet">The ${MOST_ROWS} with the most GPU-hours, of ${sorted.length.toLocaleString("en")}.</p>`}`;
}
