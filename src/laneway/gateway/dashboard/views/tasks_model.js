/** External tasks without a page: what their states mean in words, how old what is known of them is, what is asked for. */

/** The states that a person tells apart, in the order of a task's life. */
export const STATES = {
  pending: ["waits", "wait"],
  leased: ["taken, not begun", "run"],
  started: ["under way", "run"],
  completed: ["completed", "ok"],
  failed: ["failed", "bad"],
  timed_out: ["out of time", "bad"],
  withdrawn: ["cancelled", "off"],
  unknown: ["unknown", "warn"],
};

/** The states of tasks that have ended. */
export const ENDS = ["completed", "failed", "timed_out", "withdrawn", "unknown"];

/** A state in words, and its tone. */
export function stateOf(task) {
  const [words, tone] = STATES[task.state] ?? [task.state, "off"];
  return { words, tone };
}

/** Whether a task has not ended. */
export function isLive(task) {
  return task.state === "pending" || isHeld(task);
}

/** Whether a worker has it. */
export function isHeld(task) {
  return task.state === "leased" || task.state === "started";
}

/**
 * A task with moments instead of lengths of time, so that they can tick: `heardAt`, `leaseUntil`, `until`.
 * `at` is the clock of the server when it said so.
 */
export function placed(task, at) {
  const isOut = isHeld(task);
  return {
    ...task,
    heardAt: isOut && task.heard_ago_ms !== null ? at - task.heard_ago_ms : null,
    leaseUntil: isOut && task.lease_left_ms !== null ? at + task.lease_left_ms : null,
    until: isLive(task) ? at + task.remaining_ms : null,
  };
}

/** How much of a lease is left, 0 to 1, and whether that should worry: "ok", "warn" below a third, "bad" at the end. */
export function leaseOf(task, now) {
  if (task.leaseUntil === null || task.leaseUntil === undefined || !(task.lease_ms > 0)) return null;
  const left = Math.max(0, Math.min(1, (task.leaseUntil - now) / task.lease_ms));
  const tone = left <= 0.05 ? "bad" : left < 1 / 3 ? "warn" : "ok";
  return { left, tone };
}

/** Why tasks wait, each reason once with its tasks; the reason with the most tasks first. */
export function reasons(tasks) {
  const groups = new Map();
  for (const task of tasks) {
    if (task.state !== "pending") continue;
    const why = generalized(task.why || "a worker is about to take it");
    groups.set(why, [...(groups.get(why) ?? []), task]);
  }
  return [...groups].map(([why, found]) => ({ why, tasks: found })).sort((a, b) => b.tasks.length - a.tasks.length);
}

// "… up to 1234 ms …" and "… 17 s ago" differ from task to task, and mean the same.
function generalized(why) {
  return why.replace(/\b\d+ ms\b/, "a moment").replace(/\b\d+ s ago\b/, "a while ago");
}

/** What helps when nobody takes a task; empty when time does. */
export function remedy(why) {
  if (/no worker has asked/.test(why)) return "start";
  if (/no worker takes such tasks/.test(why)) return "fit";
  if (/was last heard of/.test(why)) return "start";
  return "";
}

/** What an event tells of the tasks that are shown: the list after it, and whether it has to be read again. */
export function told(tasks, type, facts) {
  const payload = facts?.payload ?? {};
  const known = tasks.some((each) => each.task_id === payload.task_id);
  if (type === "external_task_progress" && known) {
    const progress = { text: payload.text ?? "", percent: payload.percent ?? null };
    return { tasks: tasks.map((each) => (each.task_id === payload.task_id ? { ...each, progress } : each)), isStale: false };
  }
  if (type === "external_task_started" && known) {
    const now = { state: "started", worker: payload.worker, attempt: payload.attempt ?? 1, why: "" };
    return { tasks: tasks.map((each) => (each.task_id === payload.task_id ? { ...each, ...now } : each)), isStale: true };
  }
  return { tasks, isStale: type === "gap" || type.startsWith("external_task_") };
}

/** The filters of an address that the list knows, and nothing else. */
export function filtersOf(query) {
  const known = ["session", "run", "tool", "lane", "worker", "state"];
  return Object.fromEntries(known.filter((name) => query?.[name]).map((name) => [name, String(query[name])]));
}

/** What somebody typed as the result of a task: `{ value }`, or `{ error }` if it should be JSON and is not. */
export function resultOf(text, isJson) {
  if (!isJson) return { value: text };
  if (!text.trim()) return { value: null };
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: `This is no JSON: ${error.message}` };
  }
}

/** Arguments in one line, cut where it is too long for one. */
export function inOneLine(value, most = 160) {
  if (value === null || value === undefined) return "";
  let text = typeof value === "string" ? value : "";
  if (!text && typeof value === "object" && !Array.isArray(value)) {
    const entries = Object.entries(value);
    text = entries.map(([name, each]) => (entries.length === 1 ? said(each) : `${name}: ${said(each)}`)).join(", ");
  } else if (!text) text = said(value);
  text = text.replace(/\s+/g, " ").trim();
  return text.length > most ? `${[...text].slice(0, most - 1).join("")}…` : text;
}

function said(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What taking a task from its worker, or cancelling it, means for this one. */
export function warningOf(task, action) {
  const isWrite = task.effect === "write" && task.state === "started";
  if (isWrite) {
    return `${task.worker} has begun with it, and it changes something. Nobody knows then whether it did: it will be unknown, ` +
      "and its run waits until somebody settles it.";
  }
  if (action === "cancel") {
    return task.state === "pending" ? "Nobody has begun with it. Its run hears that it was cancelled."
      : `Its run hears that it was cancelled; ${task.worker} hears it at its next sign of life.`;
  }
  return task.state === "started" ? `${task.worker} has begun with it. Another worker will begin it anew.`
    : `${task.worker} has not begun with it. Another worker gets it.`;
}
