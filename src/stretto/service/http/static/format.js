// Values as people read them. Times are seconds.

export const NONE = "–";

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const number = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });

export const percent = (share) => (share === null || share === undefined ? NONE : `${Math.round(100 * share)} %`);

export const clock = (unixSeconds) => new Date(unixSeconds * 1000).toLocaleString();

export const UNLIMITED = 1 << 20; // the most that the API takes; its word for "no limit" is larger

/** "4/1–8": GPUs now, and the bounds that the job may be resized within. */
export function size(job) {
  const most = job.gpus_max >= UNLIMITED ? "∞" : job.gpus_max;
  return job.gpus_min === job.gpus_max ? `${job.gpus}/${job.gpus_min}` : `${job.gpus}/${job.gpus_min}–${most}`;
}

/** One of eight colours, the same for a job on every page. */
export function colour(id) {
  let hash = 0;
  for (const letter of String(id)) hash = (hash * 31 + letter.charCodeAt(0)) >>> 0;
  return `p${hash % 8}`;
}

export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
