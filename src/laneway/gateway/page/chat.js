"use strict";
// A plain chat with one session. Everything that somebody has said goes into the page as text, never as markup.

const el = (id) => document.getElementById(id);
const QUIET_MS = 45000; // a stream that says nothing for so long, not even a heartbeat, is dead
const BACKOFF_MAX_MS = 15000;
const OUTPUT_MAX = 20000;
const WAITING = new Set(["queued", "parked", "held"]);

const HELP =
  "Commands: /status, /queue (how messages wait; /queue steer, /queue list, /queue clear), /steer TEXT, " +
  "/followup TEXT, /stop, /new, /compact, /approve ID, /deny ID REASON. All else goes to the agent.";

const state = {
  session: "",
  workspace: "",
  tenant: "", // whose sessions these are: an operator for all tenants has to say which one is meant
  token: "", // both tokens live in this page only, and end with it
  lastId: "",
  visit: 0, // counts sessions that were opened: what belongs to an earlier one is ignored
  messages: new Map(),
  runs: new Map(),
  sending: new Set(),
  loading: null, // events that came while the past was being read
};

// ---- small things ----

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

function note(text) {
  el("note").textContent = text;
  el("note").hidden = !text;
}

function isAtEnd() {
  const view = document.querySelector("main");
  return view.scrollHeight - view.scrollTop - view.clientHeight < 80;
}

function keepAtEnd(change) {
  const view = document.querySelector("main");
  const follow = isAtEnd();
  change();
  if (follow) view.scrollTop = view.scrollHeight;
}

// ---- asking the server ----

function headers(token, more) {
  const all = { ...more };
  if (token) all.Authorization = "Bearer " + token;
  if (state.workspace) all["Laneway-Workspace"] = state.workspace;
  return all;
}

class Refused extends Error {
  constructor(status, body) {
    super(body.detail || "the server answered " + status);
    this.status = status;
    this.hint = body.hint || "";
  }
}

async function refusal(response, token) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // what is no JSON is no problem of ours
  }
  if (response.status === 401 && token === state.token) askForToken(); // not for what only operators may do
  return new Refused(response.status, body);
}

function askForToken() {
  keepAtEnd(() => { el("entry").hidden = false; });
}

async function ask(path, options = {}) {
  const { body, token = state.token, operates = false, extra = {}, ...more } = options;
  const given = { cache: "no-store", ...more, headers: headers(token, extra) };
  if (body !== undefined) {
    given.method = "POST";
    given.headers["Content-Type"] = "application/json";
    given.body = JSON.stringify(body);
  }
  const response = await fetch("/v1" + path, given);
  if (!response.ok) throw await refusal(response, operates ? null : token);
  return response.json();
}

const home = () => "/sessions/" + encodeURIComponent(state.session);

// ---- messages ----

function messageOf(id) {
  let message = state.messages.get(id);
  if (!message) {
    const node = make("li", "user");
    message = { id, node, words: make("div", "words"), label: make("div", "state"), status: "", known: false };
    node.append(message.words, message.label);
    node.hidden = true; // until its text is known
    state.messages.set(id, message);
    keepAtEnd(() => el("talk").append(node));
  }
  return message;
}

function setText(message, text, kind) {
  message.known = true;
  message.words.textContent = text;
  if (kind && kind !== "user") message.node.className = "system";
  keepAtEnd(() => { message.node.hidden = false; });
}

async function learnText(message) {
  const visit = state.visit;
  await Promise.allSettled(state.sending); // perhaps it is one that was sent right here
  if (message.known || visit !== state.visit) return;
  try {
    const found = await ask("/messages/" + encodeURIComponent(message.id));
    if (visit === state.visit) setText(message, found.text, found.kind);
  } catch {
    if (visit === state.visit) setText(message, "(a message that cannot be read)");
  }
}

function showState(message, status, { position, reason, outcome } = {}) {
  message.status = status || message.status;
  let text = message.status;
  if (WAITING.has(message.status) && position) text += ", place " + position;
  if (outcome && outcome !== "succeeded") text += ", " + outcome;
  if (reason && (WAITING.has(message.status) || (outcome && outcome !== "succeeded") || outcome === null)) text += ": " + reason;
  message.label.textContent = text;
  const isBad = ["failed", "cancelled", "interrupted"].includes(outcome)
    || ["dropped", "expired", "rejected", "dead_lettered"].includes(message.status);
  message.label.className = "state" + (isBad ? " bad" : "");
}

