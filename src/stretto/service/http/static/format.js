// Values as people read them. Times are seconds.

export const NONE = "–";

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Three digits; no measurement here has more. */
export const number = (value) => (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toLocaleString("en", { maximumSignificantDigits: 3 }));

/** What a training reports: four digits, and more where fewer would make a whole number of it. */
export function figure(value) {
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return number(value);
  const digits = [4, 5, 6, 8, 10, 12, 15].find((each) => !Number.isInteger(Number(value.toPrecision(each)))) ?? 15;
  return value.toLocaleString("en", { maximumSignificantDigits: digits });
}

/** Time of GPUs: seconds of it, or hours. */
export const gpuTime = (gpuS) => (gpuS < 360 ? `${number(gpuS)} GPU-s` : `${number(gpuS / 3600)} GPU-h`);

/** Milliseconds in the unit that people would choose. */
export const took = (ms) => (ms < 1 ? "< 1 ms" : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`);

export const percent = (share) => (share === null || share === undefined ? NONE : `${Math.round(100 * share)} %`);

const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false }); // made once: making one takes long
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** Day and time to the second, for those who point at a time. */
export const clock = (unixSeconds) => FULL.format(new Date(unixSeconds * 1000));

/** The time of day, with the day where it is another. */
export function moment(unixSeconds) {
  const date = new Date(unixSeconds * 1000);
  return date.toDateString() === new Date().toDateString() ? TIME.format(date) : `${DAY.format(date)} ${TIME.format(date)}`;
}

/** How long until a foreseen time, and where most futures lie. span: low, middle, high, as Unix times. */
export function spread(span, nowUnix, isBare = false) {
  const until = (unix) => duration(unix - nowUnix);
  const around = span.low !== null && span.low !== span.high ? (span.high === null ? `${until(span.low)} or later` : `${until(span.low)} to ${until(span.high)}`) : "";
  return isBare ? around : `${until(span.middle)}${around ? ` (${around})` : ""}`;
}

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
