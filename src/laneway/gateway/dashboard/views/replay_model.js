/** The replay of a run: its steps as a list, one of them in full, and what a comparison says. Pure. */
import { money, number, plural } from "../core/format.js";

/** Steps that only tell what somebody could watch; they decide nothing. */
const WATCHED = new Set(["event", "chunks"]);
const PARTS_MAX = 100;

const WORDS = {
  machine: "begin", base: "before", say: "told", add: "told", go_on: "goes on", line: "before", code: "prompt, tools", plan: "plan",
  ask: "asks", failed: "no answer", chunks: "pieces", answered: "answer", act: "calls", result: "result", amend: "result",
  take_over: "takes over", close: "round", leave_out: "summary", finish: "end", cut: "cut off", fail: "limit", event: "event",
  round: "round",
};
const TONES = {
  say: "wait", add: "wait", ask: "run", answered: "ok", act: "run", finish: "ok", cut: "warn", fail: "bad", failed: "warn", round: "ok",
};

/** The kind of a step in a word or two. */
export function kindOf(op) {
  return WORDS[op] ?? String(op).replaceAll("_", " ");
}

/** The tone of a step: a result that is no good stands out. */
export function toneOf(step) {
  if (step.op === "result" || step.op === "amend") return ["ok", undefined].includes(step.body?.status) ? "ok" : "bad";
  return TONES[step.op] ?? "off";
}

/** The steps that are listed: with or without those that only tell. The one that is selected is always there. */
export function listed(steps, { events = true, selected = 0 } = {}) {
  return events ? steps : steps.filter((each) => !WATCHED.has(each.op) || each.number === selected);
}

/** The number of a step of an address: a whole one, at least 1, at most so many; 1 for anything else. */
export function stepOf(text, total = Infinity) {
  const found = /^\d{1,9}$/.test(text ?? "") ? Number(text) : 1;
  return Math.max(1, Math.min(found, total || 1));
}

/** The step that is `by` further among those that are listed; the same at the end. */
export function stepAfter(steps, selected, by) {
  const at = steps.findIndex((each) => each.number === selected);
  if (at < 0) return steps[0]?.number ?? selected;
  return steps[Math.max(0, Math.min(steps.length - 1, at + by))].number;
}

/** Whether a run is over, by its state. */
export function isOver(state) {
  return ["succeeded", "failed", "cancelled", "interrupted", "fenced"].includes(state);
}

const UNRECORDED =
  "It was not recorded (record was off): its steps are told from checkpoints, and nobody knows what its model was sent.";

/** What is known about whether a run would go the same way today: `{ tone, title, text }`. */
export function verdictOf(replay, { recorded, isOver: over }) {
  const known = recorded ? "" : UNRECORDED;
  const open = over ? "" : "It is not over: this is what is written so far.";
  const more = [known, open].filter(Boolean).join(" ");
  if (replay.same) {
    const title = recorded ? "It would go the same way today" : "Its rounds would be the same today";
    return { tone: recorded ? "ok" : "off", title, text: more || "No model was asked for this, and no tool was called." };
  }
  const title = `It would go another way today, from step ${number(replay.step)} on`;
  return { tone: "warn", title, text: [`${capital(replay.where)}.`, more].join(" ").trim() };
}

function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : text;
}

/** What a comparison of two runs says: `{ tone, title }`. */
export function comparedWords(found) {
  if (found.same) return { tone: "ok", title: "Both runs are the same, step by step" };
  const { this: here, other: there } = found;
  const place = here.step === there.step ? "" : ` here and step ${number(there.step)} there`;
  return { tone: "warn", title: `They part at step ${number(here.step)}${place}: ${found.where}` };
}

/** What is said of a run and its fork beside where they part; empty of two other runs. */
export function forkWords(found) {
  if (!found.fork_run_id) return "";
  const who = found.fork_run_id === found.run_id ? "This run goes on from" : "The other run goes on from";
  const whose = found.fork_run_id === found.run_id ? "the other" : "this one";
  const told = found.told ? ` It is told: ${found.told}` : "";
  return `${who} step ${number(found.fork_step)} of ${whose}: up to there they are the same.${told}`;
}

/** What a fork from a step does first, by what the server says of the calls that were open there. */
export function forkStart(step) {
  const open = list(step.open_calls);
  const those = (fork) => open.filter((each) => each?.fork === fork);
  const [made, kept, unknown] = [those("made"), those("kept"), those("unknown")];
  const told = ["What has its result before this step is kept and not done again."];
  if (made.length) {
    const again = made.some((each) => each.has_begun) ? " once more" : "";
    told.push(`${named(made)} ${made.length === 1 ? "is" : "are"} made${again}, for real; to have the model decide anew, fork from the step`
      + " before that asks it.");
  }
  if (kept.length) told.push(`${named(kept)} had begun and ${kept.length === 1 ? "is" : "are"} not made again: the result is kept.`);
  if (unknown.length) {
    told.push(`${named(unknown)} had begun, and nobody knows what came of it: ${unknown.length === 1 ? "it is" : "they are"} not made`
      + " again, and the model is told so.");
  }
  return told.join(" ");
}

function named(calls) {
  const tools = [...new Set(calls.map((each) => each.tool))];
  const more = tools.length > 3 ? " and others" : "";
  return `${plural(calls.length, "call")} (${tools.slice(0, 3).join(", ")}${more})`;
}

// ---- one step in full ----

