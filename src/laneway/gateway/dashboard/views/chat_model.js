/**
 * What a chat knows of one session: folded from its past, from the events of its stream, and from what a run has told
 * so far. Pure: no page, no clock. Each of the three may come first, and what comes twice changes nothing: what is
 * stored has a number, an end is an end, and pieces of a run have numbers of their own.
 */
import { foldRun, newRun, replaceRun } from "./chat_run.js";

const FINAL_MESSAGES = new Set([
  "ran", "merged", "steered", "superseded", "summarized", "dropped", "withdrawn", "expired", "rejected", "command", "dead_lettered",
]);
const FINAL_RUNS = new Set(["succeeded", "failed", "cancelled", "interrupted", "fenced"]);
const DETAILS_KEPT = 100;
const WAITING = new Set(["queued", "parked", "held"]);

/** Whether nothing more becomes of a message in this state. */
export const isFinalMessage = (state) => FINAL_MESSAGES.has(state);

/** Whether a run in this state has ended. */
export const isFinalRun = (state) => FINAL_RUNS.has(state);

/** Whether a message in this state waits. */
export const isWaiting = (state) => WAITING.has(state);

let made = 0;

/** A chat that knows nothing yet. */
export function newChat(key) {
  made += 1;
  return {
    key,
    number: made, // tells it from the one before, when all is read anew
    messages: new Map(),
    keys: new Set(), // what messages that are known were sent with
    runs: new Map(),
    open: new Set(), // the runs that have not ended, as far as is known
    unread: new Set(), // messages whose text is not known, or has changed
    conversation: 0,
    before: undefined, // where older runs end: undefined until it was read, null at the beginning
    seq: 0,
    shape: 0, // grows when there is another order of things
    typing: null,
    queue: 0, // these four grow when something of the kind was told
    approvals: 0,
    calls: 0,
    settings: 0,
    ended: 0, // runs that have ended since it is open
    gap: false, // what is known may be wrong: read it anew
  };
}

/** The message with an id; made when nobody has spoken of it yet. */
export function messageOf(chat, id) {
  let message = chat.messages.get(id);
  if (!message) {
    message = {
      id, v: 0, seq: 0, eventSeq: 0, text: "", isKnown: false, state: "", outcome: null, reason: "", runId: "", position: null,
      mode: "", kind: "user", sender: null, channel: "", attachments: [], arrivedMs: 0, retryOf: null, notice: "",
    };
    chat.messages.set(id, message);
    chat.unread.add(id);
    chat.shape += 1;
  }
  return message;
}

/** The run with an id; made when nobody has spoken of it yet. */
export function runOf(chat, id) {
  let run = chat.runs.get(id);
  if (!run) {
    run = newRun(id);
    chat.runs.set(id, run);
    chat.open.add(id);
    chat.shape += 1;
  }
  return run;
}

/** The run that goes on, or null. */
export function liveRun(chat) {
  let found = null;
  for (const run of openRuns(chat)) if (run.state && (!found || placeOf(run) > placeOf(found))) found = run;
  return found;
}

const placeOf = (each) => each.seq || Infinity;
const openRuns = (chat) => [...chat.open].map((id) => chat.runs.get(id));

// ---- the past ----

/** Take in a page of `/conversation`. `isOlder`: it came by scrolling up, so it says nothing about what goes on. */
export function takePast(chat, page, { isOlder = false } = {}) {
  if (!isOlder && chat.before === undefined) chat.before = page.before;
  if (isOlder) chat.before = page.before;
  chat.conversation = Math.max(chat.conversation, page.conversation);
  chat.seq = Math.max(chat.seq, page.seq);
  for (const facts of page.runs) takeRun(chat, facts, page.seq);
  for (const line of page.lines) takeLine(chat, line);
  for (const facts of page.messages) takeMessage(chat, facts, page.seq);
  return chat;
}

function takeRun(chat, facts, asOf) {
  const run = runOf(chat, facts.run_id);
  place(chat, run, facts.seq);
  if (run.conversation !== facts.conversation) {
    run.conversation = facts.conversation;
    chat.shape += 1;
  }
  add(run.messages, facts.messages);
  add(run.steered, facts.steered);
  run.mode ||= facts.mode;
  run.beganMs ||= facts.began_ms;
  run.v += 1;
  if (isFinalRun(run.state) || run.eventSeq > asOf) return;
  run.state = facts.state;
  run.reason = facts.reason;
  if (!isFinalRun(facts.state)) return;
  endRun(chat, run, { endedMs: facts.ended_ms, answer: facts.answer, tokens: facts.tokens });
}

function takeLine(chat, line) {
  const run = runOf(chat, line.run_id);
  run.v += 1;
  run.lines.set(line.seq, { seq: line.seq, role: line.role, text: line.text, messageId: line.message_id, atMs: line.at_ms });
  if (!line.message_id) return;
  const message = messageOf(chat, line.message_id);
  if (message.isKnown) return;
  know(chat, message, { text: line.text, kind: line.role, sender: line.sender ? { id: line.sender } : null });
}