let placesAsked = false;
async function refreshPlaces() {
  if (placesAsked) return;
  placesAsked = true;
  const visit = state.visit;
  await new Promise((done) => setTimeout(done, 50)); // one question for many events
  placesAsked = false;
  if (![...state.messages.values()].some((each) => WAITING.has(each.status))) return;
  try {
    const found = await ask(home() + "/pending");
    if (visit === state.visit) found.items.forEach(showPending);
  } catch {
    // the next event asks again
  }
}

function showPending(each) {
  const message = messageOf(each.message_id);
  if (!message.known) setText(message, each.text, each.kind);
  if (!message.status || WAITING.has(message.status)) showState(message, each.disposition, each);
}

// ---- runs ----

function runOf(id) {
  let run = state.runs.get(id);
  if (!run) {
    const node = make("li", "assistant");
    run = { id, node, rounds: new Map(), body: make("div"), label: make("div", "state", "working …"), ended: false };
    node.append(run.body, run.label);
    state.runs.set(id, run);
    keepAtEnd(() => el("talk").append(node));
  }
  return run;
}

function placeRun(run, messages) {
  // Behind the last of its messages: what waits for a later turn stays below.
  const nodes = (messages || []).map((id) => messageOf(id).node);
  if (nodes.length && !run.placed) {
    run.placed = true;
    let last = nodes[nodes.length - 1]; // and behind the runs over it that were cut off
    while (last.nextElementSibling && last.nextElementSibling.classList.contains("assistant")) last = last.nextElementSibling;
    if (last !== run.node) keepAtEnd(() => last.after(run.node));
  }
  return run;
}

function roundOf(run, turn) {
  const number = turn || run.turn || 0;
  run.turn = number;
  let round = run.rounds.get(number);
  if (!round) {
    round = { node: make("div"), thought: make("div", "thought"), words: make("div", "words"), calls: new Map() };
    round.node.append(round.thought, round.words);
    run.rounds.set(number, round);
    run.body.append(round.node);
  }
  return round;
}

function callOf(round, facts) {
  let call = round.calls.get(facts.tool_id);
  if (!call) {
    const node = make("details", "call");
    call = { node, title: make("summary"), args: make("pre"), output: make("pre"), name: facts.tool_name, status: "" };
    call.args.hidden = call.output.hidden = true;
    node.append(call.title, call.args, call.output);
    round.calls.set(facts.tool_id, call);
    round.node.append(node);
  }
  return call;
}

function showCall(call, { status, args, output, add }) {
  if (status) call.status = status;
  const shown = { ok: "done", asked: "waits for an approval" }[call.status] || call.status;
  call.title.textContent = call.name + ": " + shown;
  const isBad = !["queued", "running", "asked", "ok", ""].includes(call.status);
  call.node.className = "call " + (isBad ? "bad" : call.status);
  if (args && Object.keys(args).length) {
    call.args.textContent = pretty(args);
    call.args.hidden = false;
  }
  if (output !== undefined) call.output.textContent = output.slice(0, OUTPUT_MAX);
  if (add) call.output.textContent = (call.output.textContent + add).slice(-OUTPUT_MAX);
  call.output.hidden = !call.output.textContent;
}

function replaceRun(run, facts) {
  run.rounds.clear();
  run.body.replaceChildren();
  for (const one of [...facts.rounds, facts]) {
    const round = roundOf(run, one.turn);
    round.thought.textContent = one.reasoning || "";
    round.words.textContent = one.text || "";
    for (const each of one.calls) showCall(callOf(round, each), { status: each.state, args: each.args, output: each.output });
  }
}

function endRun(run, status, reason, answer) {
  run.ended = true;
  const isGood = status === "succeeded";
  run.label.textContent = isGood ? "" : status + (reason ? ": " + reason : "");
  run.label.className = "state" + (isGood ? "" : " bad");
  run.label.hidden = isGood;
  if (answer) roundOf(run).words.textContent = answer;
  if (!answer && !run.body.textContent) run.node.hidden = isGood;
}

