/** How far the guide is, from what its session has told. Pure: no page, no requests. */

/** What the guide sends. The scripted model does what the lines say; a real one gets words. */
export const TEXTS = {
  scripted: {
    first: "wait 10\nthen\nwait 10\nthen\nI have waited.",
    steer: "Never mind the waiting: say hello.",
    many: "wait 4",
  },
  real: {
    first: "Count from one to thirty, in words, one number on each line, and say something about each of them.",
    steer: "Stop counting, and tell me how far you came.",
    many: "Answer with one word: hello.",
  },
};

/** How many messages fill a lane of this width and leave two that wait; never many. */
export function manyOf(width) {
  return Math.min(Math.max(1, width ?? 4) + 2, 10);
}

/** The beginning: nothing was sent. */
export const NOTHING = Object.freeze({
  first: "", // the id of the first message
  steer: "", // the id of the one that was steered
  phase: "unsent", // unsent, waiting, running, ended
  steering: "unsent", // unsent, parked, in, late
  run: "",
  outcome: "",
  answer: "",
  lines: Object.freeze([]), // what happened: { id, text, tone }
});

const LINES_MAX = 40;

/** What is known after one more event. Events that come twice change nothing. */
export function fold(state, type, facts, id = "") {
  if (id && state.lines.some((line) => line.id === id)) return state;
  const step = STEPS[type];
  const change = step ? step(state, facts.payload ? { ...facts.payload, ...facts } : facts) : null;
  if (!change) return state;
  const { line, tone = "off", ...rest } = change;
  const lines = line ? [...state.lines, { id: id || `${state.lines.length}`, text: line, tone }].slice(-LINES_MAX) : state.lines;
  return { ...state, ...rest, lines };
}

const STEPS = {
  "message.accepted": (state, facts) => {
    if (facts.mode === "steer") {
      const parked = { steer: facts.message_id, steering: facts.state === "parked" ? "parked" : "late" };
      return { ...parked, line: `Your second message is there: ${facts.reason}`, tone: "wait" };
    }
    if (state.first) return null;
    return { first: facts.message_id, phase: "waiting", line: "Your message is on disk: whatever happens now, it is not lost", tone: "ok" };
  },
  "turn.started": (state, facts) => ({
    run: facts.turn_id,
    phase: "running",
    outcome: "",
    line: `A run began: ${facts.reason}`,
    tone: "run",
  }),
  tool_start: (state, facts) => ({ line: `The model calls ${facts.tool_name}${facts.lane ? ` in lane ${facts.lane}` : ""}`, tone: "run" }),
  tool_end: (state, facts) => ({ line: `${facts.tool_name} has ended`, tone: "ok" }),
  "message.injected": (state, facts) => {
    if (facts.message_id !== state.steer) return null;
    return { steering: "in", line: "Steered: the run has taken your second message without being ended", tone: "ok" };
  },
  "turn.replied": (state, facts) => ({ answer: facts.text, line: "The agent has answered", tone: "ok" }),
  "turn.ended": (state, facts) => {
    const late = state.steering === "parked" ? { steering: "late" } : {};
    const isWell = facts.state === "succeeded";
    return { ...late, phase: "ended", outcome: facts.state, line: `The run has ${facts.state}`, tone: isWell ? "ok" : "bad" };
  },
};

/** Which steps are done, and which one comes next (from 1; 4: all are done). */
export function progress(state, isLookedAt) {
  const done = [state.phase === "running" || state.phase === "ended", state.steering === "in", Boolean(isLookedAt)];
  const next = done.findIndex((each) => !each);
  return { done, next: next < 0 ? 4 : next + 1 };
}

/** Why the second step cannot be done now; empty if it can. */
export function whyNoSteer(state) {
  if (state.phase === "unsent") return "Send the first message: only a run can be steered.";
  if (state.phase === "waiting") return "Its run begins in a moment.";
  if (state.phase === "ended") return "The run has ended already. Send the first message again, and steer it while it runs.";
  return "";
}
