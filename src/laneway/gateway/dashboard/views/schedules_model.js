/** What schedules say in words, and what a form means. Pure: no page is needed. */

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const UNITS = { s: SECOND, sec: SECOND, m: MINUTE, min: MINUTE, h: HOUR, d: DAY, day: DAY, days: DAY, w: 7 * DAY };
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAY_NAMES = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MONTHS = [
  "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
];
const MONTH_NAMES = MONTHS.map((each) => each.slice(0, 3).toLowerCase());
const ALIASES = {
  "@hourly": "every hour, on the hour",
  "@daily": "every day at 00:00",
  "@midnight": "every day at 00:00",
  "@weekly": "every Sunday at 00:00",
  "@monthly": "on day 1 of every month at 00:00",
  "@yearly": "on 1 January at 00:00",
  "@annually": "on 1 January at 00:00",
};

/** Expressions that people want most, to begin with. */
export const EXAMPLES = [
  ["*/15 * * * *", "Every 15 minutes"],
  ["0 * * * *", "Every hour"],
  ["0 9 * * *", "Every day at 9"],
  ["0 9 * * mon-fri", "Weekdays at 9"],
  ["0 8 * * mon", "Mondays at 8"],
  ["0 7 1 * *", "First of the month"],
];

/** A cron expression in words; "" for one that has no simple words (it is shown as it is). */
export function cronWords(expression) {
  const text = String(expression ?? "").trim().toLowerCase().replace(/\s+/g, " ");
  if (ALIASES[text]) return ALIASES[text];
  const fields = text.split(" ");
  if (fields.length !== 5) return "";
  const [minute, hour, day, month, weekday] = fields;
  const time = timeWords(minute, hour);
  const date = dateWords(day, month, weekday);
  if (!time || date === null) return "";
  if (time.isSteps) return date ? `${time.text}, ${date.replace(/^every day$/, "")}`.replace(/, $/, "") : time.text;
  return `${date || "every day"} ${time.text}`;
}

function timeWords(minute, hour) {
  const step = /^\*\/(\d+)$/.exec(minute);
  if (hour === "*") {
    if (minute === "*" || step?.[1] === "1") return { text: "every minute", isSteps: true };
    if (step) return { text: `every ${step[1]} minutes`, isSteps: true };
    if (/^\d+$/.test(minute)) return { text: `every hour, ${hourMinute(Number(minute))}`, isSteps: true };
    return null;
  }
  const hours = /^\*\/(\d+)$/.exec(hour);
  if (hours && /^\d+$/.test(minute)) {
    return { text: `every ${hours[1]} hours, ${hourMinute(Number(minute))}`, isSteps: true };
  }
  if (!/^\d+(,\d+)*$/.test(hour) || !/^\d+$/.test(minute)) return null;
  const times = hour.split(",").map((each) => `${two(each)}:${two(minute)}`);
  return { text: `at ${listed(times)}`, isSteps: false };
}

function hourMinute(minute) {
  return minute === 0 ? "on the hour" : `${minute} minutes past`;
}

/** The days in words; "" for every day, null for what has no simple words. */
function dateWords(day, month, weekday) {
  const months = month === "*" ? "" : namesOf(month, MONTH_NAMES, MONTHS, 1);
  const days = weekday === "*" || weekday === "?" ? "" : weekdayWords(weekday);
  if (months === null || days === null) return null;
  if (day === "*" || day === "?") {
    if (!days) return months ? `every day in ${months}` : "";
    return months ? `${days} in ${months}` : days;
  }
  if (days || !/^\d+(,\d+)*$/.test(day)) return null; // both: either is enough, which has no short words
  const numbers = listed(day.split(","));
  if (!months) return `on day ${numbers} of every month`;
  return `on ${numbers} ${months}`;
}

