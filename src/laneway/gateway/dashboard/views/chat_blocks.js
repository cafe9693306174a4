/** In which order a chat shows what it knows, and in which words. Pure. */
import { isFinalMessage, isFinalRun, isWaiting } from "./chat_model.js";
import { whyWords } from "./queue_model.js";

const SHOWN_FIRST = 4;

const inOrder = (a, b) => (a.place === b.place ? 0 : a.place < b.place ? -1 : 1);

/**
 * Blocks from the oldest to the newest: runs with the messages that they began over, messages that got no run, and
 * dividers where another conversation begins. What waits is not among them: `waitingOf` has it.
 */
export function blocksOf(chat) {
  const found = [];
  const taken = new Set();
  for (const run of chat.runs.values()) {
    found.push({ kind: "run", key: run.id, place: run.seq || Infinity, run, conversation: run.conversation });
    for (const id of run.messages) taken.add(id);
    for (const id of run.steered) taken.add(id);
  }
  const first = oldest(chat);
  for (const message of chat.messages.values()) {
    if (taken.has(message.id) || !isFinalMessage(message.state)) continue;
    if (message.runId && !chat.runs.has(message.runId) && message.seq < first) continue; // its run has not been read yet
    found.push({ kind: "message", key: message.id, place: message.seq || Infinity, message, conversation: null });
  }
  found.sort(inOrder);
  noteRepeats(chat, found);
  return divided(found, chat.conversation);
}

/** A message that a second run takes up (the process had ended, it came back) is shown once, with the first. */
function noteRepeats(chat, found) {
  const first = new Map();
  const byId = new Map();
  for (const { run } of found) {
    if (!run) continue;
    const again = run.messages.filter((id) => first.has(id));
    if (again.join() !== run.again.join()) Object.assign(run, { again, v: run.v + 1 });
    const states = again.map((id) => chat.messages.get(id)?.state).join();
    if (states !== run.againStates) {
      run.againStates = states; // the first run shows what becomes of them, though it has ended long since
      for (const id of again) first.get(id).v += 1;
    }
    for (const before of [...again.map((id) => first.get(id)), byId.get(run.resumedFrom)]) {
      if (before && !before.isContinued) Object.assign(before, { isContinued: true, v: before.v + 1 });
    }
    const rests = run.state === "interrupted" && run.messages.some((id) => chat.messages.get(id)?.state === "queued");
    if (rests !== run.rests) Object.assign(run, { rests, v: run.v + 1 });
    byId.set(run.id, run);
    for (const id of [...run.messages, ...run.steered]) if (!first.has(id)) first.set(id, run);
  }
}

function oldest(chat) {
  let first = Infinity;
  for (const run of chat.runs.values()) if (run.seq && run.seq < first) first = run.seq;
  return first;
}

function divided(found, current) {
  const blocks = [];
  let number = null;
  for (const block of found) {
    if (block.conversation !== null) {
      if (number !== null && block.conversation !== number) blocks.push(divider(block.conversation));
      number = block.conversation;
    }
    blocks.push(block);
  }
  if (number !== null && current > number) blocks.push(divider(current));
  return blocks;
}

const divider = (number) => ({ kind: "divider", key: `conversation-${number}`, number });

/** What tells a block from how it was drawn last. A message that waits again changes while its first run does not. */
export function versionOf(chat, { run, message }) {
  if (!run) return String(message?.v ?? 0);
  const back = [...run.messages, ...run.steered].map((id) => chat.messages.get(id)).filter((each) => isWaiting(each?.state));
  return [run.v, ...back.map((each) => each.v)].join(" ");
}

/** Messages that wait again after a run was cut off: they are shown with that run, and not a second time below. */
export function returnedOf(chat) {
  const waiting = new Set([...chat.messages.values()].filter((each) => isWaiting(each.state)).map((each) => each.id));
  const found = new Set();
  if (!waiting.size) return found;
  for (const run of chat.runs.values()) {
    if (!isFinalRun(run.state)) continue;
    for (const id of [...run.messages, ...run.steered]) if (waiting.has(id)) found.add(id);
  }
  return found;
}

/** The messages that wait, in the order of their places; those without one come last, as they came. */
export function waitingOf(chat) {
  const returned = returnedOf(chat);
  const found = [...chat.messages.values()].filter((each) => isWaiting(each.state) && each.isKnown && !returned.has(each.id));
  const place = (each) => each.position ?? 1e12 + (each.seq || 1e12);
  return found.sort((a, b) => place(a) - place(b));
}

