/**
 * The story of a run or a message as lines and bars. Pure: what the server tells goes in, what is shown comes out.
 * A time that nobody knows is null, and draws nothing.
 */
import { duration, money, plural, shown } from "../core/format.js";
import { whyWords } from "./queue_model.js";
import { callKey, roundKey, waitWords } from "./story_bars.js";

const END_WORDS = {
  ran: "A run began over it", merged: "It was merged into a run with others", steered: "It was steered into a run",
  superseded: "A newer message took its place", summarized: "It was one too many: a line of it was kept",
  dropped: "It was dropped", withdrawn: "It was taken back", expired: "It waited longer than it was worth",
  rejected: "It was refused: the session was busy", command: "It was a command, and was answered",
  dead_lettered: "Its run could not be begun: it is a dead letter",
};

/** What became of a message, in words. */
export function becameWords(disposition) {
  return END_WORDS[disposition] ?? disposition.replaceAll("_", " ");
}

const RUN_ENDS = {
  succeeded: "It answered", failed: "It failed", cancelled: "It was ended", interrupted: "It was cut off",
  fenced: "It would not end, and was cut off",
};
const AT_MODEL = {
  limit: "The provider takes no calls", retry: "The model failed and is asked again",
  compacting: "The conversation is being summarised", paused: "The session is paused", budget: "It waits for a budget",
};

/** Why it goes no further at this moment, in one sentence: `{ text, tone, since, until }`. */
export function whyNow(run, message) {
  if (message && !message.is_over && ["queued", "parked", "held"].includes(message.message.disposition)) {
    const place = message.message.position ? `Place ${message.message.position}` : "Waiting";
    const reason = message.now ? `${place}: ${whyWords(message.now)}.` : `${place}.`;
    return { text: reason, tone: message.message.disposition === "held" ? "warn" : "wait", since: message.message.arrived_ms };
  }
  if (!run) return message ? messageEnd(message.message) : { text: "", tone: "off", since: null };
  if (run.is_over) {
    const end = run.rests ? { text: `It is at rest: ${run.rests}.`, tone: "wait", since: run.run.ended_ms } : runEnd(run.run);
    const state = message?.message.disposition;
    const text = ["merged", "steered"].includes(state) ? `${becameWords(state)}. ${end.text.replace(/^It /, "The run ")}` : end.text;
    return { ...end, text };
  }
  const asked = run.approvals.find((each) => each.state === "pending");
  if (asked) {
    const text = `Waits for an approval of ${asked.action}.`;
    return { text, tone: "warn", since: asked.asked_ms, until: asked.expires_ms, approval: asked };
  }
  return atModel(run) ?? atTools(run) ?? { text: firstLine(run.now) || `It is ${run.run.state}.`, tone: "run", since: run.run.began_ms };
}

function messageEnd(message) {
  const tones = { dropped: "bad", expired: "warn", dead_lettered: "bad", rejected: "bad", withdrawn: "off", superseded: "off" };
  const reason = message.reason ? `: ${message.reason}` : "";
  return { text: `${becameWords(message.disposition)}${reason}.`, tone: tones[message.disposition] ?? "ok", since: null };
}

function runEnd(run) {
  const tones = { succeeded: "ok", failed: "bad", fenced: "bad", interrupted: "warn" };
  const reason = run.state === "succeeded" ? "" : run.reason ? `: ${run.reason}` : "";
  return { text: `${RUN_ENDS[run.state] ?? run.state}${reason}.`, tone: tones[run.state] ?? "off", since: null };
}

function atModel(run) {
  const last = run.rounds.at(-1);
  if (!last || last.state !== "asking") return null;
  const wait = last.waits.findLast((each) => each.ended_ms === null);
  if (!wait) return { text: `The model is at work on round ${last.number}.`, tone: "run", since: last.asked_ms };
  const slot = firstLine(run.now) || `The model call waits for a slot in ${wait.reason}.`;
  const text = wait.kind === "lane" ? slot : `${AT_MODEL[wait.kind] ?? "It waits"}: ${wait.reason}.`;
  return { text, tone: wait.kind === "lane" ? "wait" : "warn", since: wait.began_ms };
}

