/** One run as a chat shows it: its rounds with text, thoughts and calls, its plan, its sub-agents. Pure. */

const OUTPUT_MAX = 20000;
const PIECE = 2000;
const PIECE_MAX = 8000;

/** A run of which nothing is known yet. */
export function newRun(id) {
  return {
    id, v: 0, seq: 0, eventSeq: 0, lastSeq: 0, state: "", reason: "", isEnding: false, messages: [], steered: [], lines: new Map(),
    entered: new Map(), // when messages came in, for a run of which only the stored events were heard
    again: [], // of its messages those that an earlier run began over
    againStates: "", // what had become of those when they were shown last
    isContinued: false, // a later run took up its messages
    rests: false, // its session has left memory, and its messages wait there
    rounds: [], isWhole: false, conversation: null, mode: "", beganMs: 0, endedMs: 0, answer: null, tokens: 0, cost: null,
    toolCalls: 0, plan: null, children: new Map(), waiting: null, retry: null, waitsFor: "", resumedFrom: "", notes: [], lastChoice: "",
  };
}

/** A long text in pieces: only the last of them changes while it grows. */
export function addText(pieces, text) {
  const last = pieces.length - 1;
  const rest = last < 0 ? "" : pieces[last];
  const isFull = (rest.length > PIECE && rest.endsWith("\n")) || (rest.length > PIECE_MAX && /\s$/.test(rest));
  if (last < 0 || isFull) pieces.push(text);
  else pieces[last] = rest + text;
  return pieces;
}

/** The round under way, or the one with this number. */
export function roundOf(run, turn) {
  const last = run.rounds.at(-1);
  if (last && (turn === undefined || last.turn === turn)) return last;
  const known = turn === undefined ? null : run.rounds.find((each) => each.turn === turn);
  if (known) return known;
  const round = { turn: turn ?? 0, text: [], reasoning: [], calls: new Map(), steered: [], v: 0 };
  run.rounds.push(round);
  return round;
}

function callOf(run, payload, facts) {
  // A call belongs to the round that made it, also when its end comes later.
  const round = run.rounds.findLast((each) => each.calls.has(payload.tool_id)) ?? roundOf(run);
  let call = round.calls.get(payload.tool_id);
  if (!call) {
    call = {
      id: payload.tool_id, name: payload.tool_name, state: "", lane: "", args: null, writing: "", output: "", queuedMs: 0, startedMs: 0,
      endedMs: 0, durationMs: null, exitCode: null, artifact: null, attempt: 1, task: null, background: null, denied: null, approvalId: "",
      v: 0,
    };
    round.calls.set(call.id, call);
  }
  Object.assign(call, facts);
  call.v += 1;
  round.v += 1;
  return call;
}

function ofTask(run, payload, facts) {
  for (const round of run.rounds) {
    for (const call of round.calls.values()) {
      if (call.task?.id !== payload.task_id) continue;
      Object.assign(call.task, facts);
      call.v += 1;
      round.v += 1;
    }
  }
}

function ofChild(run, payload, facts) {
  const none = { id: payload.task_id, agent: "", text: "", key: "", toolId: "", state: "", doing: "" };
  run.children.set(payload.task_id, { ...none, ...run.children.get(payload.task_id), ...facts });
}

const tail = (text) => text.slice(-OUTPUT_MAX);

