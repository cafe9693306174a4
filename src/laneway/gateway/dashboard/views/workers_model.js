/** Workers without a page: how one does, in a word and in a sentence, and how to start one. */

const STOPPING_MS = 5000;

const WORDS = {
  working: ["working", "run", "It has tasks in hand."],
  waiting: ["waiting", "ok", "It waits for a task."],
  idle: ["idle", "off", "It was heard of lately, has nothing in hand and asks for nothing."],
  quiet: ["quiet", "warn", "Nothing was heard of it for a minute."],
  draining: ["draining", "warn", "It has room for more and asks for none: it finishes what it has, and stops."],
  lost: ["lost", "bad", "It had a task, and was silent for too long: the task was taken from it."],
};

/** How a worker does: one of the words above, its tone, and what it means. */
export function healthOf(worker) {
  let state = WORDS[worker.health] ? worker.health : "idle";
  if (worker.is_lost) state = "lost";
  else if (state === "working" && isDraining(worker)) state = "draining";
  const [words, tone, text] = WORDS[state];
  return { state, words, tone, text };
}

// With a free slot a worker asks all the time; one that does not, is stopping (or cannot reach the server: then it gets quiet).
function isDraining(worker) {
  const hasRoom = worker.concurrency > 0 && worker.holds < worker.concurrency;
  return hasRoom && worker.asked_ago_ms !== null && worker.asked_ago_ms > STOPPING_MS;
}

/** How many of its slots are used: `{ used, all, share }`; `all` null: it does not say. */
export function slotsOf(worker) {
  const all = worker.concurrency > 0 ? Math.max(worker.concurrency, worker.holds) : null;
  return { used: worker.holds, all, share: all ? worker.holds / all : 0 };
}

/** What is worth a word about a worker, besides its state. */
export function notesOf(worker) {
  const notes = [];
  if (worker.shares_name) notes.push("Another worker at work has the same name: give each its own with --name.");
  if (worker.unstarted >= 3 && worker.completed + worker.failed === 0) {
    notes.push("It takes tasks and does not begin them: it gets one at a time.");
  }
  return notes;
}

/** Everybody in numbers. */
export function totals(workers) {
  const sum = { there: 0, away: 0, used: 0, slots: 0 };
  for (const worker of workers) {
    const { state } = healthOf(worker);
    if (state === "lost" || state === "quiet") {
      sum.away += 1;
      continue;
    }
    sum.there += 1;
    sum.used += worker.holds;
    sum.slots += Math.max(worker.concurrency, worker.holds);
  }
  return sum;
}

/** Those who need somebody first, the others by name; of one name, the one that was heard of last first. */
export function ordered(workers) {
  const rank = { lost: 0, quiet: 3 };
  return [...workers].sort((a, b) => {
    const [one, two] = [a, b].map((each) => rank[healthOf(each).state] ?? 1);
    if (one !== two) return one - two;
    return a.name < b.name ? -1 : a.name > b.name ? 1 : a.seen_ago_ms - b.seen_ago_ms;
  });
}

/** What one worker is known by in a list. */
export function keyOf(worker) {
  return JSON.stringify([worker.token, worker.tenant, worker.name, worker.instance]);
}

/** The command that starts a worker for a server; `lanes`: only for those. */
export function startCommand(origin, lanes = []) {
  const parts = ["laneway worker", `--connect ${origin}`, "--token-file worker.token"];
  const plain = lanes.filter((each) => /^[\w.:-]+$/.test(each)); // whatever else is in a name is not for a shell
  if (plain.length === lanes.length && plain.length) parts.push(`--lanes ${plain.join(",")}`);
  return parts.join(" ");
}