/** The attachments that somebody has sent: what Laneway tells itself by one is no file. */
function filesOf(attachments) {
  const isErrand = (each) => Object.keys(each ?? {}).some((name) => name.startsWith("laneway."));
  return attachments?.filter((each) => !isErrand(each));
}

/** Take in what a route has said about a message; `asOf` is the event up to which that is true. */
export function takeMessage(chat, facts, asOf = 0) {
  const message = messageOf(chat, facts.message_id);
  place(chat, message, facts.seq);
  know(chat, message, {
    text: facts.text, kind: facts.kind, sender: facts.sender, channel: facts.channel, attachments: filesOf(facts.attachments),
    arrivedMs: facts.arrived_ms, retryOf: facts.retry_of, mode: facts.mode,
  });
  if (facts.idempotency_key) chat.keys.add(facts.idempotency_key);
  if (isFinalMessage(message.state) || message.eventSeq > asOf) {
    if (facts.position && isWaiting(message.state)) Object.assign(message, { position: facts.position, reason: facts.reason });
    return message;
  }
  setMessage(chat, message, facts.disposition, {
    outcome: facts.outcome, reason: facts.reason, runId: facts.run_id || "", position: facts.position,
  });
  return message;
}

/** Take in the messages that wait, as `/pending` tells them. */
export function takePending(chat, items) {
  const told = new Set();
  for (const facts of items) {
    told.add(facts.message_id);
    const message = messageOf(chat, facts.message_id);
    const isLate = message.state && !isWaiting(message.state); // it has begun meanwhile
    know(chat, message, {
      text: facts.text, kind: facts.kind, sender: facts.sender, channel: facts.channel, attachments: filesOf(facts.attachments),
      arrivedMs: facts.arrived_ms, retryOf: facts.retry_of, mode: facts.mode,
    });
    if (facts.idempotency_key) chat.keys.add(facts.idempotency_key);
    if (!isLate) setMessage(chat, message, facts.disposition, { reason: facts.reason, position: facts.position });
  }
  return told;
}

/** Somebody here knows what a message says: it was sent from here. */
export function takeText(chat, id, text) {
  const message = messageOf(chat, id);
  if (!message.isKnown) know(chat, message, { text });
  return message;
}

function know(chat, message, facts) {
  if (facts.arrivedMs === undefined || !facts.arrivedMs) delete facts.arrivedMs;
  Object.assign(message, facts, { isKnown: true });
  message.v += 1;
  chat.unread.delete(message.id);
  touchRuns(chat, message);
}

function setMessage(chat, message, state, facts) {
  const before = `${message.state} ${message.runId}`;
  Object.assign(message, facts, { state: state || message.state });
  if (!isWaiting(message.state)) message.position = null;
  message.v += 1;
  touchRuns(chat, message);
  if (before !== `${message.state} ${message.runId}`) chat.shape += 1;
}

/** A run shows its messages: it looks different when one of them does. */
function touchRuns(chat, message) {
  const own = chat.runs.get(message.runId);
  if (own) own.v += 1;
  for (const run of openRuns(chat)) if (run !== own) run.v += 1;
}

function place(chat, thing, seq) {
  if (!seq || (thing.seq && thing.seq <= seq)) return;
  thing.seq = seq; // the first that was told of it
  chat.shape += 1;
}

function add(list, ids) {
  for (const id of ids || []) if (!list.includes(id)) list.push(id);
}

function endRun(chat, run, { endedMs, answer, tokens }) {
  chat.open.delete(run.id);
  if (!run.isWhole) run.rounds = []; // a part was missed: what the store has is whole
  run.isEnding = false;
  run.waiting = run.retry = null;
  run.endedMs = endedMs || run.endedMs;
  run.answer = answer ?? run.answer;
  run.tokens ||= tokens || 0;
}

/** A page that is open for days keeps what the newest runs did; of older ones what they said, and it can be read again. */
function forgetDetails(chat) {
  const over = [...chat.runs.values()].filter((run) => run.rounds.length && isFinalRun(run.state));
  for (const run of over.sort((a, b) => a.seq - b.seq).slice(0, -DETAILS_KEPT)) {
    Object.assign(run, { rounds: [], isWhole: false, notes: [], v: run.v + 1 });
  }
}

// ---- what happens ----