function atTools(run) {
  const open = (run.rounds.at(-1)?.calls ?? []).filter((each) => ["queued", "out", "running"].includes(each.status));
  if (!open.length) return null;
  const first = open.find((each) => each.status !== "running") ?? open[0];
  const more = open.length > 1 ? ` (and ${plural(open.length - 1, "more call", "more calls")})` : "";
  const where = first.lane ? ` in lane ${first.lane}` : "";
  if (first.status === "running") {
    const by = first.worker ? ` by ${first.worker}` : "";
    return { text: `${first.tool} runs${where}${by}${more}.`, tone: "run", since: first.began_ms };
  }
  const why = first.why ? `: ${first.why.replace(/\.$/, "")}` : "";
  const what = first.status === "out" ? `${first.tool} waits for a worker` : `${first.tool} waits${where}`;
  return { text: `${what}${why}${more}.`, tone: "wait", since: first.out_ms ?? first.queued_ms };
}

function firstLine(text) {
  return (text || "").split("\n")[0];
}

/** How many times the model was asked, and what that cost, in words. */
export function spentWords(run) {
  const rounds = run.rounds.filter((each) => each.was_asked !== false).length + run.rounds_before;
  if (!rounds) return { rounds, cost: "nothing: the model was not asked" };
  return { rounds, cost: run.cost === null ? "no price known" : money(run.cost) };
}

// ---- steps ----

// What is told by its round, its call, its approval or its sub-agent.
const SILENT = new Set([
  "turn.replied", "message.started", "message.injected", "child.started", "child.ended", "approval.asked", "approval.ended",
]);
const STEP_WORDS = {
  "message.accepted": "It came", "message.parked": "It waits for the run that goes on", "message.edited": "Its text was changed",
  "message.moved": "It got another place", "message.held": "It was set aside", "message.released": "It waits in its place again",
  "message.returned": "It waits in its place again", "message.ended": "Its end", "turn.started": "The run began",
  "turn.cancelling": "The run was asked to end", "turn.ended": "The run ended", "approval.escalated": "More people may approve",
};

/**
 * Everything that happened, in order: `[{ key, at, what, title, text, tone, ... }]`. `what` says how it is drawn:
 * "event", "message", "wait", "round", "call", "approval", "child".
 */
export function steps(run, message) {
  const found = [];
  for (const each of message?.steps ?? []) if (!each.run_id || each.type.startsWith("message.")) event(found, each, "m");
  for (const each of message?.waits ?? []) {
    const title = `${each.ended_ms === null ? "Waits" : "Waited"} for ${waitWords(each.kind)}`;
    const key = each === message.waits[0] ? "message" : `w-${found.length}`; // the line of bars leads to the first
    found.push({ key, at: each.began_ms, order: 1, what: "wait", title, text: each.reason, tone: "wait", wait: each });
  }
  if (run) runSteps(found, run, message);
  return found.sort((a, b) => a.at - b.at || a.order - b.order);
}

function event(found, step, from) {
  if (SILENT.has(step.type) && from === "r") return;
  const ended = step.type === "message.ended" ? messageEnded(step.facts) : null;
  const title = step.type === "turn.ended" ? `The run ended: ${step.facts.state}` : ended ?? eventTitle(step);
  const facts = step.type === "message.accepted" && step.facts.position ? `place ${step.facts.position}, mode ${step.facts.mode}` : "";
  const actor = step.actor && step.actor !== "inbox" ? `by ${step.actor}` : "";
  const reason = step.reason === "the handler returned" ? "" : step.reason;
  const text = [facts, reason, actor].filter(Boolean).join("; ");
  const bad = ["failed", "dropped", "dead_lettered", "rejected", "expired"].includes(step.facts.state);
  const key = `e-${from}-${found.length}`;
  found.push({ key, at: step.at_ms, order: endOrder(step.type), what: "event", title, text, tone: bad ? "bad" : "off" });
}

function messageEnded({ state, outcome }) {
  const how = outcome ? `: ${outcome}` : "";
  return ["ran", "merged", "steered"].includes(state) ? `The message ended (${state})${how}` : becameWords(state);
}

