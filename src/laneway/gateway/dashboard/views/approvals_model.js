/** Approvals as the page knows them. Pure. */
import { shown } from "../core/format.js";

const LINES_SHOWN = 16;
const SIGNS_SHOWN = 1200;

/**
 * The arguments of a request as they are read: `{ text, cut, hidden, length }`. `cut`: how much is shown at first if it
 * is not all; `hidden`: how many characters nobody would see, which are shown as signs.
 */
export function argumentsOf(approval) {
  const text = shown(approval.arguments_text);
  const signs = (words) => (words.match(/⟨U\+[0-9A-F]{4,6}⟩/g) ?? []).length;
  const hidden = signs(text) - signs(approval.arguments_text); // somebody may have written such a sign
  return { text, hidden, length: text.length, cut: cutOf(text) };
}

function cutOf(text) {
  let lines = 0;
  for (let at = 0; at < text.length; at += 1) {
    if (at >= SIGNS_SHOWN) return at;
    if (text[at] === "\n" && (lines += 1) >= LINES_SHOWN) return at;
  }
  return null;
}

/** What happens when nobody answers in time. */
export function afterwards(approval) {
  if (!approval.awaited) return "Its time stands still: the run goes on later, and asks again.";
  return approval.on_timeout === "auto_approve" ? "left, then it runs without an answer" : "left, then it is refused";
}

/** How near the end is: "bad" in the last ten seconds, "warn" in the last fifth. */
export function urgency(approval, nowMs) {
  if (!approval.awaited) return "off";
  const left = approval.expires_ms - nowMs;
  if (left <= 10000) return "bad";
  return left <= (approval.expires_ms - approval.asked_ms) / 5 ? "warn" : "wait";
}

/** What became of a request, in a sentence. */
export function outcome(approval) {
  const by = approval.answered_by ? ` by ${approval.answered_by}` : "";
  const why = approval.reason ? `: ${approval.reason}` : "";
  return `${approval.state}${by}${why}`;
}

/** What to say when an answer was refused because the request is not pending any more; "" for any other refusal. */
export function decidedMeanwhile(error) {
  if (error?.status === 404) return "This request is gone.";
  if (error?.status !== 409) return "";
  const state = error.facts?.state;
  return state ? `Already decided: ${error.message}. Your answer changed nothing.` : `${error.message}`;
}

/** The list after it was read again: those that are gone stay for a moment, with what became of them. */
export function settled(before, items) {
  const now = new Set(items.map((each) => each.approval_id));
  return before.filter((each) => !now.has(each.approval_id)).map((each) => each.approval_id);
}
