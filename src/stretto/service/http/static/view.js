// Components that every page uses.

import { Component, h, render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { effect } from "@preact/signals-core";
import { call } from "./data.js";
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

/** What a path of the API answers, asked again every so many seconds while the page is in sight: [answer, error]. */
export function usePolled(path, seconds) {
  const [shown, setShown] = useState([null, ""]);
  useEffect(() => {
    let isHere = true;
    const ask = () => document.hidden || call("GET", path).then(
      (answer) => isHere && setShown([answer, ""]), (wrong) => isHere && setShown(([last]) => [last, last ? "" : wrong.message]));
    ask();
    const timer = setInterval(ask, seconds * 1000);
    return () => { isHere = false; clearInterval(timer); };
  }, [path, seconds]);
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

const MARKS = { RUNNING: "●", STARTING: "◔", RESIZING: "⇄", PENDING: "○", PREEMPTING: "◑", SUSPENDED: "⏸",
  COMPLETED: "✓", FAILED: "✕", CANCELLED: "–", TIMEOUT: "✕", NODE_FAIL: "✕" };

/** A state by a mark and its word, never by colour alone. */
export const State = ({ state }) => html`<span class=${`state ${state.toLowerCase()}`}><span aria-hidden="true">${MARKS[state] ?? "?"}</span> ${state.toLowerCase()}</span>`;

export const Empty = ({ children, command }) => html`<div class="empty"><p>${children}</p>${command && html`<p><code>${command}</code></p>`}</div>`;

/** A bar of how much is done, with its number beside it. */
export const Progress = ({ share, text }) => html`<span class="progress"><meter min="0" max="1" value=${share ?? 0} aria-label="done"></meter> ${text}</span>`;