/** The messages that a run began over: the first few, and how many more there are. */
export function openersOf(chat, run) {
  const fresh = run.messages.filter((id) => !run.again.includes(id));
  const known = (ids) => ids.map((id) => chat.messages.get(id)).filter((each) => each?.isKnown);
  return { shown: known(fresh.slice(0, SHOWN_FIRST)), more: Math.max(0, fresh.length - SHOWN_FIRST), again: known(run.again) };
}

/** What a run shows, in order: `{ kind: "round" | "text" | "steered" | "answer", … }`. */
export function contentOf(chat, run) {
  const told = new Set();
  const steered = (ids, skipped = []) => {
    const fresh = ids.filter((id) => !told.has(id));
    for (const id of fresh) told.add(id);
    return fresh.length || skipped.length ? [{ kind: "steered", key: `in-${ids[0]}`, ids: fresh, skipped }] : [];
  };
  const items = run.rounds.length ? roundItems(run, steered) : lineItems(run, steered);
  items.push(...steered(run.steered));
  const last = items.findLast((each) => each.kind === "round" || each.kind === "text");
  const said = last?.kind === "round" ? last.round.text.join("") : last?.text ?? "";
  const isNew = run.answer && isFinalRun(run.state) && run.answer.trim() !== said.trim();
  if (isNew) items.push({ kind: "answer", key: "answer", text: run.answer });
  return items;
}

function roundItems(run, steered) {
  const isEmpty = (round) => !round.text.length && !round.reasoning.length && !round.calls.size;
  return run.rounds.flatMap((round) => [
    ...(isEmpty(round) ? [] : [{ kind: "round", key: `round-${round.turn}`, round }]),
    ...round.steered.flatMap((each) => steered(each.messages, each.skipped)),
  ]);
}

function lineItems(run, steered) {
  const entered = [...run.entered].map(([messageId, seq]) => ({ seq, role: "user", messageId }));
  const lines = [...run.lines.values(), ...entered].sort((a, b) => a.seq - b.seq);
  return lines.flatMap((line) => {
    if (line.role === "assistant") return [{ kind: "text", key: `line-${line.seq}`, text: line.text }];
    return run.steered.includes(line.messageId) ? steered([line.messageId]) : [];
  });
}

const FENCE = /^[ \t]*(`{3,}|~{3,})([^\n`]*)$/;

/** A text in parts: what is said, and what stands between fences (```), which is code. One that is still open is code, too. */
export function partsOf(text) {
  const parts = [];
  let fence = "";
  let lines = [];
  const close = (code, language = "") => {
    const words = lines.join("\n");
    if (code || words.trim()) parts.push({ code, language, text: code ? words : words.replace(/^\n+|\n+$/g, "") });
    lines = [];
  };
  let language = "";
  for (const line of text.split("\n")) {
    const found = FENCE.exec(line);
    if (found && !fence) {
      close(false);
      fence = found[1];
      language = found[2].trim();
    } else if (found && found[1].startsWith(fence) && !found[2].trim()) {
      close(true, language);
      fence = "";
    } else lines.push(line);
  }
  close(Boolean(fence), fence ? language : "");
  return parts;
}

const BECAME = {
  running: ["run", "is being answered"],
  injected: ["run", "the run has seen it"],
  merged: ["ok", "answered together with others"],
  steered: ["ok", "went into the run"],
  superseded: ["off", "a newer one took its place"],
  summarized: ["warn", "one too many: only a line of it was told"],
  dropped: ["bad", "dropped"],
  withdrawn: ["off", "withdrawn"],
  expired: ["warn", "expired"],
  rejected: ["bad", "rejected"],
  dead_lettered: ["bad", "given up: it is among the dead letters"],
  command: ["off", "command"],
};
const OUTCOMES = {
  failed: ["bad", "its run failed"], interrupted: ["warn", "its run was cut off"], unknown: ["warn", "nobody knows how its run ended"],
};
const WAITS = { queued: "waits", parked: "goes into the run at its next step", held: "held back" };

const RUNS_ON = /^\S+ has run for \d+ ms/; // true when it was said, and no longer

