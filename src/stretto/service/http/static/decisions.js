// What was decided: when, why, how fast, what changed, and what one more GPU was worth. Each is made again on demand.

import { html, useSignals, usePolled, useEffect, useRef, useState, Link, Empty, query, setQuery } from "./view.js";
import { LONG_MS, call, head, nowS } from "./data.js";
import { clock, duration, moment, number, plural, took } from "./format.js";
import { ticks } from "./shapes.js";
import { Chart } from "./chart.js";
import { Tip } from "./scrub.js";

const EVERY_S = 3, PRICES_S = 10;
const HOURS = [0.25, 1, 4, 24, 168];
const DUE = { arrival: "a job was submitted or released", completion: "a job ended", round: "its round was due", epoch_end: "an epoch ended", capacity: "nodes came or went",
  profile_done: "a job was profiled", wake: "a time came that it had asked for", lenders: "a lender needs other nodes" };
const VERBS = { start: "started", stop: "stopped", grow: "grew", shrink: "shrank", move: "moved", retune: "changed batch" };

export function Decisions() {
  const [now] = useSignals(head);
  const [shown, error] = usePolled("/api/v1/decisions?limit=200", EVERY_S);
  if (error) return html`<${Empty}>${error}. It is tried again.<//>`;
  if (!shown || !now) return html`<${Empty}>Looking at decisions…<//>`;
  if (!shown.decisions.length) return html`<${Empty} command="stretto submit job.yaml">Nothing was decided since the service began.<//>`;
  const all = query("show") === "all";
  const changing = shown.decisions.filter((each) => Object.keys(each.changes).length);
  const rows = all ? shown.decisions : changing;
  const chosen = Number(query("again"));
  return html`
    <${Prices} />
    <section aria-labelledby="decided"><h2 id="decided">Decisions <span class="quiet">by ${shown.policy}; ${shown.decisions.length === 1 ? `it took ${took(shown.took_ms_p50)}` : `half within ${took(shown.took_ms_p50)}, 95 % within ${took(shown.took_ms_p95)}`}</span></h2>
      <div class="filters"><span class="choice" role="group" aria-label="which decisions"><button type="button" aria-pressed=${!all} onClick=${() => setQuery({ show: "" })}>with changes</button><button type="button" aria-pressed=${all} onClick=${() => setQuery({ show: "all" })}>all</button></span>
        <span class="quiet about">${changing.length} of the newest ${shown.decisions.length} changed anything.</span></div>
      ${chosen > 0 && html`<${Again} key=${chosen} seq=${chosen} />`}
      ${rows.length === 0 ? html`<${Empty} command="stretto submit job.yaml">None of them changed anything: no job needed other GPUs. <button class="small" onClick=${() => setQuery({ show: "all" })}>Show all</button><//>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="decisions"><table class="stacks decided" role="table"><thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">When</th><th role="columnheader" scope="col">Because of</th><th role="columnheader" scope="col">Changes</th><th role="columnheader" scope="col" class="number">Took</th><th role="columnheader" scope="col" class="number">Gap at most</th>${shown.again && html`<th role="columnheader" scope="col"><span class="sr">Replay</span></th>`}</tr></thead>
      <tbody role="rowgroup">${rows.map((each) => html`<tr role="row" key=${each.seq} class=${each.seq === chosen ? "chosen" : ""}><td role="cell"><time title=${clock(now.unix_s - now.now_s + each.at_s)}>${duration(nowS() - each.at_s)} ago</time></td><td role="cell" class="wraps">${each.due.map((name) => DUE[name] ?? name.replaceAll("_", " ")).join(", ") || "–"}</td>
        <td role="cell">${each.actions?.length ? html`<details><summary>${changes(each)}</summary><ul>${each.actions.map((action) => html`<li key=${action.job}>${VERBS[action.verb] ?? action.verb} <${Link} href=${`/jobs/${action.job}`}>job ${action.job}<//></li>`)}</ul></details>` : changes(each)}</td>
        <td role="cell" class="number">${took(each.took_ms)}</td><td role="cell" class="number gap-most">${gap(each.gap)}</td>
        ${shown.again && html`<td role="cell"><button class="small" title=${`${shown.again} ${each.seq}`} aria-label=${`replay decision ${each.seq}`} onClick=${() => { setQuery({ again: String(each.seq) }); scrollTo(0, 0); }}>Replay</button></td>`}</tr>`)}</tbody></table></div>`}
      ${shown.dropped > 0 && html`<p class="quiet after">${plural(shown.dropped, "action")} came too late, and ${shown.dropped === 1 ? "was" : "were"} dropped: the job had ended, or its GPUs were gone.</p>`}
    </section><${Tip} />`;
}

const changes = (decision) => Object.entries(decision.changes).map(([verb, count]) => `${count} ${VERBS[verb] ?? verb}`).join(", ") || "nothing changed";
const gap = (share) => (share === null ? "–" : share === 0 ? "0 %" : share < 0.0001 ? "< 0.01 %" : `${number(100 * share)} %`);

const LEAST = 0.001; // chosen: a price below it is none beside those of other types
const worth = (price) => (price > 0 && price < LEAST ? `< ${LEAST}` : number(price));