// ---- what happens ----

const RUN_EVENTS = {
  start: (run) => run,
  turn_start: (run, facts) => roundOf(run, facts.turn),
  text_delta: (run, facts) => { roundOf(run).words.append(facts.text); },
  reasoning_delta: (run, facts) => { roundOf(run).thought.append(facts.text); },
  model_retry: (run, facts) => {
    const round = roundOf(run);
    round.words.textContent = round.thought.textContent = "";
    run.label.textContent = "the model did not answer, trying again: " + facts.error;
  },
  run_waiting: (run, facts) => { run.label.textContent = "waits: " + facts.reason; },
  tool_queued: (run, facts) => showCall(callOf(roundOf(run), facts), { status: "queued" }),
  tool_start: (run, facts) => showCall(callOf(roundOf(run), facts), { status: "running", args: facts.args }),
  tool_output_delta: (run, facts) => showCall(callOf(roundOf(run), facts), { add: facts.text }),
  tool_end: (run, facts) => showCall(callOf(roundOf(run), facts), { status: facts.status, output: facts.tool_output }),
  confirmation_required: (run, facts) => {
    showCall(callOf(roundOf(run), facts), { status: "asked", args: facts.args });
    refreshApprovals();
  },
  confirmation_received: (run, facts) => {
    showCall(callOf(roundOf(run), facts), { status: "queued" });
    refreshApprovals();
  },
  confirmation_timeout: () => refreshApprovals(),
};

function onMessageEvent(facts) {
  const message = messageOf(facts.message_id);
  if (!message.known) learnText(message);
  if (facts.type === "message.edited") {
    message.known = false;
    learnText(message);
  }
  showState(message, facts.state, facts);
  refreshPlaces();
}

function onEvent(type, facts) {
  if (type.startsWith("message.") && facts.message_id) return onMessageEvent(facts);
  if (type.startsWith("approval.")) return refreshApprovals();
  if (type === "so_far") return replaceRun(placeRun(runOf(facts.run_id), facts.messages.slice(0, 1)), facts);
  if (type === "turn.started") return placeRun(runOf(facts.turn_id), facts.messages);
  if (type === "turn.cancelling") { runOf(facts.turn_id).label.textContent = "is being ended …"; return undefined; }
  if (type === "turn.ended") return endRun(runOf(facts.turn_id), facts.state, facts.reason, facts.answer);
  if (type === "session.reset") return say("A new conversation has begun.");
  if (type === "gap") return open(state.session);
  if (facts.payload && facts.metadata && RUN_EVENTS[type]) {
    const run = runOf(facts.metadata.run_id);
    if (!run.ended) RUN_EVENTS[type](run, facts.payload);
  }
  return undefined;
}

function say(text) {
  keepAtEnd(() => el("talk").append(make("li", "system", text)));
}

function take(type, facts) {
  if (state.loading) state.loading.push([type, facts]);
  else keepAtEnd(() => onEvent(type, facts));
}

// ---- the past ----

async function readPast(visit) {
  state.loading = [];
  try {
    const [past, waiting] = await Promise.all([
      ask(home() + "/history?limit=200"),
      ask(home() + "/pending"),
    ]);
    if (visit !== state.visit) return;
    keepAtEnd(() => {
      past.items.forEach(showPast);
      waiting.items.forEach(showPending);
    });
    document.querySelector("main").scrollTop = 1e9;
  } catch (error) {
    if (visit === state.visit && error.status !== 404) note(error.message); // 404: nothing was said there yet
  } finally {
    if (visit === state.visit) {
      const events = state.loading;
      state.loading = null;
      keepAtEnd(() => events.forEach(([type, facts]) => onEvent(type, facts)));
    }
  }
}

function showPast(line) {
  if (line.role === "assistant") {
    const run = runOf(line.run_id);
    roundOf(run, (run.turn || 0) + 1).words.textContent = line.text;
    endRun(run, "succeeded", "", "");
    return;
  }
  const message = messageOf(line.message_id || "line-" + line.seq);
  setText(message, line.text, line.role);
}

// ---- the stream ----

