// One session as the server tells it: a plain answer, one with a call and a message that came in, one that was dropped.
// It is put before the scripts of test_chat_model.py.
const at = (seq) => 1000 + seq * 10;
const stored = (seq, type, facts) => [type, { type, seq, at_ms: at(seq), session_key: "s", reason: "", ...facts }];
const told = (seq, run, type, payload) => [type, { version: 1, type, payload, metadata: { run_id: run, seq, at_ms: at(seq) } }];
const message = (seq, id, type, state, more = {}) => stored(seq, `message.${type}`, { message_id: id, state, turn_id: "", ...more });
const EVENTS = [
  message(2, "m1", "accepted", "queued", { position: 1, mode: "collect" }),
  stored(4, "turn.started", { turn_id: "t1", state: "starting", messages: ["m1"], mode: "collect" }),
  message(5, "m1", "started", "running", { turn_id: "t1" }),
  told(1, "t1", "start", { prompt: "hi", messages: ["m1"] }),
  told(2, "t1", "turn_start", { turn: 1 }),
  told(3, "t1", "text_delta", { text: "Hel" }),
  told(4, "t1", "text_delta", { text: "lo" }),
  told(5, "t1", "end", { text: "Hello", total_tokens: 7, cost: 0.5, tool_calls_count: 0 }),
  stored(8, "turn.replied", { turn_id: "t1", state: "delivering", text: "Hello", part: 1, message_id: "m1" }),
  stored(9, "turn.ended", { turn_id: "t1", state: "succeeded", run_ms: 40, answered: true, answer: "Hello" }),
  message(10, "m1", "ended", "ran", { turn_id: "t1", outcome: "succeeded" }),
  message(12, "m2", "accepted", "queued", { position: 1, mode: "collect" }),
  stored(14, "turn.started", { turn_id: "t2", state: "starting", messages: ["m2"], mode: "collect" }),
  message(15, "m2", "started", "running", { turn_id: "t2" }),
  told(6, "t2", "start", { prompt: "do", messages: ["m2"] }),
  told(7, "t2", "turn_start", { turn: 1 }),
  told(8, "t2", "reasoning_delta", { text: "hm" }),
  told(9, "t2", "tool_queued", { tool_id: "c1", tool_name: "bash", lane: "execute" }),
  told(10, "t2", "tool_start", { tool_id: "c1", tool_name: "bash", args: { command: "ls" }, lane: "execute", attempt: 1 }),
  told(11, "t2", "tool_output_delta", { tool_id: "c1", tool_name: "bash", text: "a" }),
  message(17, "m3", "accepted", "parked", { position: 1, mode: "steer" }),
  message(19, "m4", "accepted", "queued", { position: 1, mode: "collect" }),
  message(20, "m4", "ended", "dropped", { reason: "one too many" }),
  told(12, "t2", "tool_end", { tool_id: "c1", tool_name: "bash", tool_output: "a\nb", status: "ok", exit_code: 0, artifact: null,
    duration_ms: 30 }),
  message(22, "m3", "injected", "injected", { turn_id: "t2", boundary: 1 }),
  told(13, "t2", "steered", { messages: ["m3"], text: "also", skipped: [] }),
  told(14, "t2", "turn_end", { turn: 1, total_tokens: 3 }),
  told(15, "t2", "turn_start", { turn: 2 }),
  told(16, "t2", "text_delta", { text: "Do" }),
  told(17, "t2", "model_retry", { attempt: 1, delay_ms: 5, error: "cut" }),
  told(18, "t2", "text_delta", { text: "Done." }),
  told(19, "t2", "end", { text: "Done.", total_tokens: 9, cost: null, tool_calls_count: 1 }),
  stored(26, "turn.replied", { turn_id: "t2", state: "delivering", text: "Done.", part: 1, message_id: "m2" }),
  stored(27, "turn.ended", { turn_id: "t2", state: "succeeded", run_ms: 90, answered: true, answer: "Done." }),
  message(28, "m2", "ended", "ran", { turn_id: "t2", outcome: "succeeded" }),
  message(29, "m3", "ended", "steered", { turn_id: "t2", outcome: "succeeded" }),
];
const TEXTS = { m1: "hi", m2: "do", m3: "also", m4: "and more" };
const ARRIVED = { m1: 1, m2: 11, m3: 16, m4: 18 };
const LINES = [[6, "t1", "user", "m1", "hi"], [7, "t1", "assistant", "", "Hello"], [16, "t2", "user", "m2", "do"],
  [23, "t2", "user", "m3", "also"], [25, "t2", "assistant", "", "Done."]];

