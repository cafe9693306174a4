/** What the overview says, from what the server told. Pure: no page, no requests. */
import { plural } from "../core/format.js";

/** The kinds of things that need somebody, most urgent first. `route`: where all of them are. */
export const KINDS = [
  { name: "approvals", title: "Approvals", route: "approvals", tone: "warn" },
  { name: "ledger", title: "Unknown outcomes", route: "ledger", tone: "bad" },
  { name: "runs", title: "Runs that broke", route: "sessions", tone: "bad" },
  { name: "dead_letters", title: "Dead letters", route: "letters", tone: "bad" },
  { name: "tasks", title: "Tasks without a worker", route: "tasks", tone: "warn" },
  { name: "lanes", title: "Paused lanes", route: "lanes", tone: "warn" },
  { name: "limits", title: "Closed for a while", route: "limits", tone: "wait" },
];

/** Those kinds of which there is something, with what there is. */
export function needs(attention) {
  return KINDS.filter((kind) => attention?.[kind.name]?.count > 0).map((kind) => ({ ...kind, ...attention[kind.name] }));
}

/** How many things need somebody: "3", or "200+" if not all were counted. */
export function countOf({ count, more }) {
  return more ? `${count}+` : String(count);
}

/** The whole page in one sentence. */
export function sentenceOf(now, attention) {
  const runs = now.running ? `${plural(now.running, "session is", "sessions are")} at work` : "nothing runs";
  const waits = now.waiting ? `${plural(now.waiting, "message waits", "messages wait")}` : "nothing waits";
  const found = needs(attention);
  const total = found.reduce((sum, each) => sum + each.count, 0);
  const isMore = found.some((each) => each.more);
  const things = isMore ? `more than ${total} things need` : plural(total, "thing needs", "things need");
  const care = total ? `${things} you` : "nothing needs you";
  const text = `${runs}, ${waits}, ${care}.`;
  return text[0].toUpperCase() + text.slice(1);
}

const DOING = {
  model: { tone: "run", text: "model" },
  tools: { tone: "run", text: "tools" },
  waiting: { tone: "wait", text: "waits" },
  starting: { tone: "run", text: "begins" },
  ending: { tone: "off", text: "ends" },
};

/** A word and its tone for what a run does. */
export function doingOf(work) {
  return DOING[work.doing] ?? { tone: "off", text: work.state };
}

/** The words for what a run does, without the one that its badge says already. */
export function restOf(work) {
  const said = doingOf(work).text;
  const rest = work.words.startsWith(said) ? work.words.slice(said.length) : "";
  return /^:? /.test(rest) ? rest.replace(/^:? /, "") : work.words;
}

/** What somebody can do about a group of messages that wait: `{ text, route, params }` or `{ text, lane }`. */
export function wayOut(group) {
  if (group.why === "slot" && group.lane && / is paused/.test(group.words)) return { text: "Resume lane", lane: group.lane };
  if (group.why === "slot" || group.why === "opening") return { text: "Look at the lanes", route: "lanes", params: [] };
  if (group.why === "rests" && group.examples.length === 1) return { text: "Look at it", route: "sessions", params: group.examples };
  if (group.why === "approval") return { text: "Answer it", route: "approvals", params: [] };
  if (group.examples.length === 1) return { text: "Open", route: "chat", params: [group.examples[0]] };
  return { text: "Look at the sessions", route: "sessions", params: [] };
}

/** Sentences begin with a capital letter. */
export function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}

/**
 * When to read again: `told()` that something has happened; `read` is called at once, and then at most every `gapMs`,
 * or four times as seldom as reading takes. `later(fn, ms)` and `time()` are those of the page.
 */
export function pacer(read, { gapMs = 500, later = setTimeout, time = () => performance.now() } = {}) {
  let isBusy = false;
  let isWanted = false;
  let timer = null;
  let next = 0;
  let isOver = false;
  const go = async () => {
    timer = null;
    isWanted = false;
    isBusy = true;
    const began = time();
    try {
      await read();
    } finally {
      const ended = time();
      next = ended + Math.max(gapMs, 4 * (ended - began));
      isBusy = false;
      if (isWanted) arm();
    }
  };
  const arm = () => {
    if (timer === null && !isOver) timer = later(go, Math.max(0, next - time()));
  };
  return {
    told() {
      isWanted = true;
      if (!isBusy) arm();
    },
    stop() {
      isOver = true;
      if (timer !== null) clearTimeout(timer);
      timer = null;
    },
  };
}

/** The totals of all lanes over time, for two small plots: `{ x, ended, wait }`; null if there is nothing to draw. */
export function traffic(history) {
  const total = history?.total;
  const steps = total?.ended?.length ?? 0;
  if (!steps) return null;
  const x = Array.from({ length: steps }, (_, at) => history.at_ms - (steps - 1 - at) * history.step_ms);
  return { x, ended: total.ended, wait: total.wait_p95_ms };
}