function parse(block) {
  const event = { type: "message", id: "", text: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) event.id = line.slice(4);
    else if (line.startsWith("event: ")) event.type = line.slice(7);
    else if (line.startsWith("data: ")) event.text += line.slice(6);
  }
  return event;
}

async function readStream(visit, abort) {
  const extra = { Accept: "text/event-stream" };
  if (state.lastId) extra["Last-Event-ID"] = state.lastId;
  const response = await fetch("/v1" + home() + "/events", {
    cache: "no-store", headers: headers(state.token, extra), signal: abort.signal,
  });
  if (!response.ok) throw await refusal(response, state.token);
  el("link").textContent = "connected";
  el("link").className = "";
  if (!state.read) {
    state.read = true;
    readPast(visit);
  }
  refreshApprovals();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let timer = 0;
  try {
    for (;;) {
      timer = setTimeout(() => abort.abort(), QUIET_MS);
      const { value, done } = await reader.read();
      clearTimeout(timer);
      if (done || visit !== state.visit) return "";
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event.id) state.lastId = event.id;
        if (!event.text) continue; // a sign of life, or where the stream begins
        const facts = JSON.parse(event.text);
        if (event.type === "close") return facts.reason;
        take(event.type, facts);
      }
    }
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

async function follow(visit) {
  let wait = 0;
  while (visit === state.visit) {
    const abort = new AbortController();
    state.abort = abort;
    const began = Date.now();
    let why = "the connection was lost";
    try {
      why = (await readStream(visit, abort)) || why;
    } catch (error) {
      if (visit !== state.visit) return;
      if (error.status === 401 || error.status === 403 || error.status === 400) {
        el("link").textContent = error.message;
        el("link").className = "off";
        return; // another try needs another token, or another session
      }
    }
    if (visit !== state.visit) return;
    wait = Date.now() - began > 5000 ? 500 : Math.min(BACKOFF_MAX_MS, Math.max(500, wait * 2));
    el("link").textContent = why + ", connecting again …";
    el("link").className = "off";
    await new Promise((done) => setTimeout(done, wait * (0.5 + Math.random() / 2)));
  }
}

function open(session) {
  state.visit += 1;
  if (state.abort) state.abort.abort();
  Object.assign(state, { session, lastId: "", read: false, loading: null });
  state.messages.clear();
  state.runs.clear();
  el("talk").replaceChildren();
  el("requests").replaceChildren();
  el("approvals").hidden = true;
  note("");
  el("session").value = session;
  history.replaceState(null, "", "#" + new URLSearchParams({ session }));
  document.title = session + " · Laneway";
  follow(state.visit);
}

// ---- saying something ----

function sendSoon(text, mode) {
  const key = newKey();
  const node = make("li", "user");
  const label = make("div", "state", "sending …");
  node.append(make("div", "words", text), label);
  keepAtEnd(() => el("talk").append(node));
  document.querySelector("main").scrollTop = 1e9;
  const post = () => {
    const visit = state.visit;
    const body = mode ? { text, mode, channel: "web" } : { text, channel: "web" };
    const sent = ask(home() + "/messages", { body, extra: { "Idempotency-Key": key } })
      .then((receipt) => { if (visit === state.visit) taken(receipt, text, node); })
      .catch((error) => failed(error, label, post))
      .finally(() => state.sending.delete(sent));
    state.sending.add(sent);
  };
  post();
}

function taken(receipt, text, node) {
  if (receipt.reply) {
    node.remove();
    const message = messageOf(receipt.message_id);
    setText(message, text);
    showState(message, receipt.disposition);
    say(receipt.reply);
    return;
  }
  const message = messageOf(receipt.message_id);
  keepAtEnd(() => {
    if (!message.status) node.replaceWith(message.node); // no event has come yet: this is its place
    else node.remove();
  });
  setText(message, text);
  if (!message.status) showState(message, receipt.disposition, receipt);
}

function failed(error, label, again) {
  label.className = "state bad";
  label.textContent = "not sent: " + error.message + (error.hint ? " (" + error.hint + ")" : "");
  const button = make("button", "", "Try again");
  button.type = "button";
  button.addEventListener("click", () => {
    label.className = "state";
    label.textContent = "sending …";
    again();
  });
  label.append(button);
}

