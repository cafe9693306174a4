/** What the lanes view knows: lanes folded from the stream, in rows, and in words. Pure. */

const BUSY_FOR_MS = 15000; // a session that has just done something keeps its place for a while: rows must not jump about
const ROLES = ["session", "control", "query", "execute", "generate"];
const TURNS = ["main", "subagent", "cron"];
const SHARED_ORDER = { turns: 0, "": 1, model: 2, waits: 3, template: 4 };

/** More slots than this are as good as no limit. */
export const UNLIMITED = 100000;

const TRACK = {
  kind: "shared", role: "", workspace: "", session: "", mode: "", concurrency: 0, running: 0, waiting: 0, scheduled: 0, lent: 0,
  borrowed: 0, paused: false, pause_reason: "", closed_until_ms: null, closed_reason: "", pressure: false, pressure_threshold: null,
  alert: "", exclusive: false, rate: null, queued_max: null, group: "", oldest_since_ms: null, completed: 0, failed: 0, more_jobs: 0,
  more_queue: 0,
};
const NO_TOTALS = { lanes: 0, running: 0, waiting: 0, scheduled: 0, lent: 0, max_concurrent: null, taken: 0, draining: "" };

/** Nothing is known yet. */
export function noTraffic() {
  return { lanes: new Map(), totals: NO_TOTALS, atMs: 0, version: 0, shape: 0, count: 0, busy: new Map() };
}

/** A lane with everything that was left out because it says nothing. */
export function filled(track) {
  return { ...TRACK, jobs: [], queue: [], ...track };
}

/** Take an event of the stream in. The same object comes back, with another `version`; `shape` grows when lanes come or go. */
export function fold(traffic, type, facts) {
  if (type !== "look" && type !== "changes") return traffic;
  const { lanes } = traffic;
  if (type === "look") {
    lanes.clear();
    traffic.busy.clear();
    traffic.shape += 1;
    traffic.count = facts.count ?? 0;
  }
  for (const name of facts.gone ?? []) {
    if (lanes.delete(name)) traffic.shape += 1;
  }
  for (const each of facts.lanes ?? []) {
    const track = filled(each);
    const before = lanes.get(track.name);
    if (!before || ["kind", "session", "workspace"].some((each) => before[each] !== track[each])) traffic.shape += 1;
    lanes.set(track.name, track);
    if (track.kind === "session" && isBusy(track)) traffic.busy.set(sessionOf(track), facts.at_ms);
  }
  traffic.totals = { ...NO_TOTALS, ...facts.totals };
  traffic.atMs = facts.at_ms;
  traffic.version += 1;
  return traffic;
}

/** Whether anything is in a lane, or something is the matter with it. */
export function isBusy(track) {
  return track.running > 0 || track.waiting > 0 || track.scheduled > 0 || track.lent > 0 || track.paused || track.closed_until_ms !== null;
}

function sessionOf(track) {
  return `${track.workspace}\n${track.session}`;
}

/** The name of a lane without what its group says already. */
export function shortName(track) {
  if (track.role === "session") return "turns of this session";
  if (track.role === "waits") return "answers";
  if (track.role === "model") return track.name.slice(track.name.indexOf("model:") + 6);
  return track.kind === "shared" ? track.name : track.name.slice(track.name.lastIndexOf("/") + 1);
}

/** What a job is called where it stands; `inSession`: where its session is named already. */
export function jobName(job, inSession = false) {
  if (job.foreign) return "another tenant";
  if (job.kind === "turn") return (inSession ? "turn" : job.session) || job.label;
  return job.tool || job.label || job.id;
}

/** What kind of job it is, in words. */
export function jobKind(job) {
  return { turn: "turn of a session", model: "model call", tool: "tool call" }[job.kind] ?? "job";
}

