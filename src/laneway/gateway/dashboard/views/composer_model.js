/** What the composer says and keeps: modes in words, commands with completion, drafts, and what is on its way. Pure. */

/** Modes that can be chosen for a message; "" is what the queue of the session is set to. */
export const MODES = ["", "collect", "followup", "steer", "steer-backlog", "interrupt"];

const NAMES = {
  collect: "Collect", followup: "Follow up", steer: "Steer", "steer-backlog": "Steer, then follow up", interrupt: "Interrupt",
  reject: "Reject", rollback: "Roll back",
};

/** The name of a mode; that of "" says which one it is. */
export function modeName(mode, own) {
  return mode ? NAMES[mode] ?? mode : `As set: ${NAMES[own] ?? own ?? "…"}`;
}

const BUSY = {
  collect: "It waits until the run has ended; all that waits by then is answered together.",
  followup: "It waits until the run has ended, then gets a run of its own.",
  steer: "It goes into the run at its next step.",
  "steer-backlog": "It goes into the run at its next step, and gets a run of its own afterwards.",
  interrupt: "It ends the run, and is answered next.",
  rollback: "It ends the run, which is forgotten, and is answered next.",
  reject: "It is refused: the session is busy.",
};

/** What a message in this mode does at this moment. `session` is `{ run, waiting }` with the state of the run, or null. */
export function effectOf(mode, { state = "", isEnding = false, waiting = 0 } = {}) {
  if (!state) {
    if (waiting && mode !== "interrupt") return `It waits in line: ${waiting} ${waiting === 1 ? "message is" : "messages are"} before it.`;
    return "Nothing runs: it is answered at once.";
  }
  if (mode === "interrupt" && state === "delivering") return "The run delivers its answer: it is answered right after that.";
  if (isEnding) return "The run is being ended: it is answered after that.";
  if (mode.startsWith("steer")) {
    if (state === "starting") return "The run is only starting: it waits in its place.";
    if (state === "delivering") return "The run delivers its answer: nothing goes in any more, so it waits for the next one.";
    if (state === "waiting") return "The run waits: it goes in when that goes on, or waits in its place.";
  }
  return BUSY[mode] ?? "What it does is up to the settings of the session.";
}

/** Commands of a chat. `isWhole`: nothing has to be added. */
export const COMMANDS = [
  { name: "/status", says: "how the session is", isWhole: true },
  { name: "/queue", says: "how messages wait here, and how many", isWhole: true },
  { name: "/queue steer", says: "messages go into the run from now on", isWhole: true },
  { name: "/queue followup", says: "each message gets a run of its own from now on", isWhole: true },
  { name: "/queue collect", says: "what waits is answered together from now on", isWhole: true },
  { name: "/queue list", says: "what waits", isWhole: true },
  { name: "/queue clear", says: "take back everything that waits", isWhole: true },
  { name: "/queue reset", says: "forget the settings of this session", isWhole: true },
  { name: "/steer", says: "send this one into the run", isWhole: false },
  { name: "/followup", says: "give this one a run of its own", isWhole: false },
  { name: "/stop", says: "end everything in this session", isWhole: true },
  { name: "/new", says: "begin a new conversation", isWhole: true },
  { name: "/compact", says: "shorten what the agent remembers", isWhole: true },
  { name: "/approve", says: "say yes to a request, by its id", isWhole: false },
  { name: "/deny", says: "say no to a request, by its id", isWhole: false },
  { name: "/help", says: "these commands", isWhole: true },
];

/** Commands that begin with what was typed; none once more than a command was typed. */
export function completions(text) {
  if (!text.startsWith("/") || text.includes("\n")) return [];
  const typed = text.toLowerCase();
  const found = COMMANDS.filter((each) => each.name.startsWith(typed.trimEnd()) && each.name.length >= typed.length - 1);
  return found.length === 1 && found[0].name === typed.trimEnd() ? [] : found.slice(0, 8);
}

// ---- what is on its way ----

/**
 * Sends are kept until the server has said what became of them. One that got no answer is sent again with its key, so
 * that it is taken once, however often it is sent. `{ key, text, mode, state: "sending" | "again" | "refused", error }`
 */
export function outboxOf(stored) {
  let list = [];
  try {
    list = JSON.parse(stored || "[]");
  } catch {
    return [];
  }
  if (!Array.isArray(list)) return [];
  const isSend = (each) => each && typeof each.key === "string" && typeof each.text === "string";
  return list.filter(isSend).map((each) => ({ ...each, state: each.state === "refused" ? "refused" : "again", error: each.error ?? "" }));
}

/** Whether a failed send is sent again by itself: nobody answered, or the server asked for patience. */
export function isWorthAgain(error) {
  if (error?.name === "Offline" || error?.name === "AbortError" || error?.name === "TypeError") return true;
  return [408, 425, 429, 500, 502, 503, 504].includes(error?.status);
}

/** How long to wait before the next try. */
export function pauseOf(tries, retryAfterMs) {
  return Math.max(retryAfterMs ?? 0, Math.min(10000, 400 * 2 ** Math.min(tries, 6)));
}
