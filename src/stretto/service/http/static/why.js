// Why a job waits: when it is foreseen to start, what would start it now, and which jobs hold what it waits for.

import { html, usePolled, useSignals, Link } from "./view.js";
import { head, nowS } from "./data.js";
import { duration, plural, spread } from "./format.js";

const EVERY_S = 15;

/** place: in the line of all jobs that wait, as [place, waiting]; null: not known. */
export function Why({ id, place = null }) {
  const [known] = useSignals(head);
  const [why, error] = usePolled(`/api/v1/jobs/${encodeURIComponent(id)}/explain`, EVERY_S);
  if (error) return html`<p class="quiet">${error}</p>`;
  if (!why || !known) return html`<p class="quiet">Asking the policy…</p>`;
  if (why.gpus) return null;
  const nowUnix = known.unix_s + nowS() - known.now_s;
  const { start, starts_as: first } = why;
  if (why.reason === "HELD") return html`<p>It starts at the earliest once it is released: <code>stretto release ${id}</code></p>`;
  const foreseen = why.never ? "It never starts as things stand."
    : start?.middle ? `It is foreseen to start ${start.middle - nowUnix < 2 ? "soon" : `in ${spread(start, nowUnix)}`}${first ? `, on ${first.gpus} × ${first.gpu_type}` : ""}.`
      : "When it starts cannot be said yet.";
  return html`
    <p>${foreseen}${place && place[0] ? ` It is number ${place[0].toLocaleString("en")} of ${plural(place[1], "job")} that wait.` : ""}</p>
    ${why.changes?.length > 0 && html`<p>It would start now ${why.changes.map((each) => `${each.change || "as it is"} (${each.gpus} × ${each.gpu_type})`).join("; or ")}.</p>`}
    ${why.holders?.length > 0 && html`<p>GPUs that suit it are held by these jobs, the largest first:</p><${Holders} holders=${why.holders} nowUnix=${nowUnix} />`}`;
}

function Holders({ holders, nowUnix }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="jobs that hold GPUs that suit it"><table class="short"><thead><tr><th scope="col">Job</th><th scope="col" class="number">GPUs</th><th scope="col">Type</th><th scope="col">Ends</th><th scope="col">User</th></tr></thead>
    <tbody>${holders.map((each, index) => html`<tr key=${each.id || index}><th scope="row">${each.id ? html`<${Link} href=${`/jobs/${each.id}`}>${each.name} <span class="quiet">${each.id}</span><//>` : html`<span class="quiet">another user's job</span>`}</th>
      <td class="number">${each.gpus}</td><td>${each.gpu_type}</td><td>${each.end?.middle ? `in ${spread(each.end, nowUnix)}` : html`<span class="quiet">not foreseen</span>`}</td><td>${each.user || "–"}</td></tr>`)}</tbody></table></div>`;
}