const FOLDS = {
  start: (run, payload, { at_ms: at }) => {
    run.isWhole = true;
    run.beganMs ||= at;
    for (const id of payload.messages) if (!run.messages.includes(id)) run.messages.push(id);
  },
  run_resumed: (run, payload) => {
    run.resumedFrom = payload.resumed_from;
  },
  turn_start: (run, payload) => {
    roundOf(run, payload.turn);
    run.state = "thinking";
  },
  text_delta: (run, payload) => {
    const round = roundOf(run);
    addText(round.text, payload.text);
    round.v += 1;
  },
  reasoning_delta: (run, payload) => {
    const round = roundOf(run);
    addText(round.reasoning, payload.text);
    round.v += 1;
  },
  model_retry: (run, payload, { at_ms: at }) => {
    const round = roundOf(run);
    round.text = [];
    round.reasoning = [];
    round.v += 1;
    run.retry = { attempt: payload.attempt, error: payload.error, untilMs: at + payload.delay_ms };
  },
  // What a budget has chosen. Why a run waits, or has failed, says it better: then the note goes.
  budget_threshold_hit: (run, payload) => {
    note(run, payload.message ?? `budget ${payload.resource} is nearly used up`);
    if (payload.kind === "hard") run.lastChoice = run.notes.at(-1);
  },
  run_waiting: (run, payload) => {
    forgetChoice(run);
    run.waiting = { reason: payload.reason, untilMs: payload.until_ms };
    run.state = "waiting";
  },
  error: (run) => forgetChoice(run),
  tool_input_delta: (run, payload) => {
    const call = callOf(run, payload, {});
    call.state ||= "written";
    call.writing = tail(call.writing + payload.text);
  },
  tool_queued: (run, payload, { at_ms: at }) => {
    callOf(run, payload, { state: "queued", lane: payload.lane, queuedMs: at });
    run.state = "acting";
  },
  tool_start: (run, payload, { at_ms: at }) => {
    const facts = { args: payload.args, lane: payload.lane, startedMs: at, attempt: payload.attempt };
    callOf(run, payload, { ...facts, state: "running", output: "" });
    run.state = "acting";
  },
  tool_output_delta: (run, payload) => {
    const call = callOf(run, payload, {});
    call.output = tail(call.output + payload.text);
  },
  tool_end: (run, payload, { at_ms: at }) => {
    callOf(run, payload, {
      state: payload.status, output: payload.tool_output.slice(0, OUTPUT_MAX), endedMs: at, durationMs: payload.duration_ms,
      exitCode: payload.exit_code, artifact: payload.artifact,
    });
  },
  tool_backgrounded: (run, payload) => {
    callOf(run, payload, { background: { id: payload.background_id, state: "running" } });
  },
  background_end: (run, payload) => {
    callOf(run, payload, {
      background: { id: payload.background_id, state: payload.status }, output: payload.tool_output.slice(0, OUTPUT_MAX),
      durationMs: payload.duration_ms,
    });
  },
  permission_denied: (run, payload) => {
    callOf(run, payload, { state: "denied", args: payload.args, denied: { gate: payload.gate, reason: payload.reason } });
  },
  confirmation_required: (run, payload) => {
    callOf(run, payload, { state: "asked", args: payload.args, approvalId: payload.approval_id });
    run.state = "waiting";
  },
  confirmation_received: (run, payload) => {
    callOf(run, payload, { state: payload.approved ? "queued" : "denied" });
  },
  confirmation_timeout: (run, payload) => {
    callOf(run, payload, { state: payload.action_taken === "auto_approved" ? "queued" : "denied" });
  },
  external_task_pending: (run, payload) => {
    if (!payload.tool_id) return;
    const task = { id: payload.task_id, state: "pending", worker: "", progress: null };
    callOf(run, { tool_id: payload.tool_id, tool_name: payload.command_type }, { task });
  },
  external_task_started: (run, payload) => ofTask(run, payload, { state: "started", worker: payload.worker, progress: null }),
  external_task_progress: (run, payload) => {
    ofTask(run, payload, { progress: { text: payload.text, percent: payload.percent }, worker: payload.worker });
  },
  external_task_completed: (run, payload) => ofTask(run, payload, { state: payload.state, worker: payload.worker }),
  planning_start: (run) => {
    run.plan = { state: "planning", reason: "", steps: [] };
  },
  planning_end: (run, payload) => {
    run.plan = { steps: [], ...run.plan, state: payload.steps ? "made" : "none", reason: payload.reason };
  },
  task_updated: (run, payload) => {
    run.plan = { reason: "", ...run.plan, state: "made", steps: payload.tasks };
  },
  subagent_start: (run, payload, { at_ms: at }) => {
    const facts = { agent: payload.agent, text: payload.description, key: payload.child_session_id, toolId: payload.tool_id };
    ofChild(run, payload, { ...facts, state: "running", beganMs: at });
  },
  subagent_progress: (run, payload) => {
    const { type = "", payload: inner = {} } = payload.event ?? {};
    if (type === "tool_start") ofChild(run, payload, { doing: inner.tool_name });
    else if (type === "text_delta") ofChild(run, payload, { doing: "writes" });
  },
  subagent_end: (run, payload) => {
    const facts = { state: payload.status, agent: payload.agent, key: payload.child_session_id };
    ofChild(run, payload, { ...facts, durationMs: payload.duration_ms, doing: "" });
  },
  steered: (run, payload) => {
    const round = roundOf(run);
    round.steered.push({ messages: payload.messages, skipped: payload.skipped, text: payload.text });
    round.v += 1;
    for (const id of payload.messages) if (!run.steered.includes(id)) run.steered.push(id);
  },
  command_retry: (run, payload) => note(run, `${payload.command_type} failed and is tried again (attempt ${payload.attempt})`),
  command_dead_lettered: (run, payload) => {
    note(run, `${payload.command_type} was given up after ${payload.attempts} attempts: ${payload.error}`);
  },
  hook_failed: (run, payload) => {
    note(run, `the hook ${payload.hook_id} failed${payload.blocked ? " and blocked what it guards" : ""}: ${payload.error}`);
  },
  context_compacted: (run, payload) => {
    note(run, `the conversation was shortened: ${payload.before_messages} → ${payload.after_messages} messages`);
  },
  end: (run, payload) => {
    run.tokens = payload.total_tokens;
    run.cost = payload.cost;
    run.toolCalls = payload.tool_calls_count;
    run.state = "delivering";
  },
};