/**
 * A step as parts to be shown: `[{ name, facts: [[name, value]] } | { name, text } | { name, value }]`. Whatever is not
 * known of it is shown as it is written; a body that was cut may lack anything.
 */
export function partsOf(step) {
  const body = step.body ?? {};
  const make = PARTS[step.op];
  const parts = make ? make(body) : [{ name: "As it is written", value: body }];
  const found = parts.filter((each) => each && (each.facts ? each.facts.length : "value" in each || Boolean(each.text)));
  if (found.length <= PARTS_MAX) return found;
  const rest = { name: `${number(found.length - PARTS_MAX)} more parts`, text: "laneway run export writes them into a file." };
  return [...found.slice(0, PARTS_MAX), rest];
}

function facts(...pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return { name: "", facts: known.map(([name, value]) => [name, String(value)]) };
}

function list(value) {
  return Array.isArray(value) ? value : [];
}

function said(prompts, name = "") {
  return list(prompts).map((each) => {
    if (typeof each === "string") return { name: name || "Said by the user", text: each };
    const files = list(each?.attachments).length;
    const who = name || `Said by ${each?.role ?? "somebody"}`;
    return { name: files ? `${who} (${plural(files, "attachment")})` : who, text: each?.text ?? "" };
  });
}

function answer(given) {
  const one = given ?? {};
  const [ins, outs, cached, , cost] = list(one.usage);
  const price = cost === null || cost === undefined ? "" : money(cost);
  const calls = list(one.calls).map((call) => ({ name: `Wants ${list(call)[1] ?? "a call"}`, text: pretty(list(call)[2] ?? "") }));
  return [
    { name: "Text", text: one.text },
    { name: "Reasoning", text: one.reasoning },
    ...calls,
    facts(["Model", one.model], ["Tokens in", ins], ["Tokens out", outs], ["From the cache", cached || ""], ["Cost", price]),
  ];
}

/** Arguments that are JSON are easier to read with line breaks. */
function pretty(text) {
  try {
    return typeof text === "string" ? JSON.stringify(JSON.parse(text), null, 2) : JSON.stringify(text, null, 2);
  } catch {
    return text;
  }
}

function result(one) {
  return [
    facts(["Tool", one?.tool], ["Ended", one?.status?.replaceAll("_", " ")], ["Exit code", one?.exit_code], ["Call", one?.call]),
    { name: "Output", text: one?.output },
    one?.artifact ? { name: "Kept as", text: String(one.artifact) } : null,
  ];
}

function round(one) {
  return [
    facts(["Round", one?.n], ["State", one?.state]), ...said(one?.prompts), ...answer(one?.answer),
    ...list(one?.results).map((each) => ({ name: `Result of ${each?.tool ?? "a call"} (${each?.status ?? "?"})`, text: each?.output })),
  ];
}

function spoken(each) {
  if (each?.prompt !== undefined) return said([each.prompt]);
  if (each?.results) return each.results.map((one) => ({ name: `Result of ${one?.tool ?? "a call"}`, text: one?.output }));
  const parts = answer(each?.answer).filter((part) => !part.facts);
  return parts.map((part) => ({ ...part, name: part.name === "Text" ? "Said by the model" : part.name }));
}

const PARTS = {
  machine: (body) => [facts(["Rounds of tools at most", list(body.limits)[0]], ["Calls in one answer at most", list(body.limits)[1]],
    ["First round", body.first], ["Conversation", body.c], ["Goes on for run", body.from], ["Steps of a plan at most", body.plan])],
  base: (body) => list(body.said).flatMap(spoken),
  say: (body) => [...said(body.prompts),
    facts(["Skips calls", list(body.skipped).join(", ")], ["Messages", list(body.messages).join(", ")])],
  add: (body) => said(body.prompts),
  go_on: (body) => [...said(body.prompts), facts(["Messages", list(body.messages).join(", ")])],
  code: (body) => [{ name: "System prompt", text: body.system || "(none)" },
    ...list(body.tools).map((each) => ({ name: `Tool ${each?.name ?? ""}`, value: each }))],
  plan: (body) => [facts(["Steps at most", body.most]), ...said([body.prompt ?? ""], "What asks for it")],
  ask: ({ purpose, n, same, new: parts, system, tools, more }) => [
    facts(["For", purpose], ["Round", n || ""], ["Parts as the last time", same], ["New parts", list(parts).length],
      ["Tools", Object.keys(tools ?? {}).length]),
    { name: "What the model is sent is written as hashes", value: { system, new: parts, tools, more } }],
  failed: (body) => [{ name: "What the provider said", text: typeof body.error === "string" ? body.error : pretty(body.error ?? "") }],
  chunks: (body) => [facts(["Pieces", list(body.pieces).length])],
  answered: (body) => [facts(["Round", body.n], ["Is the answer of the run", body.is_final ? "yes" : "no"]), ...answer(body.answer),
    ...list(body.at_once).map((each) => ({ name: `Ended at once: ${each?.tool ?? "a call"}`, text: each?.output }))],
  act: (body) => [facts(["Calls", list(body.calls).join(", ")])],
  result: (body) => result(body),
  amend: (body) => [facts(["Round", body.n]), ...result(body)],
  close: (body) => [facts(["Round", body.n]), ...said(body.prompts)],
  finish: (body) => [facts(["Round", body.n])],
  fail: (body) => [{ name: "Why", text: body.reason }],
  event: (body) => [facts(["Event", body.type]), { name: "What it told", value: body.data ?? {} }],
  round: (body) => round(body.round),
  take_over: (body) => round(body.round),
};