// ---- approvals ----

let approvalsAsked = 0;
async function refreshApprovals() {
  const turn = (approvalsAsked += 1);
  const visit = state.visit;
  try {
    const found = await ask("/approvals?session=" + encodeURIComponent(state.session));
    if (visit !== state.visit || turn !== approvalsAsked) return;
    const shown = new Map([...el("requests").children].map((node) => [node.dataset.id, node]));
    keepAtEnd(() => {
      el("requests").replaceChildren(...found.items.map((each) => shown.get(each.approval_id) || request(each)));
      el("approvals").hidden = !found.items.length;
    });
  } catch {
    // the next event asks again
  }
}

function request(each) {
  const node = make("li");
  node.dataset.id = each.approval_id;
  const title = make("div");
  title.append(make("strong", "", each.action), " in ", make("span", "", each.session_key));
  const why = make("div", "state", each.why);
  const row = make("div", "row");
  const reason = make("input");
  reason.placeholder = "reason (told to the model with a no)";
  reason.setAttribute("aria-label", "Reason");
  const yes = make("button", "", "Approve");
  const no = make("button", "", "Deny");
  const result = make("div", "state bad");
  const answer = (approve) => async () => {
    yes.disabled = no.disabled = true;
    try {
      const body = { approve, reason: reason.value, args: each.arguments };
      const token = el("operator").value.trim() || state.token;
      const extra = state.tenant ? { "Laneway-Tenant": state.tenant } : {};
      await ask("/approvals/" + encodeURIComponent(each.approval_id), { body, token, operates: true, extra });
      node.remove();
      refreshApprovals();
    } catch (error) {
      result.textContent = error.message + (error.hint ? " (" + error.hint + ")" : "");
      yes.disabled = no.disabled = false;
      if (error.status === 401 || error.status === 403) el("operator").focus();
    }
  };
  yes.type = no.type = "button";
  yes.addEventListener("click", answer(true));
  no.addEventListener("click", answer(false));
  row.append(reason, yes, no);
  node.append(title, why, make("pre", "", pretty(each.arguments)), row, result);
  return node;
}

// ---- beginning ----

async function readAbout() {
  try {
    const about = await ask("/about");
    el("entry").hidden = true;
    state.tenant = about.tenant;
    const names = about.workspaces.map((each) => each.name);
    el("workspace").replaceChildren(...names.map((name) => new Option(name, name)));
    el("workspace").hidden = el("workspace-label").hidden = names.length < 2;
    if (names.includes(state.workspace)) el("workspace").value = state.workspace;
    const here = about.workspaces.find((each) => each.name === state.workspace) || about.workspaces[0];
    el("model").textContent = here.scripted ? "scripted model: it only plays a script" : here.model;
    el("model").className = here.scripted ? "scripted" : "";
  } catch (error) {
    note(error.message);
  }
}

async function readSessions() {
  try {
    const found = await ask("/sessions?limit=200");
    el("sessions").replaceChildren(...found.items.map((each) => new Option(each.session_key, each.session_key)));
  } catch {
    // without a list one types the name
  }
}

el("session").addEventListener("focus", readSessions);

el("where").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!el("workspace").hidden) state.workspace = el("workspace").value;
  readAbout();
  open(el("session").value.trim() || "web");
  el("text").focus();
});

el("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = el("token").value.trim();
  el("token").value = "";
  note("");
  readAbout();
  open(state.session);
});

el("rights").addEventListener("submit", (event) => event.preventDefault());

el("say").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = el("text").value.trim();
  if (!text) return;
  el("text").value = "";
  if (text.toLowerCase() === "/help") return say(HELP);
  sendSoon(text, el("mode").value);
});

el("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    el("say").requestSubmit();
  }
});

el("stop").addEventListener("click", async () => {
  try {
    const ended = await ask(home() + "/stop", { body: {} });
    if (!ended.turns && !ended.waiting && !ended.debounced) say("Nothing was running.");
  } catch (error) {
    if (error.status === 404) say("Nothing was running.");
    else note(error.message);
  }
});

const wanted = new URLSearchParams(location.hash.slice(1)).get("session");
readAbout();
open(wanted || "web");
el("text").focus();
