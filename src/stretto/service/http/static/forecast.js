// What simulated futures say of jobs: when each would start and end, and in which order they would start.

import { useEffect, useRef, useState } from "./view.js";
import { LONG_MS, call } from "./data.js";

export const FORETOLD = 60; // jobs of which futures are asked for one by one
const FORESEE_MS = 60_000, OTHERS_MS = 10_000; // between two forecasts; sooner where other jobs have come into sight
const PATIENT = 8; // what takes long is asked less often

/** Simulated futures of all jobs together, and of some one by one; they take seconds, and are asked for each minute. */
export function useForecast(ahead, ids, isReady) {
  const [state, setState] = useState({ answer: null, error: "", since: 0 });
  const asking = useRef(null), wanted = useRef([]);
  wanted.current = ids;
  useEffect(() => {
    setState({ answer: null, error: "", since: 0 });
    if (!ahead || !isReady) return undefined;
    let isHere = true, beganMs = -Infinity, tookMs = 0, asked = [];
    const isDue = (passedMs) => passedMs > Math.max(FORESEE_MS, PATIENT * tookMs)
      || (passedMs > Math.max(OTHERS_MS, PATIENT * tookMs) && wanted.current.some((id) => !asked.includes(id)));
    const ask = async () => {
      [beganMs, asked] = [performance.now(), wanted.current];
      const mine = asking.current = new AbortController();
      setState((old) => ({ ...old, since: 1 }));
      let news;
      try {
        const jobsAsked = asked.map((id) => `&job=${encodeURIComponent(id)}`).join("");
        news = { answer: await call("GET", `/api/v1/timeline/forecast?hours=${ahead}${jobsAsked}`, undefined, mine.signal, LONG_MS), error: "" };
      } catch (wrong) {
        news = { error: mine.signal.aborted ? "it was stopped." : wrong.message };
      }
      tookMs = performance.now() - beganMs;
      asking.current = null;
      if (isHere) setState((old) => ({ ...old, ...news, since: 0 }));
    };
    const look = () => {
      const passedMs = performance.now() - beganMs;
      if (asking.current) setState((old) => ({ ...old, since: Math.max(1, Math.round(passedMs / 1000)) }));
      else if (!document.hidden && isDue(passedMs)) ask();
    };
    const timer = setInterval(look, 1000);
    look();
    return () => { isHere = false; clearInterval(timer); asking.current?.abort(); };
  }, [ahead, isReady]);
  return { ...state, stop: () => asking.current?.abort() };
}
