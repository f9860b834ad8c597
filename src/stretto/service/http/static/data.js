// What the service says: one stream fills the signals that all pages read.

import { signal } from "@preact/signals-core";

export const who = signal(null); // who looks; null before it is known
export const head = signal(null); // {seq, now_s, unix_s, policy, heard_ms}
export const jobs = signal(new Map()); // by id, in the order of submission
export const nodes = signal(new Map()); // by name
export const queues = signal([]);
export const link = signal("connecting"); // "live", "lost", "login"
export const refusal = signal(""); // why a service that answers sends no news
export const farewell = signal(""); // why somebody who was logged in is to log in again
export const old = signal(new Map()); // what could not be renewed: {since_ms, times, words}, by path

const AGAIN_MS = 2_000, LOOK_MS = 5_000; // between two tries to reach the service, and two looks at whether it still speaks
const SILENT_MS = 40_000; // without any news a stream is dead: there is some every 15 s
const PATIENCE_MS = 60_000; // for an answer
export const LONG_MS = 240_000; // for one that is worked out, and may wait for its turn
const STREAM = "/api/v1/overview?follow=true";

let source = null, timer = 0, turn = 0;

/** A call of the API, which `signal` may abort; throws an Error with the service's own words. `isCut`: no answer came. */
export async function call(method, path, body, signal, patienceMs = PATIENCE_MS) {
  const late = AbortSignal.timeout(patienceMs);
  const options = { method, signal: signal ? AbortSignal.any([signal, late]) : late, headers: { accept: "application/json" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let answer, text;
  try {
    answer = await fetch(path, options);
    text = await answer.text();
  } catch (cut) {
    if (signal?.aborted) throw cut;
    throw Object.assign(new Error(late.aborted ? "the service does not answer in time" : "the service does not answer"), { isCut: true });
  }
  const type = answer.headers.get("content-type") ?? "", json = text && type.includes("json") ? parsed(text) : text;
  if (answer.status === 401 && path !== "/login" && who.value) disconnect("Your session has ended. Log in to go on.");
  if (answer.ok && !type.includes("html") && json !== undefined) return json;
  const words = answer.ok ? "the answer is not of this service" : json?.detail ?? `${answer.status} ${answer.statusText}`.trim();
  throw Object.assign(new Error(words), { status: answer.status });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Note whether what a page shows of a path could be renewed. */
export function renewed(path) {
  if (!old.value.has(path)) return;
  const left = new Map(old.value);
  left.delete(path);
  old.value = left;
}

export function notRenewed(path, wrong) {
  const { since_ms: sinceMs = Date.now(), times = 0 } = old.value.get(path) ?? {};
  old.value = new Map(old.value).set(path, { since_ms: sinceMs, times: times + 1, words: wrong.message });
}

/** Find out who looks, and follow the cluster. */
export async function connect() {
  clearTimeout(timer);
  const mine = ++turn; // of several that were begun the newest counts
  try {
    const found = await call("GET", "/api/v1/session");
    if (mine !== turn) return;
    who.value = found;
  } catch (error) {
    if (mine !== turn) return;
    link.value = error.status === 401 ? "login" : "lost";
    refusal.value = error.isCut ? "" : error.message;
    if (error.status !== 401) later();
    return;
  }
  source?.close();
  source = new EventSource(STREAM);
  const heard = head.value?.heard_ms ?? 0;
  source.addEventListener("whole", (event) => take(JSON.parse(event.data), true));
  source.addEventListener("change", (event) => take(JSON.parse(event.data), false));
  source.onerror = () => {
    if (link.value === "login") return;
    link.value = "lost";
    if (source.readyState !== EventSource.CLOSED) return; // it comes back by itself
    if (heard === (head.value?.heard_ms ?? 0)) findRefusal();
    later(); // refused: perhaps a login is due
  };
}

const later = () => { clearTimeout(timer); timer = setTimeout(connect, AGAIN_MS); };

/** A stream that is refused does not tell why; a request does. */
async function findRefusal() {
  const asking = new AbortController();
  try {
    const answer = await fetch(STREAM, { signal: asking.signal });
    refusal.value = answer.ok ? "" : parsed(await answer.text())?.detail ?? `${answer.status} ${answer.statusText}`.trim();
  } catch {
    refusal.value = "";
  }
  asking.abort();
}

// A browser keeps few connections to one address: a page that is out of sight gives its own back.
document.addEventListener("visibilitychange", () => {
  if (link.value === "login") return;
  if (!document.hidden) connect();
  else source?.close();
});

// A connection may die without a word, as under a laptop that sleeps.
setInterval(() => {
  if (document.hidden || link.value !== "live" || Date.now() - head.value.heard_ms < SILENT_MS) return;
  link.value = "lost";
  connect();
}, LOOK_MS);

/** To the login; nothing of what somebody saw is left for who comes next. */
export function disconnect(words = "") {
  turn += 1;
  clearTimeout(timer);
  source?.close();
  source = null;
  farewell.value = words;
  [who.value, head.value, queues.value] = [null, null, []];
  [jobs.value, nodes.value, old.value] = [new Map(), new Map(), new Map()];
  link.value = "login";
}

function take(news, isWhole) {
  const known = isWhole ? new Map() : new Map(jobs.value);
  for (const job of news.jobs) known.set(job.id, job);
  if (isWhole || news.jobs.length) jobs.value = known;
  if (isWhole || news.nodes.length || news.nodes_gone) {
    const all = isWhole ? new Map() : new Map(nodes.value);
    for (const node of news.nodes) all.set(node.name, node);
    for (const name of news.nodes_gone ?? []) all.delete(name);
    nodes.value = all;
  }
  if (news.queues) queues.value = news.queues;
  head.value = { seq: news.seq, now_s: news.now_s, unix_s: news.unix_s, policy: news.policy, heard_ms: Date.now() };
  link.value = "live";
  refusal.value = "";
}

/** The service's clock now, in seconds since its log began. */
export const nowS = () => (head.value ? head.value.now_s + (Date.now() - head.value.heard_ms) / 1000 : 0);