function endOrder(type) {
  return type === "turn.ended" ? 9 : type === "message.ended" ? 8 : type === "message.accepted" ? 0 : 1;
}

function eventTitle(step) {
  if (step.type === "message.started") return "A run took it";
  if (step.type === "message.injected") return "It was steered into the run";
  return STEP_WORDS[step.type] ?? step.type.replaceAll(".", " ").replaceAll("_", " ");
}

const MESSAGE_TITLES = {
  steered: "A message was steered in", began: "The run took a message", summarized: "A line of a message was kept",
};

function runSteps(found, run, message) {
  const add = (key, at, order, what, title, tone, more) => {
    if (at !== null) found.push({ key, at, order, what, title, tone, ...more });
  };
  for (const each of run.steps) if (!each.type.startsWith("message.")) event(found, each, "r");
  for (const each of run.messages) {
    if (each.message_id === message?.message.message_id) continue;
    add(`t-${each.message_id}`, each.heard_ms, 2, "message", MESSAGE_TITLES[each.role], "run", { message: each });
  }
  for (const round of run.rounds) {
    add(roundKey(round), round.answered_ms ?? round.asked_ms, 3, "round", roundTitle(round), "run", { round });
    for (const call of round.calls) {
      const when = call.queued_ms ?? call.began_ms ?? call.ended_ms ?? round.answered_ms;
      add(callKey(round, call), when, 5, "call", call.tool, callTone(call), { call, round });
    }
  }
  for (const each of run.approvals) {
    const title = `Asked for an approval of ${each.action}`;
    add(`a-${each.approval_id}`, each.asked_ms, 4, "approval", title, "warn", { approval: each });
  }
  for (const each of run.children) {
    add(`c-${each.child_id}`, each.began_ms, 6, "child", `Sub-agent: ${each.label || each.child_id}`, "run", { child: each });
  }
}

function roundTitle(round) {
  if (round.was_asked === false) return `Round ${round.number}: the model was not asked${round.state === "asking" ? " yet" : ""}`;
  if (round.state === "asking") return `Round ${round.number}: the model is asked`;
  return `Round ${round.number}: the model ${round.calls.length ? `wants ${plural(round.calls.length, "call")}` : "answers"}`;
}

const CALL_TONES = {
  ok: "ok", background: "ok", queued: "wait", out: "wait", asked: "warn", running: "run", denied: "bad", error: "bad",
  timed_out: "bad", unknown: "warn",
};

/** The tone of a call by how it ended, or has not. */
export function callTone(call) {
  return CALL_TONES[call.status] ?? "off";
}

/** What a call took, in words: "waited 2 s in lane execute, ran 3 s by w1". */
export function callWords(call) {
  const words = [];
  const left = call.out_ms ?? call.began_ms;
  const waited = left !== null && call.queued_ms !== null ? `waited ${duration(left - call.queued_ms)} in ` : "";
  if (call.lane) words.push(`${waited}lane ${shown(call.lane)}`);
  const taken = call.began_ms !== null ? `${duration(call.began_ms - call.out_ms)} for a worker` : "offered to workers";
  if (call.out_ms !== null) words.push(taken);
  if (call.began_ms !== null && call.ended_ms !== null) words.push(`ran ${duration(call.ended_ms - call.began_ms)}`);
  if (call.worker) words.push(`by ${shown(call.worker)}`);
  if (call.attempt > 1) words.push(`attempt ${call.attempt}`);
  if (call.exit_code !== null) words.push(`exit code ${call.exit_code}`);
  return words.join(", ");
}

/** Whether an event of the session is about this story: then it is read again. Pieces of text are not. */
export function concerns(type, facts, { runId, messageId }) {
  if (type.endsWith("_delta") || type === "subagent_progress") return false;
  const about = facts?.metadata?.run_id ?? facts?.turn_id ?? facts?.run_id;
  if (runId && about === runId) return true;
  if (messageId && facts?.message_id === messageId) return true;
  return Boolean(messageId) && (type === "turn.ended" || type === "turn.started");
}