const STORED = {
  "turn.started": (chat, facts) => {
    const run = begun(chat, facts);
    add(run.messages, facts.messages);
    run.mode = facts.mode || run.mode;
    run.beganMs ||= facts.at_ms;
    if (run.conversation === null && chat.conversation) run.conversation = chat.conversation;
    for (const id of facts.messages || []) messageOf(chat, id);
  },
  "turn.replied": (chat, facts) => {
    const run = runOf(chat, facts.turn_id);
    run.lines.set(facts.seq - 1, { seq: facts.seq - 1, role: "assistant", text: facts.text, messageId: "", atMs: facts.at_ms });
    run.v += 1;
  },
  "turn.cancelling": (chat, facts) => {
    const run = begun(chat, facts);
    run.isEnding = !isFinalRun(run.state);
    run.reason = facts.reason || run.reason;
  },
  "turn.ended": (chat, facts) => {
    const run = runOf(chat, facts.turn_id);
    if (facts.seq <= run.eventSeq && isFinalRun(run.state)) return;
    run.eventSeq = Math.max(run.eventSeq, facts.seq);
    run.state = facts.state;
    run.reason = facts.state === "succeeded" ? "" : facts.reason;
    run.v += 1;
    run.beganMs ||= facts.at_ms - facts.run_ms;
    endRun(chat, run, { endedMs: facts.at_ms, answer: facts.answer });
    chat.typing = null;
    chat.ended += 1;
    if (chat.ended % DETAILS_KEPT === 0) forgetDetails(chat);
    chat.shape += 1;
  },
  "session.reset": (chat, facts) => {
    chat.conversation = Math.max(chat.conversation, facts.conversation);
    chat.shape += 1;
  },
  "session.settings_changed": (chat) => {
    chat.settings += 1;
  },
  "session.typing": (chat, facts) => {
    chat.typing = { messageId: facts.message_id, atMs: facts.at_ms };
  },
  so_far: (chat, facts) => {
    const run = runOf(chat, facts.run_id);
    if (isFinalRun(run.state)) return;
    add(run.messages, facts.messages.filter((id) => !run.steered.includes(id)));
    replaceRun(run, facts);
    chat.typing = null;
  },
  gap: (chat) => {
    chat.gap = true;
  },
};

function begun(chat, facts) {
  const run = runOf(chat, facts.turn_id);
  place(chat, run, facts.seq);
  if (!isFinalRun(run.state) && facts.seq > run.eventSeq) {
    run.eventSeq = facts.seq;
    run.state = facts.state || run.state;
    chat.shape += 1;
  }
  run.v += 1;
  return run;
}

function onMessage(chat, type, facts) {
  chat.queue += 1;
  const message = messageOf(chat, facts.message_id);
  if (facts.seq) place(chat, message, facts.seq);
  if (type === "message.edited") chat.unread.add(message.id);
  if (facts.turn_id && type === "message.injected") {
    const run = runOf(chat, facts.turn_id);
    run.messages = run.messages.filter((id) => id !== message.id);
    add(run.steered, [message.id]);
    run.entered.set(message.id, facts.seq);
    run.v += 1;
  }
  if (isFinalMessage(message.state) || (facts.seq && facts.seq <= message.eventSeq)) return;
  if (!facts.seq && (!isWaiting(message.state) && message.state)) return; // it only says how long something waits
  message.eventSeq = Math.max(message.eventSeq, facts.seq || 0);
  message.arrivedMs ||= type === "message.accepted" ? facts.at_ms : 0;
  message.mode = facts.mode || message.mode;
  if (isFinalMessage(facts.state) && chat.typing?.messageId === message.id) chat.typing = null;
  setMessage(chat, message, facts.state, {
    outcome: facts.outcome ?? null, reason: facts.reason, runId: facts.turn_id || "",
    position: facts.position ?? message.position, notice: facts.notice || "",
  });
}

/** Take in one event of the stream. */
export function takeEvent(chat, type, facts) {
  if (facts.seq) chat.seq = Math.max(chat.seq, facts.seq);
  if (type.startsWith("approval.")) chat.approvals += 1;
  if (type.startsWith("message.") && facts.message_id) onMessage(chat, type, facts);
  else if (STORED[type]) STORED[type](chat, facts);
  else if (facts.payload && facts.metadata) onRunEvent(chat, type, facts);
}

const CALLS = new Set(["tool_queued", "tool_start", "tool_end", "background_end"]);

function onRunEvent(chat, type, { payload, metadata }) {
  if (type.startsWith("confirmation_")) chat.approvals += 1;
  if (CALLS.has(type)) chat.calls += 1;
  if (!metadata.run_id) return;
  const run = runOf(chat, metadata.run_id);
  if (isFinalRun(run.state) && type !== "background_end") return;
  if (metadata.seq && metadata.seq <= run.lastSeq) return; // it is part of what was told so far
  if (!run.state) run.state = "starting";
  foldRun(run, type, payload, metadata);
  chat.typing = null;
  if (type === "steered") {
    run.messages = run.messages.filter((id) => !payload.messages.includes(id));
    for (const id of payload.messages) messageOf(chat, id);
  }
}

/** The stream was cut and is there again: of what runs told meanwhile something may be missing. */
export function reopened(chat) {
  for (const run of openRuns(chat)) run.isWhole = false;
}
