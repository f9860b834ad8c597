// What the service says: one stream fills the signals that all pages read.

import { signal } from "@preact/signals-core";

export const who = signal(null); // who looks; null before it is known
export const head = signal(null); // {seq, now_s, unix_s, policy, heard_ms}
export const jobs = signal(new Map()); // by id, in the order of submission
export const nodes = signal(new Map()); // by name
export const queues = signal([]);
export const link = signal("connecting"); // "live", "lost", "login"

let source = null;

/** A call of the API, which `signal` may abort; throws an Error with the service's own words. */
export async function call(method, path, body, signal) {
  const options = { method, signal, headers: { accept: "application/json" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const text = await answer.text();
  const json = text && answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text;
  if (!answer.ok) {
    const error = new Error(json?.detail ?? `${answer.status} ${answer.statusText}`);
    error.status = answer.status;
    throw error;
  }
  return json;
}

/** Find out who looks, and follow the cluster. */
export async function connect() {
  try {
    who.value = await call("GET", "/api/v1/session");
  } catch (error) {
    link.value = error.status === 401 ? "login" : "lost";
    if (error.status !== 401) setTimeout(connect, 2000);
    return;
  }
  source?.close();
  source = new EventSource("/api/v1/overview?follow=true");
  source.addEventListener("whole", (event) => take(JSON.parse(event.data), true));
  source.addEventListener("change", (event) => take(JSON.parse(event.data), false));
  source.onerror = () => {
    if (link.value === "login") return;
    link.value = "lost";
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000); // refused: perhaps a login is due
  };
}

// A browser keeps few connections to one address: a page that is out of sight gives its own back.
document.addEventListener("visibilitychange", () => {
  if (link.value === "login") return;
  if (!document.hidden) connect();
  else source?.close();
});

export function disconnect() {
  source?.close();
  source = null;
  who.value = null;
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
}

/** The service's clock now, in seconds since its log began. */
export const nowS = () => (head.value ? head.value.now_s + (Date.now() - head.value.heard_ms) / 1000 : 0);
