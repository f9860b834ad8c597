// One job: what it has, what it has done, what it says, and what may be done about it.

import { html, useSignals, useEffect, usePolled, useRef, useState, useTick, Link, State, Progress, Empty } from "./view.js";
import { call, head, jobs, nodes, nowS } from "./data.js";
import { UNLIMITED, clock, duration, number, percent, plural, size } from "./format.js";

const LAST = new Set(["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"]);
const LOG_CHARS = 200_000; // that are kept of a log on the page
const LOG_MS = 1_500, EVENTS_MS = 1_000; // between two looks
const EVENTS = 200;

export function Job({ id }) {
  const [known, now] = useSignals(jobs, head);
  const [shown, setShown] = useState(null);
  const [error, setError] = useState("");
  const row = known.get(id);
  useTick(1);
  useEffect(() => {
    let isHere = true;
    call("GET", `/api/v1/jobs/${encodeURIComponent(id)}`).then(
      (job) => isHere && (setShown(job), setError("")), (wrong) => isHere && setError(wrong.message));
    return () => { isHere = false; };
  }, [id, row]);
  if (error) return html`<${Empty} command=${`stretto describe ${id}`}>${error}<//>`;
  if (!shown || !now) return html`<${Empty}>Looking for job ${id}…<//>`;
  const job = row ? { ...shown, ...row } : shown;
  const speeds = job.speeds;
  return html`
    <nav class="crumbs" aria-label="where this is"><${Link} href="/queue">Queue<//> › ${job.id}</nav>
    <h2 class="title">${job.name} <${State} state=${job.state} /></h2>
    ${job.evidence && !job.gpus && html`<p class="why-box">${job.evidence}</p>`}
    <${Actions} job=${job} />
    <dl class="facts-grid">
      <${Fact} name="GPUs">${size(job)} ${job.gpu_type}<//>
      <${Fact} name="Nodes">${Object.entries(job.nodes).map(([node, gpus]) => `${node}: ${gpus}`).join(", ") || "–"}<//>
      ${job.gpus > 0 && html`<${Fact} name="GPUs busy">${job.gpus_busy === null ? "unknown" : `${percent(job.gpus_busy)} of the time`}<//>`}
      ${job.gpus > 0 && job.gpu_memory_gb !== null && html`<${Fact} name="GPU memory">${job.gpu_memory_gb} of ${job.gpu_memory_total_gb} GB<//>`}
      <${Fact} name="Done">${job.share_done === null ? "–" : html`<${Progress} share=${job.share_done} text=${percent(job.share_done)} />`}<//>
      <${Fact} name="Time left">${job.gpus ? duration(job.left_s) : "–"}<//>
      <${Fact} name="Submitted"><time title=${clock(now.unix_s - now.now_s + job.submitted_s)}>${duration(nowS() - job.submitted_s)} ago</time><//>
      <${Fact} name="Waited">${duration(job.waited_s)}<//>
      <${Fact} name="Resizes">${job.resizes}${job.switches ? ` (${job.switches} in place, ${duration(job.lost_s)} lost)` : ""}<//>
      <${Fact} name="Restarts">${job.restarts}<//>
      <${Fact} name="GPU time">${(job.gpu_s / 3600).toFixed(2)} GPU-hours<//>
      <${Fact} name="User, queue">${job.user || "–"}, ${job.queue || "no queue"}<//>
      <${Fact} name="Priority">${job.priority}<//>
      ${job.preempted && html`<${Fact} name="Preempted">${job.preempted}<//>`}
      ${Object.entries(job.progress ?? {}).slice(0, 6).map(([key, value]) => html`<${Fact} key=${key} name=${key}>${typeof value === "number" ? Number(value.toPrecision(5)) : String(value)}<//>`)}
    </dl>
    ${job.ended_s === null && !job.gpus && html`<${Why} id=${id} />`}
    ${speeds && html`<${Speeds} speeds=${speeds} />`}
    <${Log} id=${id} />
    <${Events} id=${id} />`;
}

const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

/** Why a job waits: when it is foreseen to start, what would start it now, and which jobs hold what it waits for. */
function Why({ id }) {
  const [known] = useSignals(head);
  const [why] = usePolled(`/api/v1/jobs/${encodeURIComponent(id)}/explain`, 15);
  if (!why || !known || why.gpus) return null;
  const at = (unixSeconds) => duration(unixSeconds - (known.unix_s + (nowS() - known.now_s)));
  const { start, starts_as: first } = why;
  const foreseen = why.never ? "It never starts as things stand."
    : start?.middle ? `It is foreseen to start ${start.middle - known.unix_s < 2 ? "soon" : `in ${at(start.middle)}`}${start.low !== start.high ? ` (${at(start.low)} to ${at(start.high)})` : ""}${first ? `, on ${first.gpus} ${first.gpu_type}` : ""}.`
      : "Nobody can say yet when it starts.";
  return html`<section aria-labelledby="why"><h3 id="why">Why it waits <code class="quiet">stretto explain ${id}</code></h3>
    <p>${foreseen}</p>
    ${why.changes?.length > 0 && html`<p>It would start now ${why.changes.map((each) => `${each.change} (${each.gpus} ${each.gpu_type})`).join("; or ")}.</p>`}
    ${why.holders?.length > 0 && html`<p>What it waits for is held by ${why.holders.slice(0, 8).map((each, index) => html`${index ? ", " : ""}<${Link} key=${each.id} href=${`/jobs/${each.id}`}>${each.name}<//> <span class="quiet">${each.gpus} ${each.gpu_type}</span>`)}${why.holders.length > 8 ? " and others" : ""}.</p>`}
  </section>`;
}

/** The table of speeds that policies read: how each was come by, and how sure it is. */
function Speeds({ speeds }) {
  const entries = speeds.entries;
  if (!entries.length) return null;
  const unit = speeds.is_relative ? "relative speed" : "steps per second";
  const about = speeds.is_relative ? "Nothing was measured yet: 1 is its speed on the GPUs that it asks for."
    : !speeds.measurements ? "Nothing was measured yet; its own profile says how fast one worker is."
    : `${plural(speeds.measurements, "operating point")} measured, ${speeds.of_model} of them by other jobs of its model.`;
  return html`<section aria-labelledby="speeds"><h3 id="speeds">Speeds that policies are shown</h3><p class="quiet">${about}</p>
    <div class="scroll"><table><thead><tr><th scope="col">GPU type</th><th scope="col" class="number">GPUs</th><th scope="col">nodes</th><th scope="col" class="number">${unit}</th><th scope="col" class="number">error</th><th scope="col">source</th></tr></thead>
    <tbody>${entries.map((entry) => html`<tr key=${`${entry.gpu_type} ${entry.gpus} ${entry.spread}`}><td>${entry.gpu_type}</td><td class="number">${entry.gpus}</td><td>${entry.spread ? "spread" : "fewest"}</td>
      <td class="number">${number(entry.per_s)}</td><td class="number">${entry.error === null ? "–" : `± ${percent(entry.error)}`}</td><td>${entry.source}</td></tr>`)}</tbody></table></div></section>`;
}

// ── actions: the command that does the same is shown, and harm is asked about first ─────────────────

function Actions({ job }) {
  const [asked, setAsked] = useState(null);
  const [said, setSaid] = useState("");
  const [sizes, setSizes] = useState({ min: job.gpus_min, max: job.gpus_max });
  const dialog = useRef(null);
  useEffect(() => { if (asked && !dialog.current.open) dialog.current.showModal(); }, [asked]);
  if (LAST.has(job.state)) return null;
  const isHeld = job.reason === "HELD" || job.state === "SUSPENDED";
  const choices = [
    isHeld ? { name: "Release", verb: "release", what: "It may run again." }
      : { name: "Hold", verb: "hold", what: "It saves, gives its GPUs back, and waits until it is released." },
    ...(job.elastic ? [{ name: "Scale…", verb: "scale", what: "The bounds within which it is resized.", isScale: true }] : []),
    { name: "Requeue", verb: "requeue", what: "It is stopped, and starts again from its checkpoint." },
    { name: "Cancel", verb: "cancel", what: "It ends. This cannot be undone.", isHarm: true },
  ];
  const there = [...nodes.value.values()].reduce((sum, node) => sum + node.gpus, 0);
  const most = job.gpus_max >= UNLIMITED ? Math.max(there, job.gpus_min) : job.gpus_max;
  const close = () => { dialog.current.close(); setAsked(null); };
  const typed = (event) => setSizes({ ...sizes, [event.target.name]: event.target.value });
  const act = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const body = asked.isScale ? { min_gpus: Number(form.get("min")), max_gpus: Number(form.get("max")) } : undefined;
    close();
    try {
      await call("POST", `/api/v1/jobs/${job.id}/${asked.verb}`, body);
      setSaid(`${asked.name.replace("…", "")}: done`);
    } catch (error) {
      setSaid(error.message);
    }
  };
  const command = (choice) => `stretto ${choice.verb} ${job.id}${choice.isScale ? ` --min ${sizes.min} --max ${sizes.max}` : ""}`;
  return html`<div class="actions">
    ${choices.map((choice) => html`<button key=${choice.verb} class=${choice.isHarm ? "harm" : ""} title=${command(choice)} onClick=${() => { setSaid(""); setSizes({ min: job.gpus_min, max: most }); setAsked(choice); }}>${choice.name}</button>`)}
    <span role="status" aria-live="polite">${said}</span>
    <dialog ref=${dialog} aria-labelledby="question" onClose=${() => setAsked(null)}>
      ${asked && html`<form onSubmit=${act}><h3 id="question">${asked.name.replace("…", "")} job ${job.id} (${job.name})?</h3><p>${asked.what}</p>
        ${asked.isScale && html`<p><label>Fewest GPUs <input name="min" type="number" min="1" max=${sizes.max} required value=${sizes.min} onInput=${typed} /></label> <label>Most <input name="max" type="number" min=${sizes.min} max=${UNLIMITED} required value=${sizes.max} onInput=${typed} /></label></p>`}
        <p class="quiet">The same in a shell: <code>${command(asked)}</code></p>
        <p class="buttons"><button type="button" onClick=${close}>No</button> <button class=${asked.isHarm ? "harm" : "go"}>${asked.name.replace("…", "")}</button></p></form>`}
    </dialog></div>`;
}

// ── what it says, and what happened ─────────────────────────────────────────────────────────────────

/** What the first worker has written. It is asked for again and again, since a browser has few streams to give. */
function Log({ id }) {
  const [text, setText] = useState("");
  const [follows, setFollows] = useState(true);
  const box = useRef(null);
  useEffect(() => {
    let isHere = true, timer = 0, worker = "", offset = -LOG_CHARS;
    const read = async () => {
      let isAll = true;
      try {
        if (!document.hidden) {
          const piece = await call("GET", `/api/v1/jobs/${encodeURIComponent(id)}/log?limit=${LOG_CHARS}&offset=${offset}`);
          if (!isHere) return;
          const isAnother = worker !== "" && piece.worker !== worker; // it was started anew: from its beginning
          offset = isAnother ? 0 : piece.next_offset;
          if (isAnother) setText("");
          else if (piece.text) setText((old) => (old + piece.text).slice(-LOG_CHARS));
          isAll = !isAnother && !piece.text;
          worker = piece.worker;
        }
      } catch { /* no worker has begun yet, or its log was deleted */ }
      if (isHere) timer = setTimeout(read, isAll ? LOG_MS : 0);
    };
    read();
    return () => { isHere = false; clearTimeout(timer); };
  }, [id]);
  useEffect(() => { if (follows && box.current) box.current.scrollTop = box.current.scrollHeight; }, [text]);
  const scrolled = () => { const b = box.current; setFollows(b.scrollHeight - b.scrollTop - b.clientHeight < 30); };
  return html`<section aria-labelledby="log"><h3 id="log">Log <code class="quiet">stretto logs -f ${id}</code></h3>
    <pre class="log" ref=${box} tabindex="0" onScroll=${scrolled}>${text || "Nothing yet."}</pre></section>`;
}

/** What has happened to the job; asked for again when anything has happened. */
function Events({ id }) {
  const [now] = useSignals(head);
  const [events, setEvents] = useState([]);
  useEffect(() => {
    let isHere = true, seen = 0, looked = -1;
    setEvents([]);
    const read = async () => {
      if (document.hidden || looked === head.value?.seq) return;
      looked = head.value?.seq;
      const text = await call("GET", `/api/v1/jobs/${encodeURIComponent(id)}/events?after=${seen}`).catch(() => "");
      const news = String(text).split("\n").filter((line) => line.startsWith("data: ")).map((line) => JSON.parse(line.slice(6))).filter((event) => event.seq > seen);
      if (!isHere || !news.length) return;
      seen = news.at(-1).seq;
      setEvents((old) => [...news.reverse(), ...old].slice(0, EVENTS));
    };
    read();
    const timer = setInterval(read, EVENTS_MS);
    return () => { isHere = false; clearInterval(timer); };
  }, [id]);
  return html`<section aria-labelledby="events"><h3 id="events">Events</h3>
    ${events.length === 0 ? html`<p class="quiet">None yet.</p>` : html`<ol class="events">${events.map((event) => html`<li key=${event.seq}><time title=${clock(event.unix_s)}>${duration((now ? nowS() : 0) - event.at_s)} ago</time> <b>${event.kind}</b> <span class="quiet">${details(event)}</span></li>`)}</ol>`}</section>`;
}

const HEAD = new Set(["seq", "kind", "at_s", "unix_s", "job"]);
const details = (event) => Object.entries(event).filter(([key, value]) => !HEAD.has(key) && value !== null && value !== "").map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ").slice(0, 300);
