/** What operators have done, in plain words. Pure: no page is needed. */

import { money, number } from "../core/format.js";

const HOUR = 3600000;
const DAY = 24 * HOUR;
const SHOWN = 120;

/** What one can ask for. */
export const PERIODS = [["", "Any time"], ["1h", "Last hour"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"], ["30d", "Last 30 days"]];
const LENGTHS = { "1h": HOUR, "24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY };

/** Areas of actions, for the filter. */
export const AREAS = [
  ["", "Everything"], ["lane", "Lanes"], ["limit", "Limits"], ["approval", "Approvals"], ["schedule", "Schedules"], ["ledger", "Ledger"],
  ["dead_letter", "Dead letters"], ["task", "Tasks"], ["job", "Jobs"], ["token", "Tokens"], ["channel", "Channels"],
  ["budget", "Budgets"], ["session", "Sessions"],
];

/** The filters of an address as the server is asked. */
export function queryOf({ text = "", actor = "", action = "", target = "", period = "" }, nowMs) {
  const from = LENGTHS[period] ? nowMs - LENGTHS[period] : undefined;
  return { order: "newest", text: text.trim(), actor: actor.trim(), action, target: target.trim(), from_ms: from };
}

function short(text) {
  const line = String(text ?? "").replace(/\s+/g, " ").trim();
  return line.length > SHOWN ? `${line.slice(0, SHOWN - 1)}…` : line;
}

/** What one lane change says: "paused", "set to 4 at once". */
function laneWords(facts) {
  const parts = [];
  if (facts.paused === true) parts.push("paused");
  if (facts.paused === false) parts.push("resumed");
  if (facts.concurrency !== undefined) parts.push(`set to ${facts.concurrency} at once`);
  if (facts.mode !== undefined) parts.push(`made ${facts.mode}`);
  const rest = Object.keys(facts).filter((name) => !["paused", "concurrency", "mode", "workspace", "token"].includes(name));
  if (rest.length) parts.push(`changed ${rest.map((name) => name.replaceAll("_", " ")).join(", ")}`);
  return parts;
}

function scheduleWords(facts) {
  const isOnly = Object.keys(facts).every((name) => ["paused", "session_key", "token"].includes(name));
  if (!isOnly || facts.paused === undefined) return "changed schedule";
  return facts.paused ? "paused schedule" : "resumed schedule";
}

const LABELS = { tenant_id: "tenant", principal: "principal", agent_template_id: "template", correlation_id: "correlation" };
const ON_EXHAUSTED = { deny: "runs end", park: "runs wait for the next window", cheaper: "the cheaper model is asked" };

const VERBS = {
  "limit.close": (each) => `closed limit ${each.target}`,
  "limit.open": (each) => `opened limit ${each.target}`,
  "budget.set": (each) => `set ${budgetName(each)}${inWords(budgetWords(each.facts))}`,
  "budget.clear": (each) => `took ${budgetName(each)} away`,
  "budget.reset": (each) => `let ${budgetName(each)} begin anew`,
  "approval.approve": (each) => `approved ${each.facts.tool ?? each.facts.action ?? "request"} ${each.target}`,
  "approval.deny": (each) => `denied ${each.facts.tool ?? each.facts.action ?? "request"} ${each.target}`,
  "schedule.add": (each) => `added a schedule for session ${each.target}`,
  "schedule.remove": (each) => `deleted schedule ${each.target}${inSession(each)}`,
  "schedule.run": (each) => `ran schedule ${each.target}${inSession(each)} now`,
  "schedule.change": (each) => `${scheduleWords(each.facts)} ${each.target}${inSession(each)}`,
  "ledger.settle": (each) => `settled a call of ${each.facts.tool ?? each.target}${happened(each.facts.happened)}`,
  "dead_letter.retry_many": (each) => `sent ${each.target} again`,
  "dead_letter.purge_many": (each) => `forgot ${each.target}`,
  "task.complete": (each) => `completed task ${each.target} by hand${ofTool(each)}`,
  "task.fail": (each) => `failed task ${each.target} by hand${ofTool(each)}`,
  "task.release": (each) => `took task ${each.target} back from ${each.facts.worker || "its worker"}${ofTool(each)}`,
  "task.cancel": (each) => `cancelled task ${each.target}${ofTool(each)}`,
  "session.label": (each) => `said whose session ${each.target} is${inWords(labelWords(each.facts))}`,
  "session.delete": (each) => `deleted session ${each.target}`,
  "session.import_begin": (each) => `began to import session ${each.target}`,
  "session.import_refused": (each) => `was refused the import of session ${each.target}: ${each.facts.error ?? "no reason is known"}`,
  "session.passivate": (each) => `had session ${each.target} leave memory`,
  "token.create": (each) => `made token ${each.target}`,
  "token.revoke": (each) => `revoked token ${each.target}`,
  "job.cancel": (each) => `cancelled ${each.facts.label || `job ${each.target}`}${each.facts.lane ? ` in lane ${each.facts.lane}` : ""}`,
  "channel.gave_up": (each) => `gave up sending to ${each.target}`,
};

const inWords = (words) => (words ? ` (${words})` : "");

function budgetName({ target, facts }) {
  return `budget ${target}${facts.shared ? " of all tenants" : ""}`;
}

/** What was said of a budget: "100,000 tokens and $5 for each principal and day, then runs end". */
function budgetWords(facts) {
  const limit = (name, words) => (facts[name] === undefined ? "" : facts[name] === null ? `no limit of ${name}` : words(facts[name]));
  const limits = [limit("tokens", (count) => `${number(count)} tokens`), limit("money", money)].filter(Boolean).join(" and ");
  const each = [facts.scope, facts.window === "ever" ? "" : facts.window].filter(Boolean).join(" and ");
  const whose = each ? `for each ${each}` : "";
  const end = facts.on_exhausted ? `then ${ON_EXHAUSTED[facts.on_exhausted] ?? facts.on_exhausted}` : "";
  return [[limits, whose].filter(Boolean).join(" "), end].filter(Boolean).join(", ");
}

/** What was said of a session: "principal user:42, no tenant". */
function labelWords(facts) {
  const names = Object.entries(LABELS).filter(([key]) => facts[key] !== undefined);
  return names.map(([key, name]) => (facts[key] ? `${name} ${facts[key]}` : `no ${name}`)).join(", ");
}

function happened(said) {
  if (said === undefined || said === null) return "";
  return said ? ": it happened" : ": it did not happen";
}

function ofTool({ facts }) {
  return facts.command ? ` (${facts.command})` : "";
}

function inSession({ facts }) {
  return facts.session_key ? ` of session ${facts.session_key}` : "";
}

/** An action in plain words, without who and why: "paused lane main". */
export function sentenceOf(entry) {
  const facts = entry.facts ?? {};
  const known = { ...entry, facts };
  if (entry.action === "lane.change") {
    const parts = laneWords(facts);
    const where = facts.workspace ? ` of workspace ${facts.workspace}` : "";
    const [first = "", ...rest] = parts;
    if (!["paused", "resumed"].includes(first)) return `changed lane ${entry.target}${where}: ${parts.join(", ") || "nothing"}`;
    return [`${first} lane ${entry.target}${where}`, ...rest].join(", ");
  }
  if (VERBS[entry.action]) return VERBS[entry.action](known);
  const [area = "", verb = ""] = entry.action.split(".");
  if (!verb) return `${entry.action.replaceAll("_", " ")} ${entry.target}`.trim();
  return `${past(verb)} ${area.replaceAll("_", " ").replaceAll("-", " ")} ${entry.target}`.trim();
}

const PAST = {
  retry: "retried", edit: "edited", purge: "purged", cancel: "cancelled", stop: "stopped", send: "sent", run: "ran", fail: "failed",
};

function past(verb) {
  if (PAST[verb]) return PAST[verb];
  const words = verb.replaceAll("_", " ");
  if (words.includes(" ") || words.endsWith("ed")) return words;
  return words.endsWith("e") ? `${words}d` : `${words}ed`;
}

/** Sessions that were deleted, as far as these entries tell: the key, and the number of the entry that says so last. */
export function deletedOf(items) {
  const found = new Map();
  for (const { action, target, seq } of items) {
    if (action === "session.delete") found.set(target, Math.max(seq, found.get(target) ?? 0));
  }
  return found;
}

/** Where an action leads: the route and its parameters, or null: also to a session that has been deleted since. */
export function targetOf(entry, deleted = new Map()) {
  const found = placeOf(entry);
  return found?.[0] === "chat" && deleted.get(entry.target) >= entry.seq ? null : found;
}

function placeOf(entry) {
  const [area, verb] = entry.action.split(".");
  const { target, facts = {} } = entry;
  if (area === "lane") return ["lanes", { filter: target }];
  if (area === "limit") return ["limits"];
  if (area === "budget") return ["usage"];
  if (area === "approval") return ["approvals"];
  if (area === "schedule") return verb === "add" ? ["chat", target] : ["schedules"];
  if (area === "ledger") return ["ledger", { entry: target }];
  if (area === "token") return ["tokens"];
  if (area === "task") return ["tasks"];
  if (area.startsWith("dead")) return ["letters"];
  if (area === "run") return ["story", "run", target];
  if (area === "message") return ["story", "message", target];
  if (area === "session") return verb === "delete" ? null : ["chat", target];
  if (area === "job") return facts.run_id ? ["story", "run", facts.run_id] : ["lanes", { filter: facts.lane ?? "" }];
  return null;
}

/** The facts that are worth unfolding: everything but what the sentence says anyway. */
export function factsOf(entry) {
  return Object.fromEntries(Object.entries(entry.facts ?? {}).filter(([, value]) => value !== "" && value !== null));
}

/** Entries in groups by day, newest first: `[{ day, items }]`; the day in words of `dayOf(ms)`. */
export function byDay(items, dayOf) {
  const groups = [];
  for (const each of items) {
    const day = dayOf(each.at_ms);
    if (groups.at(-1)?.day !== day) groups.push({ day, items: [] });
    groups.at(-1).items.push(each);
  }
  return groups;
}
