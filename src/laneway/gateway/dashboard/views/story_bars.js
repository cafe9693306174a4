/**
 * The story of a run or a message as bars on one scale: what waited, and what worked. Pure.
 * A time that nobody knows is null, and draws nothing.
 */
import { duration } from "../core/format.js";

const ROWS_MAX = 80;
const FAILED = ["error", "timed_out", "unknown"];

/** What the kinds of bars are called in the key below them. */
export const KINDS = {
  model: "model", tool: "tool", failed: "failed", run: "run before it", lane: "lane", worker: "worker",
  boundary: "safe point", approval: "approval", limit: "limit", retry: "retry", held: "held", paused: "paused", compacting: "compacting",
  budget: "budget",
};

const WAITS = {
  run: "another run of its session", lane: "a slot", held: "somebody who set it aside", limit: "the provider's limit",
  retry: "the next try of the model", paused: "the session to be resumed", compacting: "the conversation to be summarised",
  budget: "a budget that is used up", approval: "an approval", worker: "a worker", boundary: "the next safe point of a run",
};

/** What a kind of wait is for, in words. */
export function waitWords(kind) {
  return WAITS[kind] ?? kind;
}

/**
 * Rows of bars: `{ rows: [{ key, label, segments: [{ kind, from, to, open, title }] }], from, to, left }`.
 * `now` ends what is still open. `left` rows at the beginning are not drawn.
 */
export function bars(run, message, now) {
  const rows = [];
  if (message?.waits.length) {
    rows.push({ key: "message", label: "message", segments: message.waits.map((each) => waitSegment(each, now)) });
  }
  for (const round of run?.rounds ?? []) {
    rows.push(roundRow(round, now));
    for (const call of round.calls) rows.push(callRow(run, round, call, now));
  }
  const drawn = rows.filter((each) => each.segments.length);
  const starts = drawn.flatMap((row) => row.segments.map((each) => each.from));
  const ends = drawn.flatMap((row) => row.segments.map((each) => each.to));
  const from = least([message?.message.arrived_ms ?? run?.run.began_ms, ...starts]);
  const to = Math.max(from + 1, most([run?.run.ended_ms, run && !run.is_over ? now : null, ...ends, from]));
  return { rows: drawn.slice(-ROWS_MAX), from, to, left: Math.max(0, drawn.length - ROWS_MAX) };
}

function least(times) {
  return Math.min(...times.filter((each) => Number.isFinite(each)));
}

function most(times) {
  return Math.max(...times.filter((each) => Number.isFinite(each)));
}

function segment(kind, from, to, now, title) {
  if (!Number.isFinite(from)) return null;
  const end = Math.max(from, to ?? now);
  return { kind, from, to: end, open: to === null || to === undefined, title: `${title}, ${duration(end - from)}` };
}

function waitSegment(wait, now) {
  return segment(wait.kind, wait.began_ms, wait.ended_ms, now, `waited for ${waitWords(wait.kind)}`);
}

function roundRow(round, now) {
  const isOpen = round.state === "asking";
  const asked = segment("model", round.asked_ms, isOpen ? null : round.answered_ms, now, `model, round ${round.number}`);
  const timed = round.waits.filter((each) => each.kind !== "cheaper"); // a choice, which took no time
  const waits = timed.map((each) => waitSegment(each, isOpen ? now : round.answered_ms ?? now));
  return { key: roundKey(round), label: `model ${round.number}`, segments: [asked, ...waits].filter(Boolean) };
}

function callRow(run, round, call, now) {
  const parts = [];
  for (const each of run.approvals.filter((approval) => approval.call_id === call.call_id)) {
    const title = `${call.tool} waited for an approval`;
    if (inRound(run, round, each)) parts.push(segment("approval", each.asked_ms, each.ended_ms, now, title));
  }
  // A call whose end nobody noted is not drawn as one that goes on: only one without a result does.
  const isOpen = ["queued", "out", "running"].includes(call.status);
  const end = call.ended_ms ?? (isOpen && !run.is_over ? null : undefined);
  const queued = call.out_ms ?? call.began_ms ?? end;
  const lane = call.queued_ms !== null && queued !== undefined;
  if (lane) parts.push(segment("lane", call.queued_ms, queued, now, `${call.tool} waited in lane ${call.lane}`));
  const taken = call.began_ms ?? end;
  const isOut = call.out_ms !== null && taken !== undefined;
  if (isOut) parts.push(segment("worker", call.out_ms, taken, now, `${call.tool} waited for a worker`));
  const kind = FAILED.includes(call.status) ? "failed" : "tool";
  if (call.began_ms !== null && end !== undefined) parts.push(segment(kind, call.began_ms, end, now, `${call.tool} ran`));
  const segments = parts.filter((each) => each && (each.to > each.from || each.kind === kind));
  return { key: callKey(round, call), label: call.tool, segments };
}

/** A provider may use one call id in every round: an approval belongs to the round in whose time it was asked. */
function inRound(run, round, approval) {
  const next = run.rounds.find((each) => each.number > round.number);
  const after = round.answered_ms === null || approval.asked_ms >= round.answered_ms;
  return after && (!next?.asked_ms || approval.asked_ms <= next.asked_ms);
}

/** What a round is known by in the page. */
export function roundKey(round) {
  return `round-${round.number}`;
}

/** What a call is known by in the page. */
export function callKey(round, call) {
  return `call-${round.number}-${round.calls.indexOf(call)}`;
}

/** Four or five even places on a scale: `[{ at, text }]`, `at` from 0 to 1. */
export function ticks(from, to) {
  const span = to - from;
  const units = [1, 2, 5].flatMap((each) => [1, 10, 100, 1000].map((by) => each * by));
  const minutes = [15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800].map((each) => each * 1000);
  const step = [...units, 10000, ...minutes].sort((a, b) => a - b).find((each) => span / each <= 5) ?? span / 5;
  const found = [];
  for (let at = 0; at <= span * 0.92; at += step) found.push({ at: at / span, text: duration(at) });
  return found;
}

/** How long it waited and how long it worked in all; times that overlap count once. */
export function totals(run, message, now) {
  const { rows } = bars(run, message, now);
  const works = rows.flatMap((row) => workOf(row));
  const waits = rows.flatMap((row) => row.segments.filter((each) => !isWork(each)));
  return { waited: covered(waits), worked: covered(works) };
}

function isWork(segment) {
  return ["model", "tool", "failed"].includes(segment.kind);
}

/** When a row was at work: the bar of a model begins when its round does, and what it waits for lies upon it. */
function workOf(row) {
  const waits = row.segments.filter((each) => !isWork(each)).sort((a, b) => a.from - b.from);
  return row.segments.filter(isWork).flatMap((work) => {
    const parts = [];
    let from = work.from;
    for (const wait of waits) {
      if (wait.from > from) parts.push({ from, to: Math.min(wait.from, work.to) });
      from = Math.max(from, wait.to);
    }
    return [...parts, { from, to: work.to }].filter((each) => each.to > each.from);
  });
}

function covered(segments) {
  let sum = 0;
  let until = -Infinity;
  for (const each of [...segments].sort((a, b) => a.from - b.from)) {
    sum += Math.max(0, each.to - Math.max(each.from, until));
    until = Math.max(until, each.to);
  }
  return sum;
}
