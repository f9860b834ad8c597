// Nodes and GPUs, coloured by the job that holds them.

import { html, useSignals, usePolled, Link, Empty, Meter, query, setQuery } from "./view.js";
import { head, jobs, nodes, queues } from "./data.js";
import { colour, duration, percent, plural } from "./format.js";

const IDLE_EVERY_S = 15;
const LEGEND = [["free", "free"], ["others", "used outside Stretto"], ["ending", "its last worker still ends"], ["hidden-job", "another user's job"], ["shut", "cordoned, down, or with its lender"]];

/** A node of a lender that is not on loan: no job may hold anything there. */
const isLent = (node) => Boolean(node.lender) && !node.on_loan;

export function Cluster() {
  const [allNodes, allJobs, now] = useSignals(nodes, jobs, head);
  if (!now) return html`<${Empty}>Waiting for the service…<//>`;
  const types = byType(allNodes.values());
  const wanted = query("type");
  return html`
    <section aria-labelledby="sum"><h2 id="sum" class="sr">The cluster in figures</h2>
      <ul class="cards">
        ${[...types].map(([type, group]) => html`<${TypeCard} key=${type} type=${type} group=${group} isChosen=${type === wanted} />`)}
        <${JobsCard} jobs=${allJobs} />
      </ul>
    </section>
    <${IdleHolders} />
    ${types.size === 0 && html`<${Empty} command="stretto nodes list">No node with GPUs has shown itself yet.<//>`}
    ${[...types].filter(([type]) => !wanted || type === wanted).map(([type, group]) => html`
      <section key=${type} aria-label=${`nodes with ${type}`}>
        <h2>${type} <span class="quiet">${plural(group.nodes.length, "node")}</span></h2>
        <ul class="nodes">${group.nodes.map((node) => html`<${Node} key=${node.name} node=${node} jobs=${allJobs} />`)}</ul>
      </section>`)}
    ${types.size > 0 && allJobs.size === 0 && html`<${Empty} command="stretto submit job.yaml">No job waits or runs.<//>`}
    <p class="legend" aria-hidden="true"><span>A bar is one job, its number is GPUs. Colours repeat.</span>${LEGEND.map(([key, words]) => html`<span key=${key}><span class=${`key ${key}`}></span>${words}</span>`)}</p>`;
}

function byType(all) {
  const types = new Map();
  for (const node of all) {
    if (!types.has(node.gpu_type)) types.set(node.gpu_type, { nodes: [], gpus: 0, held: 0, free: 0, tainted: 0, others: 0, down: 0, lent: 0, busy: [] });
    const group = types.get(node.gpu_type);
    group.nodes.push(node);
    group.gpus += node.gpus;
    group.others += node.others;
    if (node.up && isLent(node)) group.lent += restOf(node);
    else if (node.up && node.taints.length) group.tainted += node.free;
    else if (!node.up || node.closed) group.down += node.up ? node.free : node.gpus;
    else group.free += node.free;
    for (const use of node.gpu_use) if (use && use.busy !== null) group.busy.push(use.busy);
    group.held += node.up ? (isLent(node) ? node.gpus - restOf(node) : node.gpus - node.free) - node.others : 0;
  }
  return types;
}

/** GPUs of a node that nothing is known to hold. */
const restOf = (node) => Math.max(node.gpus - node.others - node.ending - Object.values(node.jobs).reduce((sum, gpus) => sum + gpus, 0), 0);

/** What sets a node apart, in the words of `stretto nodes list`, and why. */
function noteOf(node) {
  const because = (word) => `${word}${node.why ? `: ${node.why}` : ""}`;
  if (!node.up) return because("down");
  if (isLent(node)) return `${node.lender} has it`;
  if (node.taints.length) return `tainted: ${node.taints.join(", ")}`;
  if (node.drained) return because("drained");
  if (node.closed) return because("cordoned");
  return [node.lender && `on loan from ${node.lender}`, node.why].filter(Boolean).join("; ");
}

function TypeCard({ type, group, isChosen }) {
  const share = group.gpus ? group.held / group.gpus : 0;
  return html`<li class="card"><button class="plain" aria-pressed=${isChosen} onClick=${() => setQuery({ type: isChosen ? "" : type })}>
    <h3>${type}</h3>
    <p class="figure">${group.held}<span class="unit"> of ${group.gpus} GPUs in use</span></p>
    <${Meter} share=${share} label=${`${type} in use`} />
    <p class="quiet">${group.free} free${group.tainted ? `, ${group.tainted} free on tainted nodes` : ""}${group.others ? `, ${group.others} used outside` : ""}${group.down ? `, ${group.down} cordoned or down` : ""}${group.lent ? `, ${group.lent} with their lender` : ""}</p>
    ${group.busy.length > 0 && html`<p class="quiet">busy ${percent(group.busy.reduce((sum, busy) => sum + busy, 0) / group.busy.length)} of the time</p>`}
  </button></li>`;
}

function JobsCard({ jobs: all }) {
  let running = 0, waiting = 0;
  for (const job of all.values()) {
    if (job.ended_s !== null) continue;
    if (job.gpus) running += 1;
    else waiting += 1;
  }
  return html`<li class="card"><${Link} href="/queue" class="plain"><h3>jobs</h3>
    <p class="figure">${running}<span class="unit"> with GPUs</span></p>
    <p class="quiet">${plural(waiting, "job")} ${waiting === 1 ? "waits" : "wait"}</p><//></li>`;
}