function forgetChoice(run) {
  if (run.lastChoice) run.notes = run.notes.filter((each) => each !== run.lastChoice);
  run.lastChoice = "";
}

function note(run, text) {
  run.notes = [...run.notes.slice(-19), text];
}

const STILL = new Set([
  "run_waiting", "model_retry", "budget_threshold_hit", "hook_failed", "queue_alert", "confirmation_warning", "confirmation_escalated",
  "subagent_progress",
]);

/** Take in one event of a run. */
export function foldRun(run, type, payload, metadata) {
  run.lastSeq = Math.max(run.lastSeq, metadata.seq || 0);
  if (!STILL.has(type)) {
    run.waiting = null; // it goes on
    if (type !== "turn_start") run.retry = null;
  }
  FOLDS[type]?.(run, payload, metadata);
  if (type !== "budget_threshold_hit") run.lastChoice = "";
  run.v += 1;
}

function callSoFar(call) {
  return {
    id: call.tool_id, name: call.tool_name, state: call.state ?? "", lane: call.lane ?? "", args: call.args, writing: "",
    output: call.output, approvalId: call.approval_id ?? "", v: 0,
    queuedMs: call.queued_ms ?? 0, startedMs: call.started_ms ?? 0, endedMs: call.ended_ms ?? 0, durationMs: call.duration_ms ?? null,
    exitCode: call.exit_code ?? null, artifact: call.artifact ?? null, attempt: call.attempt ?? 1, denied: call.denied ?? null,
    task: call.task ? { id: call.task.task_id, state: call.task.state, worker: call.task.worker, progress: call.task.progress } : null,
    background: call.background ? { id: call.background_id, state: call.background } : null,
  };
}

/** Replace what was known of a run by what it has told so far. */
export function replaceRun(run, facts) {
  const pieces = (text) => (text ? [text] : []);
  run.rounds = [...facts.rounds, facts].map((one) => ({
    turn: one.turn, text: pieces(one.text), reasoning: pieces(one.reasoning), v: run.v + 1,
    calls: new Map(one.calls.map((call) => [call.tool_id, callSoFar(call)])),
    steered: (one.steered ?? []).map((each) => ({ messages: each.messages, skipped: each.skipped, text: "" })),
  }));
  for (const each of run.rounds.flatMap((round) => round.steered)) {
    for (const id of each.messages) if (!run.steered.includes(id)) run.steered.push(id);
  }
  run.messages = run.messages.filter((id) => !run.steered.includes(id));
  run.isWhole = true;
  run.state ||= "thinking";
  run.beganMs ||= facts.began_ms ?? 0;
  run.resumedFrom = facts.resumed_from || run.resumedFrom;
  run.plan = facts.plan ?? null;
  run.waitsFor = facts.waits_for ?? "";
  run.waiting = facts.waiting ? { reason: facts.waiting.reason, untilMs: facts.waiting.until_ms } : null;
  run.retry = facts.retry ? { attempt: facts.retry.attempt, error: facts.retry.error, untilMs: 0 } : null;
  run.children = new Map((facts.children ?? []).map((each) => [each.task_id, {
    id: each.task_id, agent: each.agent, text: each.description, key: each.child_session_id, toolId: each.tool_id, state: each.state,
    beganMs: each.began_ms, durationMs: each.duration_ms, doing: "",
  }]));
  run.lastSeq = facts.last_seq ?? 0;
  run.v += 1;
}
