/** The ledger as it is read and settled. Pure. */

export const STATES = ["unknown", "intended", "done", "failed", "settled"];

const WORDS = {
  intended: "about to start, or running", done: "done", failed: "failed, or not started after all",
  unknown: "begun, and nobody knows how far it came", settled: "somebody has looked",
};

/** What a state means. */
export function stateWords(state) {
  return WORDS[state] ?? state;
}

/** The ways out of an unknown outcome: what each says to the server, and to the person. */
export const WAYS = {
  happened: {
    label: "It happened", happened: true, goes: true,
    says: "The agent is told that the call had its effect, and goes on without making it again.",
  },
  again: {
    label: "It did not happen: make it again", happened: false, goes: true,
    says: "The agent is told that the call had no effect. It makes it again if it is still wanted, and goes on.",
  },
  leave: {
    label: "Leave it", happened: null, goes: false,
    says: "It is noted that somebody has looked. The agent is told nothing, and nothing goes on by itself.",
  },
};

/** What is sent to settle one entry; `tells` false: the agent hears nothing of it. */
export function settlement(way, reason, tells = true) {
  const { happened, goes } = WAYS[way];
  return { reason: reason.trim(), happened, go_on: goes && tells };
}

/** What is wrong with a reason; empty if nothing is. */
export function wrongReason(text) {
  if (!text.trim()) return "Say how you know: whoever looks later will want to know.";
  return text.length > 2000 ? "At most 2,000 characters." : "";
}

/** How an entry ended, in words: "settled by ada: it had its effect". */
export function endWords(entry) {
  const by = entry.actor ? ` by ${entry.actor}` : "";
  const found = entry.happened === true ? "it had its effect" : entry.happened === false ? "it had no effect" : "";
  const said = [entry.state === "settled" ? found : "", entry.reason].filter(Boolean).join("; ");
  return entry.state === "settled" ? `settled${by}${said ? `: ${said}` : ""}` : said;
}

/** What a list shows after an entry has changed: in its place, or gone if the filter does not want it any more. */
export function replaced(items, entry, state) {
  const kept = items.map((each) => (each.entry_id === entry.entry_id ? entry : each));
  return state ? kept.filter((each) => each.state === state) : kept;
}

/** The marks that are left when entries have gone. */
export function stillMarked(marked, entries) {
  const ids = new Set(entries.map((each) => each.entry_id));
  return new Set([...marked].filter((each) => ids.has(each)));
}