function weekdayWords(text) {
  const range = /^(\w+)-(\w+)$/.exec(text);
  if (range) {
    const [from, to] = [dayNumber(range[1]), dayNumber(range[2])];
    if (from === null || to === null) return null;
    return from === 1 && to === 5 ? "on weekdays" : `${DAYS[from]} to ${DAYS[to]}`;
  }
  const numbers = text.split(",").map(dayNumber);
  return numbers.includes(null) ? null : `every ${listed(numbers.map((each) => DAYS[each]))}`;
}

function dayNumber(text) {
  if (/^[0-7]$/.test(text)) return Number(text) % 7;
  const at = DAY_NAMES.indexOf(text);
  return at < 0 ? null : at;
}

function namesOf(text, short, long, first) {
  const found = text.split(",").map((each) => (/^\d+$/.test(each) ? Number(each) - first : short.indexOf(each)));
  return found.every((each) => each >= 0 && each < long.length) ? listed(found.map((each) => long[each])) : null;
}

function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

function two(number) {
  return String(Number(number)).padStart(2, "0");
}

/** A length of time in words that a person would use: "every 15 minutes". */
export function everyWords(ms) {
  for (const [size, word] of [[7 * DAY, "week"], [DAY, "day"], [HOUR, "hour"], [MINUTE, "minute"], [SECOND, "second"]]) {
    if (ms >= size && ms % size === 0) return ms === size ? `every ${word}` : `every ${ms / size} ${word}s`;
  }
  return `every ${ms / SECOND} seconds`;
}

/** When a schedule sends, in words. */
export function whenWords(schedule) {
  if (schedule.at_ms !== null && schedule.at_ms !== undefined) return "once";
  if (schedule.every_ms) return everyWords(schedule.every_ms);
  return cronWords(schedule.cron) || `cron ${schedule.cron}`;
}

/** "15m", "1 h 30 min", "90" (seconds) as milliseconds; null if it is no length of time. */
export function durationMs(text) {
  const clean = String(text ?? "").trim().toLowerCase();
  if (/^\d+(\.\d+)?$/.test(clean)) return Math.round(Number(clean) * SECOND);
  const parts = [...clean.matchAll(/(\d+(?:\.\d+)?)\s*([a-z]+)/g)];
  if (!parts.length || clean.replace(/(\d+(?:\.\d+)?)\s*([a-z]+)/g, "").trim()) return null;
  let total = 0;
  for (const [, count, unit] of parts) {
    const size = UNITS[unit] ?? UNITS[unit.replace(/s$/, "")] ?? UNITS[unit.slice(0, 1)];
    if (!size || (!UNITS[unit] && !/^(seconds?|secs?|minutes?|mins?|hours?|hrs?|weeks?)$/.test(unit))) return null;
    total += Number(count) * size;
  }
  return Math.round(total);
}

/** A length of time as one would type it: "1h 30m". */
export function durationText(ms) {
  let rest = ms;
  const parts = [];
  for (const [unit, size] of [["d", DAY], ["h", HOUR], ["m", MINUTE], ["s", SECOND]]) {
    const count = Math.floor(rest / size);
    if (count) parts.push(`${count}${unit}`);
    rest -= count * size;
  }
  return parts.join(" ") || "0s";
}

