// Components that every page uses.

import { Component, h, render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { effect } from "@preact/signals-core";
import { call, head, notRenewed, renewed } from "./data.js";
import htm from "htm";

export const html = htm.bind(h);
export { h, render, useEffect, useMemo, useRef, useState };

/** The values of signals; the component is drawn again, once a frame, when one of them changes. */
export function useSignals(...signals) {
  const [, draw] = useState(0);
  useEffect(() => {
    let frame = 0;
    let isFirst = true;
    const stop = effect(() => {
      for (const each of signals) each.value;
      if (isFirst) isFirst = false;
      else if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw((n) => n + 1); });
    });
    return () => { stop(); cancelAnimationFrame(frame); };
  }, []);
  return signals.map((each) => each.value);
}

/** Draw again every so many seconds: for ages and times that are left. */
export function useTick(seconds) {
  const [, draw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => draw((n) => n + 1), seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
}

/** What a path of the API answers, asked again every so many seconds while the page is in sight: [answer, error, of which path]. */
export function usePolled(path, seconds) {
  const [shown, setShown] = useState([null, "", path]);
  useEffect(() => {
    let isHere = true, isAsking = false, isShown = false;
    const ask = async () => {
      if (document.hidden || isAsking) return;
      isAsking = true;
      try {
        const answer = await call("GET", path);
        if (isHere) { isShown = true; renewed(path); setShown([answer, "", path]); }
      } catch (wrong) {
        if (isHere && isShown) notRenewed(path, wrong);
        if (isHere) setShown(([last, , of]) => (last && of === path ? [last, "", path] : [null, wrong.message, path]));
      }
      isAsking = false;
    };
    ask();
    const timer = setInterval(ask, seconds * 1000);
    return () => { isHere = false; clearInterval(timer); renewed(path); };
  }, [path, seconds]);
  return shown;
}

const LINE = "/api/v1/line";
const LINE_MS = 1_000, LINE_QUIET_MS = 5_000, PATIENT = 8; // between two looks; one that takes long is taken less often

/** Jobs that wait, the next to start first, and what is foreseen of some. asked: () => {ids, limit}. null: not known yet. */
export function useLine(asked) {
  const [shown, setShown] = useState(null);
  useEffect(() => {
    const asking = new AbortController();
    let seq = -1, askedMs = 0, tookMs = 0, isAsking = false, before = "";
    const look = async () => {
      const { ids, limit } = asked();
      const path = `${LINE}?limit=${limit}${ids.map((id) => `&job=${encodeURIComponent(id)}`).join("")}`;
      const isNew = head.value?.seq !== seq || path !== before, passedMs = performance.now() - askedMs;
      if (isAsking || document.hidden || (askedMs && passedMs < (isNew ? Math.max(LINE_MS, PATIENT * tookMs) : LINE_QUIET_MS))) return;
      isAsking = true;
      [seq, askedMs, before] = [head.value?.seq, performance.now(), path];
      try {
        const answer = await call("GET", path, undefined, asking.signal);
        renewed(LINE);
        setShown({ ...answer, place: new Map(answer.line) });
      } catch (wrong) { // it is asked again; what was known stays
        if (!asking.signal.aborted) notRenewed(LINE, wrong);
      }
      tookMs = performance.now() - askedMs;
      isAsking = false;
    };
    const timer = setInterval(look, 250);
    look();
    return () => { clearInterval(timer); asking.abort(); renewed(LINE); };
  }, []);
  return shown;
}

const SPARE = 12; // rows above and below those in sight

/** Which rows of a long list lie in the window, so that only those are drawn: [first, last). body: of the list; height: of a row. */
export function useInSight(body, height) {
  const [span, setSpan] = useState([0, 60]);
  useEffect(() => {
    const look = () => {
      const top = body.current?.getBoundingClientRect().top ?? 0;
      const first = Math.max(0, Math.floor(-top / height) - SPARE);
      const last = Math.max(first, Math.ceil((innerHeight - top) / height) + SPARE);
      setSpan((old) => (old[0] === first && old[1] === last ? old : [first, last]));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => { removeEventListener("scroll", look); removeEventListener("resize", look); };
  }, [height]);
  return span;
}

/** A component without hooks that is drawn again only where something that it is given has changed. */
export const still = (view) => class extends Component {
  shouldComponentUpdate(next) {
    return Object.keys(next).some((key) => next[key] !== this.props[key]);
  }
  render(props) {
    return view(props);
  }
};

/** What is drawn inside; where that fails, words in its place, and not an empty window. */
export class Guard extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ hasFailed: true });
  }
  render({ children }, { hasFailed }) {
    return hasFailed ? html`<div class="empty"><p role="alert">This page cannot be shown: the service has answered with something else than it expects.</p><p><button onClick=${() => location.reload()}>Load it again</button></p></div>` : children;
  }
}

// ── where we are: the path is the page, the query what of it is shown ───────────────────────────────

export function go(path) {
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
  scrollTo(0, 0);
}

export function setQuery(changes) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) value ? query.set(key, value) : query.delete(key);
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  dispatchEvent(new PopStateEvent("popstate"));
}

export const query = (key) => new URLSearchParams(location.search).get(key) ?? "";

export function Link({ href, children, ...rest }) {
  const follow = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(href);
  };
  return html`<a href=${href} onClick=${follow} ...${rest}>${children}</a>`;
}

const MARKS = { RUNNING: "●", STARTING: "◔", RESIZING: "⇄", PENDING: "○", PREEMPTING: "◑", SUSPENDED: "‖",
  COMPLETED: "✓", FAILED: "✕", CANCELLED: "–", TIMEOUT: "✕", NODE_FAIL: "✕" };

/** A state by a mark and its word, never by colour alone. */
export const State = ({ state }) => html`<span class=${`state ${state.toLowerCase()}`}><span aria-hidden="true">${MARKS[state] ?? "?"}</span> ${state.toLowerCase()}</span>`;

/** A name that is broken between its parts, where it has to be. */
export const parts = (name) => name.split(/(?<=[._@/-])/).map((part) => html`${part}<wbr />`);

export const Empty = ({ children, command }) => html`<div class="empty"><p>${children}</p>${command && html`<p><code>${command}</code></p>`}</div>`;

/** A bar of a share from 0 to 1. isHidden: it keeps its room, so that what stands beside each other is aligned. */
export const Meter = ({ share, label, isHidden = false, level = "" }) => html`<span class=${`meter ${level}${isHidden ? " hidden" : ""}`} role="meter" aria-label=${label} aria-hidden=${isHidden} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(100 * (share ?? 0))} aria-valuetext=${`${Math.round(100 * (share ?? 0))} %`}><i style=${{ width: `${100 * (share ?? 0)}%` }}></i></span>`;

/** A bar of how much is done, with its number beside it. */
export const Progress = ({ share, text }) => html`<span class="progress"><${Meter} share=${share} label="done" /> ${text}</span>`;
