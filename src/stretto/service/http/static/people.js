// Queues and users: what each is entitled to, holds, has borrowed and has had.

import { html, usePolled, Empty } from "./view.js";
import { number } from "./format.js";

const EVERY_S = 5;

export function People() {
  const [shares, sharesError] = usePolled("/api/v1/shares", EVERY_S);
  const [usage, usageError] = usePolled("/api/v1/usage?by=user", EVERY_S);
  const [budgets, budgetsError] = usePolled("/api/v1/budgets", EVERY_S);
  const error = sharesError || usageError || budgetsError;
  if (error) return html`<${Empty}>${error}<//>`;
  if (!shares || !usage || !budgets) return html`<${Empty}>Looking at shares and usage…<//>`;
  return html`
    <section aria-labelledby="shares"><h2 id="shares">Shares <code class="quiet">stretto shares</code></h2>
      <p class="quiet">${shares.orders_jobs ? "Among jobs of one priority, those come first whose queue and user have had the least for their share."
        : "The policy orders jobs by itself; shares are shown, and order nothing."}</p>
      ${shares.shares.length ? html`<${Shares} rows=${shares.shares} />` : html`<${Empty} command="stretto shares set-user USER SHARES">Nobody has used anything yet.<//>`}
    </section>
    <section aria-labelledby="budgets"><h2 id="budgets">Budgets <code class="quiet">stretto budgets</code></h2>
      ${budgets.budgets.length ? html`<${Budgets} rows=${budgets.budgets} />` : html`<${Empty} command="stretto budgets set NAME --user USER --gpu-hours 500 --hold 1">No budget has been set.<//>`}
    </section>
    <section aria-labelledby="usage"><h2 id="usage">Usage <code class="quiet">stretto usage</code></h2>
      ${usage.usage.length ? html`<${Usage} rows=${usage.usage} />` : html`<${Empty}>No job has held a GPU yet.<//>`}
    </section>`;
}

/** A tree: each row is followed by those below it. */
function Shares({ rows }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="shares"><table><thead><tr><th scope="col">Queue or user</th><th scope="col" class="number">Shares</th>
    <th scope="col" class="number">Entitled to</th><th scope="col" class="number">Holds</th><th scope="col" class="number">Borrowed</th><th scope="col" class="number">Quota</th><th scope="col" class="number">Has had</th><th scope="col">Comes first</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${[...row.queues, row.name].join("/")}>
      <th scope="row"><span class=${`level-${Math.min(row.queues.length, 4)}`}>${row.name || "no name"} <span class="quiet">${row.kind}</span></span></th>
      <td class="number">${number(row.shares)}</td><td class="number">${number(row.entitled_gpus)} GPUs</td><td class="number">${row.held_gpus}</td>
      <td class="number">${row.borrowed_gpus ? number(row.borrowed_gpus) : "–"}</td><td class="number">${row.quota_gpus ?? "–"}</td>
      <td class="number">${number(row.usage_gpu_hours)} GPU-h</td>
      <td><meter min="0" max="1" value=${row.factor} aria-label="how far ahead it is in line"></meter></td></tr>`)}</tbody></table></div>`;
}

const LEVELS = { "": "–", warn: "warns", hold: "holds its jobs" };

function Budgets({ rows }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="budgets"><table><thead><tr><th scope="col">Budget</th><th scope="col">For</th><th scope="col" class="number">Used</th><th scope="col" class="number">Of</th>
    <th scope="col" class="number">Share</th><th scope="col">Used part</th><th scope="col">Level</th><th scope="col">Until</th><th scope="col" class="number">Jobs that wait</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.name}><th scope="row">${row.name}</th><td>${forWhom(row)}</td>
      <td class="number">${places(row.used)}</td><td class="number">${number(row.amount)} ${row.unit === "cost" ? "" : "GPU-h"} a ${row.period}</td><td class="number">${Math.floor(100 * row.share)} %</td>
      <td><meter min="0" max="1" high=${Math.min(row.warn ?? row.hold, 1)} optimum="0" value=${Math.min(row.share, 1)} aria-label=${`${Math.floor(100 * row.share)} % of ${row.name} used`}></meter></td>
      <td>${LEVELS[row.level]}</td><td><time datetime=${row.until} title=${row.zone}>${row.until.slice(0, 16).replace("T", " ")}</time></td><td class="number">${row.level === "hold" ? row.waiting : "–"}</td></tr>`)}</tbody></table></div>`;
}

const forWhom = (row) => [row.user && `user ${row.user}`, row.queue && `queue ${row.queue}`].filter(Boolean).join(", ") || "all jobs";

/** Two places, so that columns line up. */
const places = (value) => value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** GPU-hours with two places, as `stretto usage` prints them, so that columns line up. */
const hours = (seconds) => places(seconds / 3600);

function Usage({ rows }) {
  const sorted = [...rows].sort((a, b) => b.gpu_hours - a.gpu_hours);
  const most = Math.max(...sorted.map((row) => row.gpu_hours), 1e-9);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="usage"><table><thead><tr><th scope="col">User</th><th scope="col" class="number">Jobs</th><th scope="col" class="number">GPUs now</th><th scope="col" class="number">GPU-hours</th><th scope="col" class="number">Useful</th><th scope="col" class="number">Unsaved</th><th scope="col" class="number">Lost</th><th scope="col" class="number">Idle</th><th scope="col" class="number">Charged</th><th scope="col">Of the most</th></tr></thead>
    <tbody>${sorted.map((row) => html`<tr key=${row.user}><th scope="row">${row.user || "the cluster"}</th><td class="number">${row.jobs.toLocaleString("en")}</td><td class="number">${row.gpus}</td>
      <td class="number">${hours(row.gpu_seconds)}</td><td class="number">${hours(row.useful_gpu_seconds)}</td><td class="number">${hours(row.unsaved_gpu_seconds)}</td><td class="number">${hours(row.lost_gpu_seconds)}</td>
      <td class="number">${hours(row.idle_gpu_seconds)}</td><td class="number">${hours(row.charged_gpu_seconds)}</td><td><meter min="0" max=${most} value=${row.gpu_hours} aria-label="of the most"></meter></td></tr>`)}</tbody></table></div>`;
}
