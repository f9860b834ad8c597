// A picture that is read stop by stop: by pointer, by arrow keys, and by screen readers.

import { signal } from "@preact/signals-core";
import { html, useRef, useSignals, useState } from "./view.js";

const tip = signal(null); // {x, y, text}: what is said of the place under the pointer or the keys
const WIDEST = 300;

/** stops: {x: share of the width, text: lines}, by x. onPick: for a click or the Enter key. */
export function Scrub({ label, stops, children, onPick }) {
  const box = useRef(null);
  const [index, setIndex] = useState(stops.length - 1);
  const known = Math.min(Math.max(index, 0), stops.length - 1);
  const show = (at) => {
    const { left, top, width } = box.current.getBoundingClientRect();
    tip.value = stops[at] ? { x: left + stops[at].x * width, y: top, text: stops[at].text } : null;
  };
  const near = (event) => {
    const { left, width } = box.current.getBoundingClientRect();
    const x = (event.clientX - left) / width;
    let at = -1;
    while (at + 1 < stops.length && stops[at + 1].x <= x + 0.004) at += 1;
    if (at >= 0) { setIndex(at); show(at); } else tip.value = null;
  };
  const move = (event) => {
    const to = { ArrowLeft: known - 1, ArrowDown: known - 1, ArrowRight: known + 1, ArrowUp: known + 1, Home: 0, End: stops.length - 1 }[event.key];
    if (event.key === "Enter" && onPick) onPick();
    if (event.key === "Escape") tip.value = null;
    if (to === undefined || !stops.length) return;
    event.preventDefault();
    const at = Math.min(Math.max(to, 0), stops.length - 1);
    setIndex(at);
    show(at);
  };
  const about = stops.length ? stops[known].text.filter(Boolean).join(", ") : "it has held nothing";
  return html`<div ref=${box} class="scrub" role="slider" tabindex="0" aria-label=${label} aria-valuemin="0" aria-valuemax=${Math.max(stops.length - 1, 0)} aria-valuenow=${Math.max(known, 0)} aria-valuetext=${about}
    onPointerMove=${near} onPointerLeave=${() => { tip.value = null; }} onFocus=${(event) => event.target.matches(":focus-visible") && show(known)} onBlur=${() => { tip.value = null; }} onKeyDown=${move} onClick=${onPick}>${children}</div>`;
}

export function Tip() {
  const [shown] = useSignals(tip);
  if (!shown) return null;
  const left = Math.max(8, Math.min(shown.x + 8, innerWidth - WIDEST - 12));
  const style = shown.y > 150 ? { left: `${left}px`, bottom: `${innerHeight - shown.y + 6}px` } : { left: `${left}px`, top: `${shown.y + 40}px` };
  return html`<div class="tip" role="presentation" style=${style}>${shown.text.filter(Boolean).map((line, at) => (at ? html`<p>${line}</p>` : html`<p><b>${line}</b></p>`))}</div>`;
}