/** What a field for a date and a time shows, in the time of this machine. */
export function localText(ms) {
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day}T${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** What such a field means; null if it is empty or none. */
export function localMs(text) {
  const at = Date.parse(text);
  return Number.isFinite(at) ? at : null;
}

/** The form of a schedule, or an empty one. */
export function formOf(schedule, { nowMs, zone, session = "" }) {
  const whole = Math.ceil((nowMs + HOUR) / HOUR) * HOUR;
  const way = schedule?.at_ms ? "at" : schedule?.every_ms ? "every" : "cron";
  return {
    session_key: schedule?.session_key ?? session,
    text: schedule?.text ?? "",
    way,
    cron: schedule?.cron ?? "0 9 * * mon-fri",
    every: schedule?.every_ms ? durationText(schedule.every_ms) : "1h",
    at: localText(schedule?.at_ms ?? whole),
    timezone: schedule?.timezone ?? zone,
    missed: schedule?.missed ?? "skip",
    kind: schedule?.kind ?? "system",
    reason: "",
  };
}

/** When a form says that it is sent: what the server is asked, or `{ wrong: { field: text } }`. */
export function timesOf(form) {
  if (form.way === "cron") {
    return form.cron.trim() ? { cron: form.cron, timezone: form.timezone || "UTC" } : { wrong: { cron: "Say when, as in 0 9 * * *." } };
  }
  if (form.way === "every") {
    const ms = durationMs(form.every);
    if (ms === null) return { wrong: { every: "Say how often, as in 15m, 2h or 1d." } };
    return ms < SECOND ? { wrong: { every: "At most once a second." } } : { every_ms: ms };
  }
  const ms = localMs(form.at);
  return ms === null ? { wrong: { at: "Choose a date and a time." } } : { at_ms: ms };
}

/** What is sent for a form: `{ body }` or `{ wrong }`. `old`: the schedule that is changed. */
export function bodyOf(form, old = null) {
  const times = timesOf(form);
  const wrong = { ...times.wrong };
  if (!form.session_key.trim()) wrong.session_key = "Name the session that gets it.";
  if (!form.text.trim()) wrong.text = "Say what is sent.";
  if (Object.keys(wrong).length) return { wrong };
  const body = { text: form.text, missed: form.missed, kind: form.kind, reason: form.reason, ...times };
  return { body: old ? body : { ...body, session_key: form.session_key.trim() } };
}

const FIELDS = { cron: "cron", timezone: "timezone", every_ms: "every", at_ms: "at", missed: "missed" };

/** Which field of the form a refusal is about, and what it says: `{ field: text }`; "" for none of them. */
export function refusedAt(error) {
  const setting = error?.facts?.setting ?? "";
  const named = FIELDS[setting] ?? namedIn(error?.message ?? "");
  const text = [error?.message, error?.hint].filter(Boolean).join(" – ");
  return { [named]: text.charAt(0).toUpperCase() + text.slice(1) };
}

function namedIn(text) {
  const found = /body\.(\w+)/.exec(text)?.[1] ?? "";
  return FIELDS[found] ?? (["session_key", "text", "reason"].includes(found) ? found : /session/.test(text) ? "session_key" : "");
}

const OUTCOMES = { succeeded: ["ok", "answered"], failed: ["bad", "failed"], cancelled: ["off", "cancelled"] };

/** What became of the last time: `{ tone, text, title }`, or null if there was none yet. */
export function resultOf(schedule) {
  if (!schedule.last_ms) return null;
  if (schedule.last_note) return { tone: "warn", text: "skipped", title: schedule.last_note };
  if (schedule.last_outcome) {
    const [tone, text] = OUTCOMES[schedule.last_outcome] ?? ["warn", schedule.last_outcome.replaceAll("_", " ")];
    return { tone, text, title: "" };
  }
  const state = (schedule.last_disposition ?? "sent").replaceAll("_", " ");
  return { tone: state === "queued" ? "wait" : "run", text: state, title: "It has not ended yet." };
}

/** Whether something is still going on that another look would tell the end of. */
export function isOpen(schedule) {
  return Boolean(schedule.last_message_id && !schedule.last_outcome && !schedule.last_note);
}

const PARTS = { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

/** A moment in a timezone: "Mon 16 Nov, 09:00". */
export function inZone(ms, zone) {
  let format;
  try {
    format = new Intl.DateTimeFormat("en-GB", { ...PARTS, timeZone: zone || undefined });
  } catch {
    format = new Intl.DateTimeFormat("en-GB", PARTS); // a zone that this browser does not know
  }
  const part = Object.fromEntries(format.formatToParts(ms).map(({ type, value }) => [type, value]));
  return `${part.weekday} ${part.day} ${part.month}, ${part.hour}:${part.minute}`;
}

/** Whether two zones have the same time at a moment. */
export function isSameTime(ms, zone, other) {
  return inZone(ms, zone) === inZone(ms, other);
}