function Node({ node, jobs: all }) {
  const own = Object.entries(node.jobs);
  const shown = own.reduce((sum, [, gpus]) => sum + gpus, 0);
  const usable = node.up ? node.gpus : 0;
  const away = !node.up ? node.gpus : isLent(node) ? restOf(node) : 0;
  const hidden = isLent(node) ? 0 : Math.max(usable - node.free - node.others - node.ending - shown, 0);
  const isShut = !node.up || (node.closed && !node.taints.length) || isLent(node);
  const note = noteOf(node);
  const parts = [
    ...own.map(([id, gpus]) => ({ id, gpus, job: all.get(id) })),
  ];
  return html`<li class=${`node${isShut ? " shut" : ""}`}>
    <span class="name" title=${[node.name, node.address].filter(Boolean).join(", ")}>${node.name}</span>
    <span class="bar" role="group" aria-label=${`${node.name}: ${shown + hidden} of ${node.gpus} GPUs in use${note ? `, ${note}` : ""}`}>
      ${parts.map(({ id, gpus, job }) => html`<${Link} key=${id} href=${`/jobs/${id}`} class=${`part ${colour(id)}`} style=${{ flexGrow: gpus }} title=${`${job?.name ?? ""} (${id}): ${plural(gpus, "GPU")}`} aria-label=${`${job?.name ?? "job"} ${id}: ${plural(gpus, "GPU")}`}><span class="count">${gpus}</span><span class="holder">${job?.name ?? ""}</span><//>`)}
      ${hidden > 0 && html`<span class="part hidden-job" style=${{ flexGrow: hidden }} title="jobs of other users">${hidden}</span>`}
      ${node.others > 0 && html`<span class="part others" style=${{ flexGrow: node.others }} title="used outside Stretto">${node.others}</span>`}
      ${node.up && node.ending > 0 && html`<span class="part ending" style=${{ flexGrow: node.ending }} title="no job is to hold them; workers still end there">${node.ending}</span>`}
      ${node.up && node.free > 0 && html`<span class="part free" style=${{ flexGrow: node.free }}>${node.free}</span>`}
      ${away > 0 && html`<span class="part shut" style=${{ flexGrow: away }}></span>`}
    </span>
    ${node.busy !== null && html`<span class="note" title=${node.gpu_use.map((use, gpu) => `GPU ${gpu}: ${use ? `busy ${use.busy === null ? "unknown" : percent(use.busy)}, ${use.memory_gb} of ${use.memory_total_gb} GB` : "unknown"}`).join("\n")}>busy ${percent(node.busy)}</span>`}
    ${note && html`<span class="note" title=${note}>${note}</span>`}
  </li>`;
}

/** Jobs whose GPUs hardly do anything; nothing where there are none, or no node says how busy its GPUs are. */
function IdleHolders() {
  const [found] = usePolled("/api/v1/usage/idle", IDLE_EVERY_S);
  if (!found?.idle.length) return null;
  return html`<section aria-labelledby="idle"><h2 id="idle">Idle holders <code class="quiet">stretto usage --idle</code></h2>
    <p class="quiet">Their GPUs were busy for less than ${percent(found.below)} of the time, for ${duration(found.after_s)} or longer.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="idle holders"><table><thead><tr><th scope="col">Job</th><th scope="col">User</th><th scope="col" class="number">GPUs</th><th scope="col" class="number">Busy</th><th scope="col" class="number">Memory in use</th><th scope="col" class="number">For</th></tr></thead>
    <tbody>${found.idle.map((row) => html`<tr key=${row.job}><th scope="row"><${Link} href=${`/jobs/${row.job}`}>${row.name} <span class="quiet">${row.job}</span><//></th><td>${row.user || "–"}</td><td class="number">${row.gpus} ${row.gpu_type}</td>
      <td class="number">${percent(row.busy)}</td><td class="number">${row.memory_gb} GB</td><td class="number">${duration(row.idle_s)}</td></tr>`)}</tbody></table></div></section>`;
}
