// One job: what it has, what it has done, what it says, and what may be done about it.

import { html, useSignals, useEffect, parts, useLine, useRef, useState, useTick, Link, State, Progress, Empty } from "./view.js";
import { call, head, jobs, nodes, notRenewed, nowS, renewed, who } from "./data.js";
import { UNLIMITED, clock, duration, figure, gpuTime, number, percent, plural, spread } from "./format.js";
import { Training } from "./training.js";
import { Tip } from "./scrub.js";
import { Why } from "./why.js";

const LAST = new Set(["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"]);
const LOG_CHARS = 200_000; // that are kept of a log on the page
const LOG_MS = 1_500, EVENTS_MS = 1_000; // between two looks
const EVENTS = 200;
const AGAIN_MS = 2_000; // after an answer that did not come
const MISSING = 404;

export function Job({ id }) {
  const [known, now] = useSignals(jobs, head);
  const [shown, setShown] = useState(null);
  const [error, setError] = useState(null);
  const isShown = useRef(false);
  const row = known.get(id);
  const line = useLine(() => ({ ids: [id], limit: 0 }));
  useTick(1);
  useEffect(() => {
    let isHere = true, timer = 0;
    const path = `/api/v1/jobs/${encodeURIComponent(id)}`;
    const ask = () => call("GET", path).then((job) => {
      if (!isHere) return;
      isShown.current = true;
      renewed(path);
      setShown(job);
      setError(null);
    }, (wrong) => {
      if (!isHere) return;
      if (isShown.current) notRenewed(path, wrong);
      setError(wrong);
      if (wrong.status !== MISSING) timer = setTimeout(ask, AGAIN_MS);
    });
    ask();
    return () => { isHere = false; clearTimeout(timer); };
  }, [id, row]);
  useEffect(() => () => renewed(`/api/v1/jobs/${encodeURIComponent(id)}`), [id]);
  if (error && !shown && error.status !== MISSING) return html`<${Empty}>${error.message}. Job ${id} is asked for again.<//>`;
  if (error && !shown) return html`<${Empty} command="stretto list --all --ended">${error.message}. Jobs that there are, and were:<//>`;
  if (!shown || !now) return html`<${Empty}>Looking for job ${id}…<//>`;
  const job = row ? { ...shown, ...row } : shown;
  const waits = job.ended_s === null && !job.gpus;
  const because = job.why ?? job.evidence;
  return html`
    <nav class="crumbs" aria-label="where this is"><${Link} href="/queue">Queue<//> › ${job.queue && html`<${Link} href=${`/queue?queue=${encodeURIComponent(job.queue)}`}>${job.queue}<//> › `}${job.id}</nav>
    <h2 class="title">${job.name} <${State} state=${job.state} /></h2>
    ${because && !job.gpus && html`<p class=${`why-box${job.ended_s === null ? "" : " ended"}`}>${because}</p>`}
    ${job.remark && html`<p class="why-box">${job.remark.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part))}</p>`}
    <${Actions} job=${job} />
    <dl class="facts-grid"><${Facts} job=${job} now=${now} foreseen=${line?.forecast?.jobs[id]} /></dl>
    ${waits && html`<section aria-labelledby="why"><h3 id="why">Why it waits <code class="quiet">stretto explain ${id}</code></h3><${Why} id=${id} place=${line && [line.place.get(id) ?? null, line.waiting]} /></section>`}
    <section aria-labelledby="training"><h3 id="training" class="sr">How it trains</h3><${Training} id=${id} speeds=${job.speeds} metric=${nameOfMetric(job)} /></section>
    ${job.speeds && html`<${Speeds} speeds=${job.speeds} />`}
    <${Log} id=${id} />
    <${Events} id=${id} /><${Tip} />`;
}

/** Of the metric whose curve is drawn: the first that is no loss, as the SDK chooses it. */
const nameOfMetric = (job) => Object.keys(job.progress?.metrics ?? {}).find((name) => !name.includes("loss")) ?? "Metric";

const PROGRESS = { step: "Step", epoch: "Epoch", loss: "Loss", metric: "Metric", batch: "Batch size", samples: "Samples" };
const PROMISES = { yes: "can be met", "at risk": "at risk", no: "cannot be met" };

/** What is known of a job, each by its name and with its unit. */
function Facts({ job, now, foreseen }) {
  const nowUnix = now.unix_s + nowS() - now.now_s;
  const since = (at) => html`<time title=${clock(now.unix_s - now.now_s + at)}>${duration(nowS() - at)} ago</time>`;
  const most = job.gpus_max >= UNLIMITED ? "no limit" : job.gpus_max;
  const isOver = job.ended_s !== null;
  const range = job.gpus_min === job.gpus_max ? `${isOver ? "asked" : "asks"} for ${job.gpus_min}` : `between ${job.gpus_min} and ${most}`;
  const end = foreseen?.end;
  const named = Object.entries(job.progress?.metrics ?? {}); // by the names that its script gives them
  const progress = Object.entries(job.progress ?? {}).filter(([key, value]) => PROGRESS[key] && typeof value === "number" && !(key === "metric" && named.length));
  return html`
    <${Fact} name="GPUs">${job.gpus ? `${job.gpus} × ${job.gpu_type}, ` : isOver ? "" : "none, "}<span class="quiet">${range}</span><//>
    <${Fact} name="Nodes">${Object.entries(job.nodes).map(([node, gpus]) => `${node} (${gpus})`).join(", ") || "–"}<//>
    ${job.gpus > 0 && job.gpus_busy !== null && html`<${Fact} name="GPUs busy">${percent(job.gpus_busy)} <span class="quiet">of the time</span><//>`}
    ${job.gpus > 0 && job.gpu_memory_gb !== null && html`<${Fact} name="GPU memory">${number(job.gpu_memory_gb)} <span class="quiet">of ${number(job.gpu_memory_total_gb)} GB</span><//>`}
    <${Fact} name="Done">${job.share_done === null ? html`<span class="quiet">not known</span>` : html`<${Progress} share=${job.share_done} text=${percent(job.share_done)} />`}<//>
    ${job.ended_s === null ? html`<${Fact} name="Ends">${job.gpus && end?.middle ? html`in ${spread(end, nowUnix)}` : job.gpus && job.left_s !== null ? html`in ${duration(job.left_s)}, <span class="quiet">at its present pace</span>` : html`<span class="quiet">not foreseen</span>`}<//>`
      : html`<${Fact} name="Ended">${since(job.ended_s)}${job.status === null ? "" : html`, <span class="quiet">status ${job.status}</span>`}<//>`}
    <${Fact} name="Submitted">${since(job.submitted_s)}<//>
    <${Fact} name="Waited">${duration(job.waited_s)}<//>
    <${Fact} name="GPU time">${gpuTime(job.gpu_s)}<//>
    <${Fact} name="Resizes">${job.resizes}<//>
    ${job.restarts > 0 && html`<${Fact} name="Started again">${plural(job.restarts, "time")}, <span class="quiet">after it held nothing</span><//>`}
    <${Fact} name="User">${job.user || "–"}<//>
    <${Fact} name="Queue">${job.queue ? parts(job.queue) : "–"}${job.priority ? html`, <span class="quiet">priority ${job.priority}</span>` : ""}<//>
    ${job.outlook?.promise && html`<${Fact} name="Deadline">${PROMISES[job.outlook.promise] ?? job.outlook.promise}<//>`}
    ${job.standing && html`<${Fact} name=${`Under ${now.policy}`}>${job.standing}<//>`}
    ${job.attempts?.at(-1)?.why && html`<${Fact} name="Attempt">${job.attempts.at(-1).number}: <span class="quiet">${job.attempts.at(-1).why}</span><//>`}
    ${job.preempted && html`<${Fact} name="Preempted">${job.preempted}<//>`}
    ${progress.map(([key, value]) => html`<${Fact} key=${key} name=${PROGRESS[key]}>${key === "loss" || key === "metric" ? figure(value) : Math.round(value).toLocaleString("en")}<//>`)}
    ${named.map(([name, value]) => html`<${Fact} key=${`metric ${name}`} name=${name}>${figure(value)}<//>`)}`;
}

const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

/** The table of speeds that policies read: how each was come by, and how sure it is. */
function Speeds({ speeds }) {
  const entries = speeds.entries;
  if (!entries.length) return null;
  const unit = speeds.is_relative ? "Relative speed" : "Steps a second";
  const about = speeds.is_relative ? "Nothing was measured yet: 1 is its speed on the GPUs that it asks for."
    : !speeds.measurements ? "Nothing was measured yet; its own profile says how fast one worker is."
    : `${plural(speeds.measurements, "operating point")} measured${speeds.of_model ? `, ${speeds.of_model} of them by other jobs of its model` : ""}.`;
  return html`<details class="speeds"><summary><h3 id="speeds">Speeds that policies are shown <span class="quiet">${about}</span></h3></summary>
    <div class="scroll bounded" tabindex="0" role="region" aria-labelledby="speeds"><table><thead><tr><th scope="col">GPU type</th><th scope="col" class="number">GPUs</th><th scope="col">Nodes</th><th scope="col" class="number">${unit}</th><th scope="col" class="number">Error</th><th scope="col">Source</th></tr></thead>
    <tbody>${entries.map((entry) => html`<tr key=${`${entry.gpu_type} ${entry.gpus} ${entry.spread}`}><td>${entry.gpu_type}</td><td class="number">${entry.gpus}</td><td>${entry.spread ? "spread" : "fewest"}</td>
      <td class="number">${number(entry.per_s)}</td><td class="number">${entry.error === null ? "–" : `± ${percent(entry.error)}`}</td><td>${entry.source}</td></tr>`)}</tbody></table></div></details>`;
}

// ── actions: the command that does the same is shown, and harm is asked about first ─────────────────

function Actions({ job }) {
  const [asked, setAsked] = useState(null);
  const [said, setSaid] = useState("");
  const [sizes, setSizes] = useState({ min: job.gpus_min, max: job.gpus_max });
  const dialog = useRef(null);
  useEffect(() => { if (asked && !dialog.current.open) dialog.current.showModal(); }, [asked]);
  if (LAST.has(job.state)) return null;
  if (who.value?.scope === "read") return html`<p class="quiet">Your token is for reading only: it changes no job.</p>`;
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
      setSaid(error.isCut ? `${asked.name.replace("…", "")}: ${error.message}, so that it is not known whether it was done` : error.message);
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
  const [wrong, setWrong] = useState("");
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
          setWrong("");
          const isAnother = worker !== "" && piece.worker !== worker; // it was started anew: from its beginning
          offset = isAnother ? 0 : piece.next_offset;
          if (isAnother) setText("");
          else if (piece.text) setText((old) => (old + piece.text).slice(-LOG_CHARS));
          isAll = !isAnother && !piece.text;
          worker = piece.worker;
        }
      } catch (error) { // or no worker has begun yet, or its log was deleted
        if (isHere) setWrong(error.status === MISSING ? "" : error.message);
      }
      if (isHere) timer = setTimeout(read, isAll ? LOG_MS : 0);
    };
    read();
    return () => { isHere = false; clearTimeout(timer); };
  }, [id]);
  useEffect(() => { if (follows && box.current) box.current.scrollTop = box.current.scrollHeight; }, [text]);
  const scrolled = () => { const b = box.current; setFollows(b.scrollHeight - b.scrollTop - b.clientHeight < 30); };
  return html`<section aria-labelledby="log"><h3 id="log">Log <code class="quiet">stretto logs -f ${id}</code></h3>
    <pre class="log" ref=${box} tabindex="0" onScroll=${scrolled}>${text || (wrong ? "" : "Nothing yet.")}</pre>
    ${wrong && html`<p class="wrong">It cannot be read now: ${wrong}. It is tried again.</p>`}</section>`;
}

/** What has happened to the job; asked for again when anything has happened. */
function Events({ id }) {
  const [now] = useSignals(head);
  const [events, setEvents] = useState([]);
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    let isHere = true, seen = 0, looked = -1;
    setEvents([]);
    const read = async () => {
      if (document.hidden || looked === head.value?.seq) return;
      looked = head.value?.seq;
      let text = "";
      try {
        text = await call("GET", `/api/v1/jobs/${encodeURIComponent(id)}/events?words=true&after=${seen}`);
        if (isHere) setWrong("");
      } catch (error) {
        looked = -1;
        if (isHere) setWrong(error.message);
      }
      const news = String(text).split("\n").filter((line) => line.startsWith("data: ")).map((line) => JSON.parse(line.slice(6))).filter((event) => event.seq > seen);
      const telling = news.filter(({ kind, words: [, said] }) => kind !== "Reported" || said);
      if (!isHere || !news.length) return;
      seen = news.at(-1).seq;
      setEvents((old) => [...telling.reverse(), ...old].slice(0, EVENTS));
    };
    read();
    const timer = setInterval(read, EVENTS_MS);
    return () => { isHere = false; clearInterval(timer); };
  }, [id]);
  return html`<section aria-labelledby="events"><h3 id="events">Events <code class="quiet">stretto events ${id}</code></h3>
    ${wrong && html`<p class="wrong">They cannot be read now: ${wrong}. It is tried again.</p>`}
    ${events.length === 0 ? !wrong && html`<p class="quiet">None yet.</p>` : html`<div class="scroll bounded" tabindex="0" role="region" aria-labelledby="events"><ol class="events">${events.map(({ seq, at_s: atS, unix_s: unixS, words: [what, said] }) => html`<li key=${seq}><time title=${clock(unixS)}>${duration((now ? nowS() : 0) - atS)} ago</time> <b>${what}</b> <span class="quiet">${said}</span></li>`)}</ol></div>`}</section>`;
}
