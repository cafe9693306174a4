/** The queue of a session as the page knows it: slices of what waits, moves that are under way, words. Pure. */
import { duration } from "../core/format.js";

/** How many rows are read at once, and how many of them lie before the first that is seen. */
export const SLICE = 100;
const BEFORE = 30;

/** The modes a waiting message can be sent as, and what each does at this moment. */
export const MODES = [
  ["collect", "Collect", "waits for a quiet moment and shares a run with its neighbours"],
  ["followup", "Follow up", "gets a run of its own, after those before it"],
  ["steer", "Steer", "goes into the running turn at its next boundary"],
  ["steer-backlog", "Steer, then follow up", "goes into the running turn, and gets a run afterwards, too"],
  ["interrupt", "Interrupt", "ends the running turn and goes first"],
  ["rollback", "Roll back", "ends the running turn, forgets what it said, and goes first"],
];

/** What gives way when too many wait. */
export const DROPS = [
  ["summarize", "Summarize: the oldest goes, a line of it is kept"],
  ["old", "Old: the oldest goes"],
  ["new", "New: the newcomer is refused"],
];

/** A mode as people say it. */
export function modeName(mode) {
  return MODES.find(([value]) => value === mode)?.[1] ?? mode;
}

/** What a mode does at this moment. */
export function modeWords(mode) {
  return MODES.find(([value]) => value === mode)?.[2] ?? "";
}

/** Nothing is known yet: `total` null. `slots[i]` is the message at place i + 1, or undefined when it was not read. */
export function emptyQueue() {
  return { total: null, slots: [] };
}

/** The slice to read so that rows `[from, to)` are known: `{ after, limit }`. */
export function sliceFor(from, to, total = Infinity) {
  const after = Math.max(0, Math.min(from - BEFORE, Number.isFinite(total) ? total - SLICE : Infinity));
  return { after, limit: Math.min(1000, Math.max(SLICE, to - after + BEFORE)) };
}

/** Whether a slice has every row of `[from, to)` that there is. */
export function covers({ after, limit }, [from, to], total) {
  return after <= Math.min(from, total) && Math.min(to, total) <= after + limit;
}

/** Whether a row of `[from, to)` was not read. */
export function hasGap(queue, from, to) {
  for (let index = Math.max(0, from); index < Math.min(to, queue.slots.length); index += 1) {
    if (!queue.slots[index]) return true;
  }
  return false;
}

/**
 * The queue after a slice was read. `fresh`: something has happened since the others were read, so their places may be
 * wrong and they are forgotten. A message is at one place only: where it was read last.
 */
export function withSlice(queue, page, { fresh = false } = {}) {
  const slots = fresh ? [] : queue.slots.slice(0, page.total);
  const ids = new Set(page.items.map((each) => each.message_id));
  for (let index = 0; index < slots.length; index += 1) {
    if (slots[index] && ids.has(slots[index].message_id)) slots[index] = undefined;
  }
  slots.length = page.total;
  for (const item of page.items) {
    if (item.position <= page.total) slots[item.position - 1] = item;
  }
  return { total: page.total, slots };
}

/** The rows as a list has them: what was not read is a place without a message. */
export function rowsOf(queue) {
  return Array.from(queue.slots, (item, index) => item ?? { message_id: `place-${index + 1}`, position: index + 1, isUnread: true });
}

/** Where a message is in the list, or -1. */
export function indexOf(queue, id) {
  return queue.slots.findIndex((each) => each?.message_id === id);
}

/** The queue with one message at another place (from 1): shown at once, before the server has said so. */
export function moved(queue, id, position) {
  const from = indexOf(queue, id);
  const to = Math.min(Math.max(position, 1), queue.slots.length) - 1;
  if (from < 0 || from === to) return queue;
  const slots = Array.from(queue.slots);
  const [item] = slots.splice(from, 1);
  slots.splice(to, 0, item);
  for (let index = Math.min(from, to); index <= Math.max(from, to); index += 1) {
    if (slots[index]) slots[index] = { ...slots[index], position: index + 1 };
  }
  return { total: queue.total, slots };
}