/** What has become of a message: `{ tone, text, reason }`; null if that goes without saying. `run`: where it is shown. */
export function becameOf(message, run = null) {
  const reason = whyWords((message.reason || "").replace(RUNS_ON, "a run goes on"));
  if (isWaiting(message.state)) {
    const place = message.state !== "parked" && message.position ? `, place ${message.position}` : "";
    return { tone: message.state === "held" ? "warn" : "wait", text: `${WAITS[message.state]}${place}`, reason };
  }
  const end = OUTCOMES[message.outcome];
  if (end) return { tone: end[0], text: end[1], reason: run && run.reason === message.reason ? "" : reason }; // the run tells it
  const [tone, text] = BECAME[message.state] ?? [];
  if (!text) return null;
  const tells = ["dropped", "superseded", "expired", "rejected", "withdrawn", "summarized", "dead_lettered"].includes(message.state);
  return { tone, text, reason: tells ? reason : "" };
}

/** Whether a message can be sent again. */
export function canRetry(message) {
  if (!isFinalMessage(message.state) || message.kind !== "user") return false;
  return Boolean(OUTCOMES[message.outcome]) || ["dropped", "expired", "rejected", "withdrawn", "dead_lettered"].includes(message.state);
}

/** Whether a run can go on where it was cut off. */
export const canResume = (run) => !run.isContinued && !run.rests && ["interrupted", "failed", "cancelled", "fenced"].includes(run.state);

const DOES = {
  starting: "begins", thinking: "thinks", acting: "works", compacting: "shortens the conversation", waiting: "waits",
  delivering: "delivers its answer",
};

/** What a run does at this moment, in a few words, and why; null when it has ended well. */
export function statusOf(run) {
  if (run.state === "succeeded") return null;
  if (run.rests) return { tone: "wait", text: "at rest", reason: run.reason, untilMs: 0 };
  if (isFinalRun(run.state)) {
    const text = run.state === "fenced" ? "did not end, and may say nothing more" : run.state;
    return { tone: run.state === "cancelled" ? "off" : "bad", text, reason: run.reason, untilMs: 0 };
  }
  if (run.isEnding) return { tone: "warn", text: "is being ended", reason: run.reason, untilMs: 0 };
  if (run.retry) {
    const text = `the model did not answer, attempt ${run.retry.attempt} failed: it is asked again`;
    return { tone: "warn", text, reason: run.retry.error, untilMs: run.retry.untilMs };
  }
  if (run.waiting) return { tone: "wait", text: "waits", reason: run.waiting.reason, untilMs: run.waiting.untilMs };
  if (run.plan?.state === "planning") return { tone: "run", text: "makes a plan", reason: "", untilMs: 0 };
  const calls = run.rounds.flatMap((round) => [...round.calls.values()]);
  const asked = calls.find((call) => call.state === "asked");
  if (asked) return { tone: "wait", text: "waits for an approval", reason: asked.name, untilMs: 0 };
  const running = calls.filter((call) => call.state === "running");
  const names = running.map((call) => call.name).slice(0, 3).join(", ");
  if (running.length) return { tone: "run", text: `runs ${names}`, reason: "", untilMs: 0 };
  const queued = calls.filter((call) => call.state === "queued");
  if (queued.length) return { tone: "wait", text: `waits for a slot in ${queued[0].lane || "its lane"}`, reason: "", untilMs: 0 };
  const isWriting = run.rounds.at(-1)?.text.length > 0;
  return { tone: "run", text: isWriting ? "writes" : DOES[run.state] ?? run.state, reason: "", untilMs: 0 };
}

/** What a call does, or how it ended: `{ tone, text }`. */
export function callStatus(call) {
  if (call.background) {
    const { state } = call.background;
    if (state === "running") return { tone: "run", text: "goes on in the background" };
    return { tone: state === "ok" ? "ok" : "bad", text: `ended in the background: ${state}` };
  }
  if (call.task && ["running", "queued"].includes(call.state)) {
    const { worker, state, progress } = call.task;
    if (state === "pending") return { tone: "wait", text: "waits for a worker" };
    const far = progress?.percent == null ? "" : `, ${Math.round(progress.percent)} %`;
    if (state === "started") return { tone: "run", text: `${worker || "a worker"} does it${far}` };
  }
  const words = {
    written: ["run", "is being written"], queued: ["wait", call.lane ? `queued in ${call.lane}` : "queued"], running: ["run", "runs"],
    asked: ["wait", "waits for an approval"], ok: ["ok", "done"], error: ["bad", "error"], denied: ["bad", "not allowed"],
    skipped: ["off", "skipped: a message came in between"], cancelled: ["off", "cancelled"], timed_out: ["bad", "took too long"],
    unknown: ["warn", "nobody knows how far it came"], background: ["run", "goes on in the background"],
  };
  const [tone, text] = words[call.state] ?? ["off", call.state || "…"];
  return { tone, text };
}
