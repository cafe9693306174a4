/** Limits: their order, and what is said about them. Pure: no page is needed. */

const MINUTE = 60000;

/** How long a limit may be closed by a button. */
export const SPANS = [[MINUTE, "1 minute"], [15 * MINUTE, "15 minutes"], [60 * MINUTE, "1 hour"], [24 * 60 * MINUTE, "1 day"]];

/** What has to be looked at first comes first: closed, then with somebody waiting, then by name. */
export function sortLimits(items) {
  const weight = (each) => (each.closed ? 0 : each.waiting ? 1 : each.rate && each.rate.left === 0 ? 2 : 3);
  return [...items].sort((a, b) => weight(a) - weight(b) || a.key.localeCompare(b.key));
}

/** What a limit is: "Account openai", "Lane main". */
export function titleOf(limit) {
  return limit.account !== null ? `Account ${limit.account}` : `Lane ${limit.key}`;
}

/** The state of a limit in a word, with its tone. */
export function stateOf(limit, nowMs) {
  if (limit.closed && limit.closed_until_ms > nowMs) return { tone: "warn", text: "closed" };
  if (limit.rate && limit.rate.left === 0) return { tone: "wait", text: "used up for now" };
  return { tone: "ok", text: "open" };
}

/** How many may start in which time: "20 a minute". */
export function rateWords({ count, window_ms: windowMs }) {
  const names = { 1000: "a second", 60000: "a minute", 3600000: "an hour", 86400000: "a day" };
  return `${count} ${names[windowMs] ?? `in ${Math.round(windowMs / 1000)} s`}`;
}

/** Who waits, in a sentence; "" for nobody. */
export function waitingWords(limit) {
  if (!limit.waiting) return "";
  const named = [...new Set(limit.waiters.map((each) => each.session_key).filter((each) => each !== null))];
  const rest = limit.waiting - limit.waiters.filter((each) => each.session_key !== null).length;
  if (!named.length) return limit.waiting === 1 ? "1 job waits for it" : `${limit.waiting} jobs wait for it`;
  return rest > 0 ? `and ${rest} more` : "";
}

/** Whether a look at the server is due: something closes or opens now, or the last look is old. */
export function isDue(items, readMs, nowMs, pollMs) {
  const opens = (items ?? []).some((each) => each.closed && each.closed_until_ms <= nowMs && each.closed_until_ms > readMs);
  return opens || nowMs - readMs >= pollMs;
}
