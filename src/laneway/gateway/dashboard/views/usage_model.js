/** Usage: periods, series and shares. Pure: no page is needed. */

import { money, number } from "../core/format.js";

const HOUR = 3600000;
const DAY = 24 * HOUR;

/** What one can look at: name and words. */
export const PERIODS = [["today", "Today"], ["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"], ["all", "All time"]];
export const GROUPS = [["session", "Session"], ["model", "Model"], ["run", "Run"], ["workspace", "Workspace"], ["day", "Day"]];
const RUNS_NAMED = 3; // a budget that is used up may hold hundreds
const LENGTHS = { today: 1, "7d": 7, "30d": 30, "90d": 90 };

/** When a period begins: midnight here, so many days back; 0 for all time. */
export function beginOf(period, nowMs) {
  const days = LENGTHS[period];
  if (!days) return 0;
  const at = new Date(nowMs);
  at.setHours(0, 0, 0, 0);
  at.setDate(at.getDate() - (days - 1));
  return at.getTime();
}

/** A known period, whatever an address says. */
export function periodOf(text) {
  return PERIODS.some(([name]) => name === text) ? text : "7d";
}

/** A known grouping. */
export function groupOf(text) {
  return GROUPS.some(([name]) => name === text) ? text : "session";
}

/** The days of an answer as series for a plot: days without a call are there with 0. */
export function daySeries(items, fromMs, nowMs) {
  const known = new Map(items.map((each) => [each.key, each]));
  const first = fromMs || (items.length ? Date.parse(`${items[0].key}T00:00:00`) : nowMs);
  const x = [];
  const input = [];
  const output = [];
  const cost = [];
  const at = new Date(first);
  at.setHours(0, 0, 0, 0);
  while (at.getTime() <= nowMs && x.length < 1000) {
    const found = known.get(dayOf(at));
    x.push(at.getTime());
    input.push(found?.input_tokens ?? 0);
    output.push(found?.output_tokens ?? 0);
    cost.push(found?.cost ?? 0);
    at.setDate(at.getDate() + 1);
  }
  return { x, input, output, cost };
}

function dayOf(at) {
  return `${at.getFullYear()}-${String(at.getMonth() + 1).padStart(2, "0")}-${String(at.getDate()).padStart(2, "0")}`;
}

/** A count that fits beside an axis: "950", "12K", "3.4M". */
export function compact(value) {
  return new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 }).format(value ?? 0);
}

/** In and out. */
export function tokensOf(part) {
  return part.input_tokens + part.output_tokens;
}

/** How large a part is beside the largest: by cost if any is known, else by tokens; 0 to 100. */
export function shareOf(part, items) {
  const isPriced = items.some((each) => each.cost);
  const size = (each) => (isPriced ? (each.cost ?? 0) : tokensOf(each));
  const most = Math.max(...items.map(size), 0);
  return most > 0 ? Math.round((size(part) / most) * 100) : 0;
}

/** What is known about prices, in words; "" if all calls have one. */
export function priceNote(total) {
  if (!total.calls || total.priced_calls === total.calls) return "";
  if (!total.priced_calls) return "No price is known of these models, so the cost is not known.";
  return `A price is known of ${total.priced_calls} of ${total.calls} calls; the others are not in the cost.`;
}

const WORDS = {
  max_tool_rounds: "Rounds of a run",
  max_output_tokens: "Tokens of one answer",
  max_execution_time_ms: "Time of a run",
  max_calls_per_answer: "Calls of tools in one answer",
  thinking_budget: "Tokens for thinking",
  max_parallel_tasks: "Sub-agents of a run at once",
  max_subagents: "Sub-agents at once",
  max_subagent_depth: "Sub-agents below each other",
};

/** Limits of runs as rows: words, what was used, how full (0 to 100, null if there is no limit or no measure), a tone. */
export function limitRows(items) {
  return items.map((each) => {
    const full = each.limit && each.used !== null ? Math.min(100, Math.round((each.used / each.limit) * 100)) : null;
    const tone = full === null ? "off" : full >= 90 ? "bad" : full >= 70 ? "warn" : "ok";
    return { ...each, words: WORDS[each.name] ?? each.name, full, tone };
  });
}

/** What a budget allows, or what was spent of it, in words: tokens, dollars, or both. */
export function amountWords(tokens, dollars) {
  const parts = [];
  if (tokens !== null) parts.push(`${number(tokens)} tokens`);
  if (dollars !== null) parts.push(money(dollars));
  return parts.join(", ");
}

const USED_UP = {
  deny: "used up: runs end here", park: "used up: runs wait for the next window", cheaper: "used up: it goes to the cheaper model",
};
const THEN = { deny: "then runs end", park: "then runs wait for the next window", cheaper: "then the cheaper model is asked" };

/** What a budget says: "1,000 tokens a day for each session, then runs end; warns at 80 %". */
function ruleWords(budget) {
  const window = budget.window && budget.window !== "ever" ? ` a ${budget.window}` : "";
  const whose = budget.only ? `${budget.scope} ${budget.only}` : `each ${budget.scope}`;
  const then = THEN[budget.on_exhausted] ? `, ${THEN[budget.on_exhausted]}` : "";
  const warns = budget.warn_at < 1 ? `; warns at ${Math.round(budget.warn_at * 100)} %` : "";
  return `${amountWords(budget.tokens, budget.money)}${window} for ${whose}${then}${warns}`;
}

/** Where the one whose count it is can be looked at: a route, or null. */
function wayTo(scope, subject) {
  if (!subject) return null;
  if (scope === "session") return ["chat", subject];
  return scope === "run" ? ["story", "run", subject] : null;
}

/** The runs that wait for the next window of a count: how many, the first of them with their way, and how many are not named. */
function parkedOf(count) {
  const named = (count.parked_runs ?? []).slice(0, RUNS_NAMED);
  const runs = named.map((each) => ({ key: each.run_id, name: each.session_key, way: ["story", "run", each.run_id] }));
  return { parked: count.parked ?? 0, runs, unnamed: Math.max(0, (count.parked ?? 0) - runs.length) };
}

function countRow(budget, count) {
  const spent = amountWords(budget.tokens === null ? null : count.tokens.spent, budget.money === null ? null : count.money.spent);
  const tone = count.share >= 1 ? "bad" : count.share >= budget.warn_at ? "warn" : "ok";
  const end = count.share >= 1 ? USED_UP[budget.on_exhausted] ?? "used up" : "";
  return {
    key: count.subject, whose: count.whose, way: wayTo(budget.scope, count.subject), spent, percent: Math.round(count.share * 100),
    full: Math.min(100, Math.round(count.share * 100)), tone, end, waiting: count.waiting, ...parkedOf(count),
  };
}

/** Budgets with a row for each count: whose it is, what was spent, how full (0 to 100), a tone; and where each warns. */
export function budgetGroups(items) {
  return items.map((each) => ({
    key: `${each.workspace} ${each.shared} ${each.name}`, name: each.name, workspace: each.workspace, isShared: each.shared,
    rule: ruleWords(each), mark: each.warn_at < 1 ? Math.round(each.warn_at * 100) : null, until: each.counts[0]?.until_ms ?? null,
    rows: each.counts.map((count) => countRow(each, count)), leftOut: each.left_out ?? 0,
  }));
}