/** The queue without a message; the place it had stays known. */
export function without(queue, id) {
  const at = indexOf(queue, id);
  if (at < 0) return queue;
  const slots = queue.slots.filter((_, index) => index !== at).map((each, index) => (each ? { ...each, position: index + 1 } : each));
  slots.length = queue.slots.length - 1;
  return { total: queue.total - 1, slots };
}

/** The queue with other facts of one message. */
export function changed(queue, id, facts) {
  const at = indexOf(queue, id);
  if (at < 0) return queue;
  const slots = Array.from(queue.slots);
  slots[at] = { ...slots[at], ...facts };
  return { total: queue.total, slots };
}

/**
 * Which row has the focus after the list was read again: that of the same message; if it is gone, the one in its place.
 * Returns an id, or null when nothing is left.
 */
export function focusAfter(queue, id, before) {
  if (id === null) return null;
  if (indexOf(queue, id) >= 0) return id;
  const next = queue.slots[Math.min(Math.max(before, 0), queue.slots.length - 1)];
  return next?.message_id ?? null;
}

/**
 * Moves that are under way: one request for a message at a time, and of several wishes only the last is sent.
 * `send(id, position)` resolves when the server has answered; `done()` is called when nothing is under way any more.
 */
export function mover(send, done) {
  const wishes = new Map();
  let isSending = false;
  const run = async () => {
    if (isSending) return;
    isSending = true;
    try {
      while (wishes.size) {
        const [[id, position]] = wishes;
        wishes.delete(id);
        await send(id, position);
      }
    } finally {
      isSending = false;
      done();
    }
  };
  return {
    wish(id, position) {
      wishes.delete(id);
      wishes.set(id, position);
      return run();
    },
    get isBusy() {
      return isSending;
    },
  };
}

/** Why something waits, as people read it: "turn-1 has run for 12000 ms" → "a run has gone on for 12 s". */
export function whyWords(reason) {
  return String(reason ?? "")
    .replace(/^turn-[\w-]+ has run for/, "a run has gone on for")
    .replace(/\bwaits for approval approval-[\w-]+/, "waits for an approval")
    .replace(/^it goes into turn-[\w-]+ at/, "it goes into the run at")
    .replace(/(\d+) ms\b/g, (_, ms) => duration(Number(ms)));
}

/** The run that a reason names, or "". */
export function runIn(reason) {
  return /\b(turn-[\w-]+)/.exec(String(reason ?? ""))?.[1] ?? "";
}

/** Which of the settings in a form differ from what is in force, as the API wants them; `wrong` says what cannot be. */
export function settingsChange(settings, form) {
  const change = {};
  const wrong = {};
  for (const name of ["mode", "drop"]) {
    if (form[name] !== settings[name].value) change[name] = form[name];
  }
  for (const [name, least] of [["debounce_ms", 0], ["cap", 1]]) {
    const text = String(form[name]).trim();
    const value = Number(text);
    if (!/^\d+$/.test(text) || !Number.isSafeInteger(value) || value < least) wrong[name] = `A whole number, at least ${least}.`;
    else if (value !== settings[name].value) change[name] = value;
  }
  return { change, wrong };
}

/** What to say when a change was refused because the message does not wait any more; "" for any other refusal. */
export function refusedWords(error) {
  if (error?.name !== "Refused" || ![404, 409].includes(error.status)) return "";
  const state = error.facts?.state;
  if (state === "running" || state === "injected") return "It has begun meanwhile, so it was not changed.";
  if (error.code === "message_state" && state && !["queued", "parked", "held"].includes(state)) {
    return `It was ${state.replace("_", "-")} meanwhile, so it was not changed.`;
  }
  return `${error.message[0].toUpperCase()}${error.message.slice(1)}.`;
}
