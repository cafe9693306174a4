/** The list of sessions as the page knows it. Pure. */

/** What the filter offers: the value of the API, and its words. */
export const FILTERS = [["", "All"], ["busy", "Busy"], ["waiting", "Waiting"], ["needs", "Needs somebody"]];

/** Events that come many times a second and change nothing that a list of sessions shows. */
export const PIECES = new Set(["text_delta", "reasoning_delta", "tool_input_delta", "tool_output_delta"]);

/**
 * The list after some sessions have changed. `hold`: somebody points at a row, so rows stay where they are and new ones
 * are only counted (`later`); else the newest come first. `isShown(item)`: whether it still fits the filter.
 */
export function merged(list, fresh, { hold = false, isShown = () => true } = {}) {
  const news = new Map(fresh.map((each) => [each.session_key, each]));
  const kept = [];
  const later = new Map(list.later.map((each) => [each.session_key, each]));
  for (const item of list.items) {
    const now = news.get(item.session_key);
    news.delete(item.session_key);
    if (!now) kept.push(item);
    else if (hold || isShown(now)) kept.push(now);
  }
  for (const [key, item] of news) {
    if (isShown(item)) later.set(key, item);
    else later.delete(key);
  }
  if (hold) return { items: kept, later: [...later.values()] };
  const items = [...kept, ...later.values()].filter(isShown).sort((one, other) => other.order - one.order);
  return { items, later: [] };
}

/** Whether a session fits what is looked for. */
export function fits(item, { words = "", state = "" } = {}) {
  if (words && !item.session_key.toLowerCase().includes(words.toLowerCase())) return false;
  if (state === "busy") return item.run_id !== null;
  if (state === "waiting") return item.waiting > 0;
  if (state === "needs") return item.approvals > 0;
  return true;
}

/** A session's state in a word and its tone. */
export function stateOf(item) {
  if (item.approvals) return { word: "needs an answer", tone: "warn" };
  if (item.resting) return { word: "rests", tone: "wait" };
  if (item.run_id === null) return item.waiting ? { word: "waiting", tone: "wait" } : { word: "idle", tone: "off" };
  return { word: item.state, tone: item.state === "waiting" ? "wait" : "run" };
}

/** Where a session is, in a sentence, or "" while it is as usual. */
export function memoryWords(session) {
  if (session.resting) return `It has left memory with work undone: ${session.resting_reason}.`;
  if (session.waits_for) return `Its run waits: ${session.waits_for}.`;
  return session.in_memory ? "" : "It is not in memory. Its next message brings it back.";
}

/** What a passivation came to. */
export function passivatedWords(done) {
  if (done.in_memory) return "It had left memory, and something has brought it back already.";
  if (done.resting) return `It has left memory: ${done.resting_reason}.`;
  return done.was_in_memory ? "It has left memory." : "It was not in memory.";
}

/** What is wrong with the key of a new session, or "". */
export function keyProblem(key) {
  const clean = key.trim();
  if (!clean) return "Give it a name.";
  if (clean === "." || clean === "..") return "Not . or ..: in an address that means a folder.";
  if (clean.length > 200) return "At most 200 characters.";
  if (/[/\u0000-\u001f\u007f-\u009f\u2028\u2029]/.test(clean)) return "A name has no slash and no control characters.";
  return "";
}

/** A name for a session that has none yet. */
export function freshKey(random = Math.random) {
  return `web-${Math.floor(random() * 36 ** 6).toString(36).padStart(6, "0")}`;
}
