/** Times, numbers and texts as a person reads them. Pure, but for `now`, which ticks. */
import { signal } from "@preact/signals";

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const SKEW_MAX_MS = 2000; // the clock of an answer has whole seconds, and the way takes time

let skewMs = 0;

/** The time of the server in milliseconds, once a second. One timer for the whole page; it rests while it is hidden. */
export const now = signal(Date.now());

/** What the clock of the server says at this moment. */
export function serverNow() {
  return Date.now() + skewMs;
}

/** Learn from an answer how far the clock of this machine is from that of the server. */
export function learnClock(serverMs, localMs = Date.now()) {
  const off = serverMs - localMs;
  if (Number.isFinite(off) && Math.abs(off - skewMs) > SKEW_MAX_MS) {
    skewMs = Math.abs(off) > SKEW_MAX_MS ? off : 0;
    now.value = serverNow();
  }
}

if (typeof document !== "undefined") {
  let timer = 0;
  const tick = () => {
    now.value = serverNow();
  };
  const turn = () => {
    clearInterval(timer);
    if (document.hidden) return;
    tick();
    timer = setInterval(tick, SECOND);
  };
  document.addEventListener("visibilitychange", turn);
  turn();
}

/** A length of time in two units at most: "340 ms", "4.2 s", "3 min 20 s", "2 h 5 min", "3 d 4 h". */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  const span = Math.abs(Math.round(ms));
  const sign = ms < 0 && span > 0 ? "-" : "";
  if (span < SECOND) return `${sign}${span} ms`;
  if (span < 9950) return `${sign}${(span / SECOND).toFixed(1).replace(/\.0$/, "")} s`;
  if (span < MINUTE - 500) return `${sign}${Math.round(span / SECOND)} s`;
  if (span < HOUR - 500) return sign + twoUnits(Math.round(span / SECOND), 60, "min", "s");
  if (span < DAY - MINUTE / 2) return sign + twoUnits(Math.round(span / MINUTE), 60, "h", "min");
  return sign + twoUnits(Math.round(span / HOUR), 24, "d", "h");
}

function twoUnits(count, per, big, small) {
  const rest = count % per;
  const whole = (count - rest) / per;
  return rest ? `${whole} ${big} ${rest} ${small}` : `${whole} ${big}`;
}

/** How long ago, or how soon: "just now", "12 s ago", "in 5 min". */
export function ago(ms, nowMs = serverNow()) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  const gone = nowMs - ms;
  const span = Math.abs(gone);
  if (span < 1500) return gone < -500 ? "in 1 s" : "just now";
  const text = rough(span);
  return gone < 0 ? `in ${text}` : `${text} ago`;
}

function rough(span) {
  if (span < MINUTE - 500) return `${Math.round(span / SECOND)} s`;
  if (span < HOUR - MINUTE / 2) return `${Math.round(span / MINUTE)} min`;
  if (span < DAY - HOUR / 2) return `${Math.round(span / HOUR)} h`;
  return `${Math.round(span / DAY)} d`;
}

/** The time of day here; with the date if it is another day than `nowMs`. */
export function clock(ms, nowMs = serverNow()) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const isToday = at.toDateString() === new Date(nowMs).toDateString();
  return isToday ? time : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** A moment in full, for titles: date, time, milliseconds and zone. */
export function moment(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "";
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  const off = -at.getTimezoneOffset();
  const zone = `UTC${off < 0 ? "-" : "+"}${two(Math.floor(Math.abs(off) / 60))}:${two(Math.abs(off) % 60)}`;
  return `${day} ${time} ${zone}`;
}

/** A time at an axis whose steps are so long: "14:05:30", "14:05", or the day "11-16". */
export function tickTime(ms, stepMs) {
  const at = new Date(ms);
  if (stepMs >= DAY) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return stepMs < MINUTE ? `${time}:${two(at.getSeconds())}` : time;
}

function two(number) {
  return String(number).padStart(2, "0");
}

/** A number with groups of thousands and at most two digits behind the point: "12,345.67". */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 }).format(value);
}

/** A size: "512 B", "1.4 KB", "3 MB". */
export function bytes(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let size = value;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (Math.abs(size) < 1000) return `${size < 10 && unit !== "B" ? size.toFixed(1).replace(/\.0$/, "") : Math.round(size)} ${unit}`;
    size /= 1000;
  }
  return `${number(size)} TB`;
}

/** An amount of dollars; small ones with the digits that matter: "$12.30", "$0.0042", "$0". */
export function money(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const sign = value < 0 ? "-" : "";
  const size = Math.abs(value);
  if (size === 0) return "$0";
  if (size < 0.00005) return `${sign}<$0.0001`;
  if (size < 0.1) return `${sign}$${size.toFixed(4).replace(/0+$/, "")}`;
  return `${sign}$${size.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

/** A count with its word: "1 message", "3 messages". */
export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** The beginning of a text, of so many characters at most: it ends behind a word, with "…". */
export function cut(text, most) {
  const whole = String(text ?? "").trim();
  if (whole.length <= most) return whole;
  const part = whole.slice(0, most);
  const end = Math.max(part.lastIndexOf(" "), part.lastIndexOf("\n"));
  return `${part.slice(0, end > most / 2 ? end : most - 1).trimEnd()}…`; // a word without an end is cut where it has to be
}

const LABELS = [
  ["tenant_id", "Tenant"], ["principal", "Principal"], ["agent_template_id", "Template"], ["correlation_id", "Correlation"],
];

/** The labels of a session that are set, with their words: `[["Principal", "user:42"]]`. */
export function labelsOf(identity) {
  return LABELS.filter(([key]) => identity?.[key]).map(([key, name]) => [name, String(identity[key])]);
}

// Characters that a reader does not see, or that turn the order of others around: what is approved has to be what is read.
// Tab and line feed stay; so do joiners inside emoji and letters, where they are part of what is seen.
const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0e\\ufeff\\uffa0\\ufff0-\\ufffb]" +
    "|[\\u{e0000}-\\u{e0fff}]|(?<![\\p{L}\\p{M}\\p{Extended_Pictographic}\\ufe0f])[\\u200c\\u200d]|[\\ud800-\\udfff]",
  "gu",
);

/** A text with invisible, control and direction characters shown as signs: "⟨U+202E⟩". */
export function shown(text) {
  return String(text ?? "").replace(UNSEEN, (sign) => {
    return `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}