/** How many slots to draw as free: not thousands. */
export function freeSlots(track, most = 12) {
  const taken = track.jobs.filter((job) => !job.lent).length + track.more_jobs;
  const free = Math.max(0, track.concurrency - Math.max(track.running, taken));
  if (track.concurrency >= UNLIMITED) return { cells: 0, more: 0, unlimited: true };
  const cells = Math.min(free, Math.max(0, most - track.jobs.length));
  return { cells, more: free - cells, unlimited: false };
}

/** Lanes in groups; made anew only when lanes come or go. */
export function grouped(traffic) {
  if (traffic.groups?.shape === traffic.shape) return traffic.groups;
  const shared = [];
  const templates = [];
  const workspaces = new Map();
  const sessions = new Map();
  for (const track of traffic.lanes.values()) {
    if (track.kind === "session") push(sessions, sessionOf(track), track.name);
    else if (track.kind === "workspace") push(workspaces, track.workspace, track.name);
    else (track.role === "template" ? templates : shared).push(track.name);
  }
  const lane = (name) => traffic.lanes.get(name);
  const order = (name) => SHARED_ORDER[lane(name).role] ?? 1;
  shared.sort((a, b) => order(a) - order(b) || TURNS.indexOf(a) - TURNS.indexOf(b) || compare(a, b));
  templates.sort((a, b) => place(a) - place(b) || compare(a, b));
  for (const names of sessions.values()) names.sort((a, b) => sessionPlace(lane(a)) - sessionPlace(lane(b)) || compare(a, b));
  for (const names of workspaces.values()) names.sort(compare);
  const keys = [...sessions.keys()].sort(compare);
  const places = [...workspaces].sort(([a], [b]) => compare(a, b));
  traffic.groups = { shape: traffic.shape, shared, templates, workspaces: places, sessions, keys };
  return traffic.groups;
}

