// What if: the open jobs as things are, beside another policy, more nodes, or fewer jobs.

import { html, useInSight, useSignals, useEffect, useRef, useState, Link, Empty, query, setQuery } from "./view.js";
import { LONG_MS, call, head, jobs, link, nodes, who } from "./data.js";
import { colour, duration, moment, plural } from "./format.js";

const ROW = 44;
const SOON_S = 5; // differences below this are none: futures are drawn

const listed = (key) => query(key).split(",").filter(Boolean);

/** What the address asks for, as the API and the command line want it. */
function asked() {
  const nodesAsked = listed("add").map((text) => {
    const [, type, gpus, count] = text.match(/^(.+):(\d+)(?:x(\d+))?$/) ?? [];
    return type ? { gpu_type: type, gpus: Number(gpus), count: Number(count ?? 1) } : null;
  }).filter(Boolean);
  return { policy: query("policy"), nodes: nodesAsked, without: listed("without") };
}

const word = (text) => (/^[\w.:@%+,/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

function commandOf({ policy, nodes: more, without }) {
  return ["stretto whatif", ...(policy ? [`--policy ${word(policy)}`] : []), ...more.map((each) => `--add ${word(`${each.gpu_type}:${each.gpus}x${each.count}`)}`), ...without.map((id) => `--without ${word(id)}`)].join(" ");
}

export function WhatIf() {
  const [now] = useSignals(head);
  const [run, setRun] = useState({ answer: null, error: "", since: null, of: "" });
  const asking = useRef(null);
  const asks = asked();
  const isAsked = Boolean(asks.policy || asks.nodes.length || asks.without.length);
  const command = commandOf(asks);
  const begin = async () => {
    asking.current?.abort();
    const mine = asking.current = new AbortController();
    const beganMs = performance.now();
    const counting = setInterval(() => setRun((old) => ({ ...old, since: Math.round((performance.now() - beganMs) / 1000) })), 1000);
    setRun((old) => ({ ...old, error: "", since: 0 }));
    let news = {};
    try {
      news = { answer: await call("POST", "/api/v1/whatif", asks, mine.signal, LONG_MS), of: command };
    } catch (wrong) {
      news = { error: mine.signal.aborted ? "It was cancelled." : wrong.message };
    }
    clearInterval(counting);
    if (asking.current === mine) setRun((old) => ({ ...old, ...news, since: null }));
  };
  useEffect(() => { if (isAsked) begin(); return () => asking.current?.abort(); }, []); // an address that was sent asks by itself
  if (!now) return html`<${Empty}>Waiting for the service…<//>`;
  return html`<section aria-labelledby="whatif"><h2 id="whatif">What if</h2>
      <p class="quiet">The cluster as it is now is copied into the simulator, and goes on there. Nothing is changed.</p>
      <${Form} asks=${asks} begin=${begin} isBusy=${run.since !== null} />
      <p>${isAsked ? "" : "Nothing is changed yet: this forecasts the jobs as things are. "}<code>${command}</code></p>
      <p class="foretold" role="status">${run.since !== null ? html`Simulating futures… ${run.since} s <progress aria-label="simulating"></progress> <button class="small" onClick=${() => asking.current?.abort()}>Cancel</button>` : run.error && html`<span class="wrong">${run.error}</span>`}</p>
    </section>
    ${run.answer && html`<${Answer} answer=${run.answer} isOld=${run.of !== command} />`}`;
}

function Form({ asks, begin, isBusy }) {
  const [known, setKnown] = useState({ policies: [], current: "" });
  const [there, all, state] = useSignals(nodes, jobs, link);
  useEffect(() => { if (!known.current) call("GET", "/api/v1/policies").then(setKnown, () => {}); }, [state]);
  const choices = [...new Set([...known.policies, ...(asks.policy ? [asks.policy] : [])])]; // that of the address before there is a list
  const types = new Map();
  for (const node of there.values()) types.set(node.gpu_type, Math.max(node.gpus, types.get(node.gpu_type) ?? 1));
  const count = new Map(asks.nodes.map((each) => [each.gpu_type, each]));
  const more = (type, gpus) => (event) => {
    const wanted = Math.max(0, Math.min(Math.floor(Number(event.target.value) || 0), 10000));
    const others = asks.nodes.filter((each) => each.gpu_type !== type).map((each) => `${each.gpu_type}:${each.gpus}x${each.count}`);
    setQuery({ add: [...others, ...(wanted ? [`${type}:${gpus}x${wanted}`] : [])].join(",") });
  };
  return html`<form class="whatif" onSubmit=${(event) => { event.preventDefault(); begin(); }}>
    <label>Policy <select value=${asks.policy} onChange=${(event) => setQuery({ policy: event.target.value })}>
      <option value="">as it is${known.current ? ` (${known.current})` : ""}</option>
      ${choices.filter((name) => name !== known.current).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
    ${[...types].map(([type, gpus]) => html`<label key=${type}>More nodes of ${gpus} × ${type} <input type="number" min="0" max="10000" value=${count.get(type)?.count ?? 0} onInput=${more(type, count.get(type)?.gpus ?? gpus)} /></label>`)}
    <${Without} ids=${asks.without} all=${all} />
    <button class="go" disabled=${isBusy}>Forecast</button>
  </form>`;
}

/** Jobs that are to be away. */
function Without({ ids, all }) {
  const [wrong, setWrong] = useState("");
  const set = (names) => setQuery({ without: names.join(",") });
  const add = (event) => {
    if (event.type === "keydown" && event.key !== "Enter") return;
    if (event.type === "keydown") event.preventDefault();
    const text = event.target.value.trim();
    const id = all.has(text) ? text : text.split(" ")[0];
    if (!text) return;
    if (!all.has(id) || all.get(id).ended_s !== null) { setWrong(`There is no open job ${text}.`); return; }
    setWrong("");
    event.target.value = "";
    if (!ids.includes(id)) set([...ids, id]);
  };
  const open = [];
  for (const job of all.values()) if (job.ended_s === null && !ids.includes(job.id) && open.push(job) >= 300) break;
  return html`<div class="without"><label>Without job <input list="open-jobs" placeholder="id" onKeyDown=${add} onChange=${add} aria-describedby="no-job" /></label>
    <datalist id="open-jobs">${open.map((job) => html`<option key=${job.id} value=${job.id}>${job.name}</option>`)}</datalist>
    ${ids.length > 0 && html`<ul class="names" aria-label="jobs that are left out">${ids.map((id) => html`<li key=${id}><span class=${`swatch ${colour(id)}`} aria-hidden="true"></span>${all.get(id)?.name ?? ""} ${id} <button type="button" class="small" aria-label=${`leave job ${id} in`} onClick=${() => set(ids.filter((each) => each !== id))}>✕</button></li>`)}</ul>`}
    <span id="no-job" class="wrong" role="alert">${wrong}</span></div>`;
}

// ── what came of it ───────────────────────────────────────────────────────────────────────────────

const middle = (span) => span?.middle ?? null;
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function Difference({ before, after, words = ["shorter", "longer"], isShort = false }) {
  if (before === null || after === null || before === undefined || after === undefined) return html`<span class="quiet">–</span>`;
  const gain = after - before;
  if (Math.abs(gain) < SOON_S) return html`<span class="quiet">the same</span>`;
  return html`<span class=${gain < 0 ? "better" : "worse"}>${gain < 0 ? "▼" : "▲"} ${duration(Math.abs(gain))} <span class=${isShort ? "sr" : ""}>${words[gain < 0 ? 0 : 1]}</span></span>`;
}

/** The middle of some futures, and below it where most of them lie. from: what is 0. */
function Span({ span, from, before = "" }) {
  if (middle(span) === null) return html`<span class="quiet">later</span>`;
  const isWide = span.low !== null && span.low !== span.high;
  return html`${before}${duration(span.middle - from)}${isWide && html`<small class="quiet">${duration(span.low - from)} to ${span.high === null ? "later" : duration(span.high - from)}</small>`}`;
}

function Answer({ answer, isOld }) {
  const { present, changed, now } = answer;
  const after = new Map((changed?.jobs ?? []).map((job) => [job.id, job]));
  const both = present.jobs.filter((job) => after.has(job.id));
  // Means are of the same jobs on both sides: those of which both futures say when they start.
  const starting = (changed ? both : present.jobs).filter((job) => !job.runs && middle(job.start) !== null && (!changed || middle(after.get(job.id).start) !== null));
  const waits = (side) => mean(side.map((job) => Math.max(job.start.middle - now, 0)));
  const wait = [waits(starting), changed ? waits(starting.map((job) => after.get(job.id))) : null];
  const counted = present.counted_jobs;
  const sides = [present, changed].filter(Boolean), fewest = Math.min(...sides.map((side) => side.open_jobs));
  const those = counted < fewest ? `${plural(counted, "job")} that end${counted === 1 ? "s" : ""} in all futures`
    : sides.some((side) => counted < side.open_jobs) ? `the ${plural(counted, "job")} on both sides` : "all jobs";
  const facts = [
    ...(counted ? [[`Mean JCT of ${those}`, (side) => html`<${Span} span=${side.mean_jct_s} from=${0} />`, [middle(present.mean_jct_s), middle(changed?.mean_jct_s)]]] : []),
    ...(wait[0] === null && wait[1] === null ? [] : [["Mean wait from now, of jobs that wait", (side) => duration(wait[side === present ? 0 : 1]), wait]]),
    ["All done in", (side) => html`<${Span} span=${side.last_end} from=${now} />`, [middle(present.last_end), middle(changed?.last_end)], ["sooner", "later"]],
  ];
  return html`<section class=${isOld ? "old" : ""} aria-labelledby="came"><h2 id="came">${changed ? "Now, and then" : "As things are"} ${isOld && html`<span class="quiet">the question has changed since: ask again</span>`}</h2>
    ${[present, changed].filter((side) => side && side.until && side.jobs.some((job) => middle(job.end) === null)).map((side) => html`<p class="quiet about">Under ${side.policy} ${plural(side.draws, "future")} reached ${moment(side.until)}, in the seconds that a question may take. Jobs that end later have no end here.</p>`)}
    ${present.jobs.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="in figures"><table class="sides"><thead><tr><td><span class="sr">figure</span></td><th scope="col">now: ${present.policy}</th>${changed && html`<th scope="col">then: ${changed.policy}</th><th scope="col">difference</th>`}</tr></thead>
      <tbody>${facts.map(([name, shown, [one, other], words]) => html`<tr key=${name}><th scope="row">${name}</th><td>${shown(present)}</td>${changed && html`<td>${shown(changed)}</td><td><${Difference} before=${one} after=${other} words=${words} /></td>`}</tr>`)}</tbody></table></div>`}
    ${present.jobs.length > 0 && html`<h3>Jobs <span class="quiet">${present.jobs.length.toLocaleString("en")}${changed && changed.jobs.length !== present.jobs.length ? `, ${changed.jobs.length.toLocaleString("en")} then` : ""}; the middle of ${plural(present.draws, "future")}${changed && changed.draws !== present.draws ? `, and of ${changed.draws} then` : ""}</span></h3>`}
    ${present.jobs.length ? html`<${Jobs} present=${present} after=${after} now=${now} isTwo=${Boolean(changed)} />` : html`<${Empty} command="stretto submit job.yaml">${who.value?.role === "user" ? "No job of yours is open." : "No job waits or runs."}<//>`}
    ${Object.keys(answer.left_out).length > 0 && html`<p class="quiet after">Left out: ${Object.entries(answer.left_out).slice(0, 20).map(([id, why]) => `job ${id} (${jobs.value.get(id)?.why || why.toLowerCase().replaceAll("_", " ")})`).join(", ")}${Object.keys(answer.left_out).length > 20 ? " and others" : ""}.</p>`}
    ${answer.assumed.length > 0 && html`<details class="quiet after"><summary>What is assumed</summary><ul>${answer.assumed.map((line) => html`<li key=${line}>${line}</li>`)}</ul></details>`}
  </section>`;
}

function Jobs({ present, after, now, isTwo }) {
  const body = useRef(null);
  const [from, until] = useInSight(body, ROW);
  const rows = present.jobs;
  const last = Math.min(until, rows.length), first = Math.min(from, Math.max(rows.length - 1, 0));
  const starts = (job) => (job.runs ? "runs" : middle(job.start) !== null && job.start.middle - now < 2 ? "now" : html`<${Span} span=${job.start} from=${now} before="in " />`);
  const ends = (job) => html`<${Span} span=${job.end} from=${now} before="in " />`;
  const columns = isTwo ? 8 : 4;
  const gap = (key, count) => count > 0 && html`<tr key=${key} aria-hidden="true"><td colspan=${columns} style=${{ height: `${count * ROW}px` }}></td></tr>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="jobs, now and then"><table class="jobs sides"><thead><tr><th scope="col">Job</th><th scope="col">Starts</th>${isTwo && html`<th scope="col">then</th>`}<th scope="col">Ends</th>${isTwo && html`<th scope="col">then</th>`}<th scope="col">JCT</th>${isTwo && html`<th scope="col">then</th><th scope="col">Difference</th>`}</tr></thead>
    <tbody ref=${body}>${gap("above", first)}${rows.slice(first, last).map((job) => {
      const other = after.get(job.id);
      return html`<tr key=${job.id}><th scope="row"><${Link} href=${`/jobs/${job.id}`}><span class=${`swatch ${colour(job.id)}`} aria-hidden="true"></span>${job.name} <span class="quiet">${job.id}</span><//><small class="quiet">${job.user || "no user"}</small></th>
        <td>${starts(job)}</td>${isTwo && html`<td>${other ? starts(other) : "left out"}</td>`}<td>${ends(job)}</td>${isTwo && html`<td>${other ? ends(other) : "–"}</td>`}
        <td>${duration(job.jct_s)}</td>${isTwo && html`<td>${other ? duration(other.jct_s) : "–"}</td><td><${Difference} before=${job.jct_s} after=${other?.jct_s} isShort /></td>`}</tr>`;
    })}${gap("below", rows.length - last)}</tbody></table></div>`;
}