/** What one more GPU of each type was worth over time. */
function Prices() {
  const hours = HOURS.includes(Number(query("hours"))) ? Number(query("hours")) : 4;
  const [shown, error] = usePolled(`/api/v1/prices?hours=${hours}`, PRICES_S);
  const span = (value) => (value < 1 ? `${value * 60} min` : value < 48 ? `${value} h` : `${value / 24} days`);
  if (!shown) return error ? html`<section aria-labelledby="prices"><h2 id="prices">Prices</h2><p class="wrong">There are none: ${error}.</p></section>` : null;
  const newest = shown.steps.at(-1);
  const until = shown.now_s, shift = shown.unix_s - shown.now_s;
  const series = shown.gpu_types.map((type, index) => ({ name: type, colour: `p${index % 8}`, kind: "steps",
    points: shown.steps.filter(([, row]) => index < row.length).map(([at, row]) => [at, row[index]]), words: (at, price) => [moment(at + shift), `${worth(price)} for one more ${type}`] }));
  return html`<section aria-labelledby="prices"><h2 id="prices">Prices <span class="quiet">of one more GPU</span></h2>
    ${!newest ? html`<p class="quiet">The policy has said no prices in this time. Policies that solve a program, such as sia, say them.</p>` : html`
    <form class="filters" onSubmit=${(event) => event.preventDefault()}><label>Back <select value=${hours} onChange=${(event) => setQuery({ hours: event.target.value })}>${HOURS.map((each) => html`<option value=${each}>${span(each)}</option>`)}</select></label></form>
    <div class="priced"><ul class="cards">${shown.gpu_types.slice(0, newest[1].length).map((type, index) => html`<li key=${type} class="card"><h3><span class=${`swatch ${`p${index % 8}`}`} aria-hidden="true"></span>${type}</h3><p class="figure">${worth(newest[1][index])}</p><p class="quiet">${newest[1][index] ? "scarce" : "not scarce: some are free"}</p></li>`)}</ul>
    <${Chart} title="Price over time" unit="in the unit of the policy's objective" xName="time of day" until=${until} xMarks=${ticks({ fromS: newest && shown.steps[0][0], untilS: until }, shift, innerWidth < 720 ? 3 : 8)} series=${series} /></div>`}</section>`;
}

/** One decision made again from the log: what it saw, what it changed, and why the other jobs wait. */
function Again({ seq }) {
  const [state, setState] = useState({ answer: null, error: "" });
  const box = useRef(null);
  useEffect(() => {
    const asking = new AbortController();
    box.current?.focus();
    call("GET", `/api/v1/decisions/${seq}/again`, undefined, asking.signal, LONG_MS).then(
      (answer) => setState({ answer, error: "" }), (wrong) => asking.signal.aborted || setState({ answer: null, error: wrong.message }));
    return () => asking.abort();
  }, [seq]);
  const { answer, error } = state;
  return html`<section class="panel-box" aria-labelledby="again" tabindex="-1" ref=${box}><h3 id="again">Decision ${seq}, made again <button class="small" onClick=${() => setQuery({ again: "" })}>Close</button></h3>
    ${error ? html`<p class="wrong">${error}</p>` : !answer ? html`<p class="quiet" role="status">The log is read up to it, and the policy is asked again… <progress aria-label="replaying"></progress></p>` : html`
    <p class=${answer.same ? "better" : "worse"}>${answer.same ? "✓ It comes out as it was written." : `✕ It comes out otherwise: ${answer.difference}`}</p>
    <p>Made ${moment(answer.unix_s)} by ${answer.policy}, since ${answer.because.join(", ") || "nothing was due"}. It saw ${plural(answer.jobs, "job")}; of ${answer.types.map((each) => `${each.gpu_type} ${each.free} of ${each.gpus} GPUs were free`).join(", of ")}.</p>
    <p class="quiet">The same in a shell, on the machine of the service: <code>${answer.command}</code></p>
    ${answer.changes.length > 0 && html`<h4>What it changed</h4><div class="scroll bounded" tabindex="0" role="region" aria-label="what it changed"><table class="short"><thead><tr><th scope="col">Job</th><th scope="col">What</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>
      <tbody>${answer.changes.map((each) => html`<tr key=${each.job}><th scope="row"><${Link} href=${`/jobs/${each.job}`}>${each.name} <span class="quiet">${each.job}</span><//></th><td>${VERBS[each.verb] ?? each.verb}</td><td>${held(each.before)}</td><td>${held(each.after)}</td></tr>`)}</tbody></table></div>`}
    ${answer.waits.length > 0 && html`<h4>Why ${plural(answer.waiting, "job")} waited</h4><div class="scroll bounded" tabindex="0" role="region" aria-label="why jobs waited"><table class="short"><thead><tr><th scope="col">Job</th><th scope="col">Why</th></tr></thead>
      <tbody>${answer.waits.slice(0, 200).map((each) => html`<tr key=${each.job}><th scope="row"><${Link} href=${`/jobs/${each.job}`}>${each.name} <span class="quiet">${each.job}</span><//></th><td class="wraps">${each.why}</td></tr>`)}</tbody></table></div>`}`}
  </section>`;
}

const held = ({ gpus, gpu_type: type }) => (gpus ? `${gpus} × ${type}` : "nothing");