function push(map, key, value) {
  const found = map.get(key);
  if (found) found.push(value);
  else map.set(key, [value]);
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function place(name) {
  const at = ROLES.indexOf(name);
  return at < 0 ? ROLES.length : at;
}

function sessionPlace(track) {
  return track.role === "session" ? 0 : place(track.name.slice(track.name.lastIndexOf("/") + 1));
}

/** The sessions in the order in which they are shown: those with something to do first, each by its name. */
export function orderedSessions(traffic, keys) {
  const { sessions } = grouped(traffic);
  const busy = [];
  const idle = [];
  for (const key of keys) {
    const wasBusy = traffic.atMs - (traffic.busy.get(key) ?? -Infinity) < BUSY_FOR_MS;
    (wasBusy || sessions.get(key).some((name) => isBusy(traffic.lanes.get(name))) ? busy : idle).push(key);
  }
  return { busy, idle };
}

/**
 * The rows of the view: heads of groups, sessions and lanes. `opened` says of groups and sessions whether somebody has
 * opened or folded them; sessions are folded when there are many.
 */
export function rowsOf(traffic, { filter = "", onlyBusy = false, opened = new Map() } = {}) {
  const { shared, templates, workspaces, sessions, keys } = grouped(traffic);
  const words = filter.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [];
  const lane = (name) => traffic.lanes.get(name);
  const fits = (name) => {
    const track = lane(name);
    return (!onlyBusy || isBusy(track)) && words.every((word) => matches(track, word));
  };
  const group = (id, title, names, isOpen = true, note = "") => {
    const found = names.filter(fits);
    if (!found.length) return;
    const open = opened.get(id) ?? (isOpen || words.length > 0);
    rows.push({ type: "head", id, title, count: found.length, open, note });
    if (open) for (const name of found) rows.push({ type: "lane", id: name, track: lane(name) });
  };
  group("shared", "Shared lanes", shared);
  for (const [name, names] of workspaces) group(`workspace:${name}`, `Workspace ${name}`, names);
  sessionRows(rows, traffic, { sessions, keys, fits, words, opened });
  group("templates", "Tool lanes of every session", templates, false, "What is changed here is changed in all sessions.");
  return rows;
}

function sessionRows(rows, traffic, { sessions, keys, fits, words, opened }) {
  const shown = keys.map((key) => [key, sessions.get(key).filter(fits)]).filter(([, names]) => names.length);
  if (!shown.length) return;
  const found = new Map(shown);
  const { busy, idle } = orderedSessions(traffic, [...found.keys()]);
  const open = opened.get("sessions") ?? true;
  rows.push({ type: "head", id: "sessions", title: "Sessions", count: found.size, busy: busy.length, open, note: "" });
  if (!open) return;
  const isFew = found.size <= 3;
  for (const key of [...busy, ...idle]) {
    const tracks = sessions.get(key).map((name) => traffic.lanes.get(name));
    const isOpen = opened.get(`session:${key}`) ?? (isFew || words.length > 0 && found.size <= 20);
    rows.push({ type: "session", id: `session:${key}`, session: tracks[0].session, workspace: tracks[0].workspace, tracks, open: isOpen });
    if (isOpen) for (const name of found.get(key)) rows.push({ type: "lane", id: name, track: traffic.lanes.get(name), inner: true });
  }
}

function matches(track, word) {
  if (`${track.name} ${track.session} ${track.workspace} ${track.role}`.toLowerCase().includes(word)) return true;
  return [...track.jobs, ...track.queue].some((job) => `${job.label ?? ""} ${job.tool ?? ""}`.toLowerCase().includes(word));
}

/** Jobs of a session, each once: its turn is in two lanes. */
export function jobsOf(tracks) {
  const found = new Map();
  for (const track of tracks) for (const job of [...track.jobs, ...track.queue]) found.set(job.id || found.size, job);
  return [...found.values()].sort((a, b) => a.since_ms - b.since_ms);
}

/** What holds up the most, for the line at the top: the lane whose oldest job waits longest, and why it does. */
export function longestWait(traffic) {
  let found = null;
  for (const track of traffic.lanes.values()) {
    if (track.waiting && track.oldest_since_ms !== null && (!found || track.oldest_since_ms < found.oldest_since_ms)) found = track;
  }
  return found;
}

/** Why a lane starts nothing, or not more; empty if all is well. */
export function trouble(track) {
  if (track.paused) return "paused";
  if (track.closed_until_ms !== null) return "closed";
  if (track.alert === "critical" || track.alert === "warning") return track.alert;
  if (track.pressure) return "pressure";
  return track.waiting > 0 && track.running >= track.concurrency ? "full" : "";
}

/** A sentence without the word it begins with in the API: "waits for a slot" → "for a slot". */
export function whyText(job) {
  return (job.why ?? "").replace(/^waits:? ?/, "");
}

// ---- the last quarter of an hour ----

const FIELDS = ["started", "ended", "failed", "wait_p50_ms", "wait_p95_ms", "waiting", "running"];
const QUIET = { started: 0, ended: 0, failed: 0, wait_p50_ms: null, wait_p95_ms: null, waiting: 0, running: 0 };

/** A series of `/v1/traffic/history` with its times; nothing is known: all quiet. */
export function seriesOf(history, name = null) {
  const found = name === null ? history.total : history.lanes[name];
  const times = Array.from({ length: history.steps }, (_, at) => history.at_ms - (history.steps - 1 - at) * history.step_ms);
  const values = Object.fromEntries(FIELDS.map((field) => [field, found?.[field] ?? times.map(() => QUIET[field])]));
  return { times, ...values };
}

/** The same one step later. A step that is known already changes nothing. */
export function withStep(series, step, name = null) {
  if (series.times.length && step.at_ms <= series.times.at(-1)) return series;
  const now = name === null ? step.total : step.lanes[name] ?? QUIET;
  const later = { times: [...series.times.slice(1), step.at_ms] };
  for (const field of FIELDS) later[field] = [...series[field].slice(1), now[field] ?? QUIET[field]];
  return later;
}
