// What was decided: when, why, how fast, what changed, and what one more GPU is worth.

import { html, useSignals, usePolled, Link, Empty } from "./view.js";
import { head, nowS } from "./data.js";
import { duration, number } from "./format.js";

const EVERY_S = 3;

export function Decisions() {
  const [now] = useSignals(head);
  const [shown, error] = usePolled("/api/v1/decisions?limit=100", EVERY_S);
  if (error) return html`<${Empty}>${error}<//>`;
  if (!shown || !now) return html`<${Empty}>Looking at decisions…<//>`;
  if (!shown.decisions.length) return html`<${Empty} command="stretto submit job.yaml">Nothing was decided yet.<//>`;
  const priced = shown.decisions.find((each) => each.prices);
  return html`
    ${priced && html`<section aria-labelledby="prices"><h2 id="prices">Prices <span class="quiet">of one more GPU, by the newest decision that has any</span></h2>
      <ul class="cards">${Object.entries(priced.prices).map(([type, price]) => html`<li key=${type} class="card"><h3>${type}</h3><p class="figure">${number(price)}</p><p class="quiet">${price ? "scarce" : "not scarce"}</p></li>`)}</ul></section>`}
    <section aria-labelledby="decided"><h2 id="decided">Decisions <span class="quiet">by ${shown.policy}; half within ${number(shown.took_ms_p50)} ms, 95 % within ${number(shown.took_ms_p95)} ms</span></h2>
      <p class="quiet">Each can be taken again from the log: <code>stretto simulate --from-log</code></p>
      <div class="scroll" tabindex="0" role="region" aria-label="decisions"><table><thead><tr><th scope="col">When</th><th scope="col">Because of</th><th scope="col">Changes</th><th scope="col" class="number">Took</th><th scope="col" class="number">Gap at most</th><th scope="col" class="number">Event</th></tr></thead>
      <tbody>${shown.decisions.map((each) => html`<tr key=${each.seq}><td>${duration(nowS() - each.at_s)} ago</td><td>${each.due.join(", ").replaceAll("_", " ") || "–"}</td>
        <td>${each.actions?.length ? html`<details><summary>${changes(each)}</summary><ul>${each.actions.map((action) => html`<li key=${action.job}>${action.verb} <${Link} href=${`/jobs/${action.job}`}>${action.job}<//></li>`)}</ul></details>` : changes(each)}</td>
        <td class="number">${number(each.took_ms)} ms</td><td class="number">${each.gap === null ? "–" : `${number(100 * each.gap)} %`}</td><td class="number">${each.seq}</td></tr>`)}</tbody></table></div>
      ${shown.dropped > 0 && html`<p class="quiet">${shown.dropped} actions were stale when they came to be done.</p>`}
    </section>`;
}

const changes = (decision) => Object.entries(decision.changes).map(([verb, count]) => `${verb} ${count}`).join(", ") || "nothing changed";