/** What the routes say of it after some of its events. */
function pageAt(count) {
  const seen = EVENTS.slice(0, count).filter(([, facts]) => facts.seq);
  const seq = seen.at(-1)?.[1].seq ?? 0;
  const runs = new Map(), messages = new Map();
  for (const [type, facts] of seen) {
    if (type === "turn.started") {
      runs.set(facts.turn_id, { run_id: facts.turn_id, seq: facts.seq - 1, state: "thinking", reason: "", messages: facts.messages,
        steered: [], answer: null, mode: facts.mode, conversation: 1, began_ms: facts.at_ms, ended_ms: null, tokens: 0 });
    } else if (type === "turn.ended") {
      Object.assign(runs.get(facts.turn_id), { state: facts.state, answer: facts.answer, ended_ms: facts.at_ms });
    } else if (type.startsWith("message.")) {
      const id = facts.message_id;
      const known = messages.get(id) ?? { message_id: id, seq: ARRIVED[id], text: TEXTS[id], kind: "user", sender: null, channel: "",
        attachments: [], arrived_ms: facts.at_ms, retry_of: null, mode: facts.mode };
      messages.set(id, { ...known, disposition: facts.state, outcome: facts.outcome ?? null, reason: facts.reason,
        run_id: facts.turn_id || null, position: facts.position ?? null });
      if (type === "message.injected") runs.get(facts.turn_id).steered.push(id);
    }
  }
  const waits = (each) => ["queued", "parked", "held"].includes(each.disposition);
  return {
    conversation: 1, seq, before: null, runs: [...runs.values()], messages: [...messages.values()].filter((each) => !waits(each)),
    lines: LINES.filter(([line]) => line <= seq + 1).map(([at_, run, role, id, text]) => ({ seq: at_, at_ms: 0, role, text, conversation: 1,
      message_id: id, run_id: run, sender: "" })),
    waiting: [...messages.values()].filter(waits),
  };
}

/** What a page shows of a chat, without how it was learned. */
function shape(chat, blocks) {
  return blocks.blocksOf(chat).map((block) => {
    if (block.kind === "message") return ["message", block.message.id, block.message.text, block.message.state, block.message.reason];
    if (block.kind !== "run") return [block.kind];
    const run = block.run;
    const said = blocks.contentOf(chat, run).flatMap((item) => {
      if (item.kind === "steered") return item.ids.map((id) => `in: ${chat.messages.get(id).text}`);
      return [item.kind === "round" ? item.round.text.join("") : item.text].filter(Boolean);
    });
    return ["run", run.id, run.state, run.messages.map((id) => chat.messages.get(id).text), said, run.answer];
  });
}
const learn = (chat) => {
  for (const [id, message] of chat.messages) {
    if (!message.isKnown) Object.assign(message, { text: TEXTS[id], isKnown: true });
  }
};
const blocks = await import(new URL("./chat_blocks.js", given.base).href);
const runs = await import(new URL("./chat_run.js", given.base).href);
/** What the server says of runs under way to somebody who comes after so many events. */
const soFar = (upTo) => {
  const open = new Map();
  for (const [type, facts] of EVENTS.slice(0, upTo)) {
    if (type === "turn.ended") open.delete(facts.turn_id);
    if (!facts.metadata) continue;
    const id = facts.metadata.run_id;
    if (type === "start") open.set(id, runs.newRun(id));
    if (open.has(id)) runs.foldRun(open.get(id), type, facts.payload, facts.metadata);
  }
  return [...open.values()].map((run) => {
    const shown = (round) => ({ turn: round.turn, text: round.text.join(""), reasoning: round.reasoning.join(""),
      calls: [...round.calls.values()].map((call) => ({ tool_id: call.id, tool_name: call.name, state: call.state,
        lane: call.lane, args: call.args, output: call.output })),
      steered: round.steered });
    const rounds = run.rounds.length ? run.rounds.map(shown) : [shown({ turn: 0, text: [], reasoning: [], calls: new Map(),
      steered: [] })];
    return { run_id: run.id, messages: [...run.messages, ...run.steered], ...rounds.at(-1), rounds: rounds.slice(0, -1),
      plan: null, children: [], waiting: null, retry: null, waits_for: "", began_ms: 0, last_seq: run.lastSeq };
  });
};
