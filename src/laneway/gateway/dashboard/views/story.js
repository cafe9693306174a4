/** The story of one message or run: why it waits now, bars of waits and work, every step, and what can be done. */
import { ask, newKey } from "../core/api.js";
import { duration, labelsOf, number, now, serverNow, shown } from "../core/format.js";
import { useStream } from "../core/live.js";
import { go, href } from "../core/router.js";
import { confirm, prompt } from "../ui/dialogs.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Countdown, Empty, html, Page, Since, stateTone, Text, Time, toast } from "../ui/parts.js";
import { useEffect, useMemo, useRef } from "../ui/parts.js";
import { bars, totals } from "./story_bars.js";
import { concerns, spentWords, whyNow } from "./story_model.js";
import { Bars, PlanList, Related, Steps } from "./story_parts.js";

const READ_MS = 400; // what happens at once is read once

/** Reads both stories: of a message also that of the run it ended in. */
async function read(kind, id, signal) {
  const path = (what, name) => `/${what}/${encodeURIComponent(name)}/story`;
  if (kind === "run") return { run: await ask(path("runs", id), { signal, reads: "" }), message: null };
  const message = await ask(path("messages", id), { signal, reads: "" });
  const last = message.message.run_id ?? message.runs.at(-1);
  const run = last ? await ask(path("runs", last), { signal, reads: "" }) : null;
  return { message, run };
}

/** Read again soon after something has happened, however much happens. */
function useSoon(reload) {
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  return () => {
    timer.current ||= setTimeout(async () => {
      await reload();
      timer.current = 0;
    }, READ_MS);
  };
}

/** The view of `story/message/<id>` and `story/run/<id>`. */
export default function Story({ params }) {
  const [kind, id] = params;
  if (!id || (kind !== "message" && kind !== "run")) {
    return html`<${Page} title="Story" lead="How a message or a run came to where it is.">
      <${Empty} title="Which story?">Open it from a conversation, a lane or the ledger.</${Empty}></${Page}>`;
  }
  return html`<${OneStory} key=${`${kind}/${id}`} kind=${kind} id=${id} />`;
}

function OneStory({ kind, id }) {
  const load = useLoad((signal) => read(kind, id, signal), [kind, id]);
  const soon = useSoon(load.reload);
  const { run, message } = load.data ?? {};
  const session = run?.run.session_key ?? message?.message.session_key ?? "";
  const workspace = run?.run.workspace ?? message?.message.workspace;
  const isLive = Boolean(load.data) && !((message?.is_over ?? true) && (run?.is_over ?? true));
  const about = { runId: run?.run.run_id, messageId: message?.message.message_id };
  useStream(`/sessions/${encodeURIComponent(session)}/events`, (type, facts) => {
    if (concerns(type, facts, about)) soon();
  }, { enabled: isLive, reads: workspace, onOpen: () => soon() });
  const title = kind === "run" ? "Story of a run" : "Story of a message";
  const name = html`<span class="mono">${shown(id)}</span>`;
  const lead = session ? html`Session <a href=${href("chat", session)}>${shown(session)}</a>, ${name}` : name;
  return html`<${Page} title=${title} lead=${lead} class="story"
    actions=${load.data ? html`<${Actions} run=${run} message=${message} reload=${load.reload} />` : null}>
    <${Loaded} load=${load}>${(data) => html`<${Told} ...${data} isLive=${isLive} />`}</${Loaded}>
  </${Page}>`;
}

function Told({ run, message, isLive }) {
  const at = isLive ? now.value : serverNow();
  const chart = useMemo(() => bars(run, message, at), [run, message, isLive ? at : 0]);
  return html`
    <${Now} run=${run} message=${message} />
    ${message ? html`<section class="card story-message" aria-label="The message" tabIndex=${0}>
      <${Text} block>${message.message.text}</${Text}></section>` : null}
    <${Facts} run=${run} message=${message} at=${at} />
    ${chart.rows.length ? html`<${Bars} chart=${chart} />` : null}
    ${run?.plan.length ? html`<${PlanList} plan=${run.plan} />` : null}
    <${Steps} run=${run} message=${message} />
    <${Related} run=${run} message=${message} />`;
}

function Now({ run, message }) {
  const why = whyNow(run, message);
  const until = why.until ? html`; it is decided without an answer in <${Countdown} until=${why.until} />` : null;
  return html`<section class="card story-now story-now-${why.tone}" aria-live="polite" aria-label="What it does now">
    <p class="story-why"><${Text}>${why.text}</${Text}></p>
    ${why.since ? html`<p class="dim">For <${Since} ms=${why.since} />${until}</p>` : null}
    ${why.approval ? html`<p><a class="button button-primary" href=${href("approvals")}>Look at the request</a></p>` : null}
  </section>`;
}

function Fact({ name, children }) {
  return html`<div class="story-fact"><dt>${name}</dt><dd>${children}</dd></div>`;
}

function Facts({ run, message, at }) {
  const sums = totals(run, message, at);
  const one = run?.run;
  const came = message?.message.arrived_ms ?? run?.messages[0]?.arrived_ms ?? one?.began_ms;
  const state = message && !message.runs.length ? message.message.disposition : one?.state ?? message?.message.disposition;
  const end = one?.ended_ms ?? (run?.is_over ? null : at);
  return html`<dl class="card story-facts">
    <${Fact} name="State"><${Badge} tone=${stateTone(state)}>${String(state).replaceAll("_", " ")}</${Badge}></${Fact}>
    ${came ? html`<${Fact} name="Came"><${Time} ms=${came} /></${Fact}>` : null}
    ${one && end ? html`<${Fact} name="Run took">${duration(Math.max(0, end - one.began_ms))}</${Fact}>` : null}
    <${Fact} name="Waited">${duration(sums.waited)}</${Fact}>
    ${run ? html`<${Fact} name="Worked">${duration(sums.worked)}</${Fact}>
      <${Fact} name="Rounds">${number(spentWords(run).rounds)}</${Fact}>
      <${Fact} name="Tokens">${number(run.input_tokens)} in, ${number(run.output_tokens)} out</${Fact}>
      <${Fact} name="Cost">${spentWords(run).cost}</${Fact}>` : null}
    ${message ? html`<${Fact} name="Mode">${message.message.mode}</${Fact}>` : null}
    ${labelsOf(run?.identity).map(([name, value]) => html`<${Fact} key=${name} name=${name}><${Text}>${value}</${Text}></${Fact}>`)}
  </dl>`;
}

function Actions({ run, message, reload }) {
  // One key for each press that may be sent again: a second press after a lost answer does nothing twice.
  const keys = useRef({ resume: newKey(), retry: newKey() });
  const isGoing = run && !run.is_over;
  const cancel = async () => {
    const label = "Why (told to whoever waits for it)";
    const reason = await prompt({ title: "End this run?", label, yes: "End the run", hint: "What waits in its session stays." });
    if (reason === null) return;
    await ask(`/runs/${encodeURIComponent(run.run.run_id)}/cancel`, { body: { reason }, reads: "" });
    toast("The run was asked to end.");
    await reload();
  };
  const resume = async () => {
    const path = `/runs/${encodeURIComponent(run.run.run_id)}/resume`;
    const taken = await ask(path, { method: "POST", key: keys.current.resume, reads: "" });
    keys.current.resume = newKey();
    toast("It goes on, in a run of its own.");
    go(href("story", "message", taken.message_id));
  };
  const retry = async () => {
    const path = `/messages/${encodeURIComponent(message.message.message_id)}/retry`;
    const taken = await ask(path, { method: "POST", key: keys.current.retry, reads: "" });
    keys.current.retry = newKey();
    toast("It was sent again.");
    go(href("story", "message", taken.message_id));
  };
  const withdraw = async () => {
    const text = "It stays in the history, as withdrawn.";
    if (!(await confirm({ title: "Take this message back?", text, yes: "Take it back", danger: true }))) return;
    await ask(`/messages/${encodeURIComponent(message.message.message_id)}`, { method: "DELETE", reads: "" });
    toast("The message was taken back.");
    await reload();
  };
  return html`
    ${run ? html`<a class="button" href=${href("replay", run.run.run_id)} title="Its steps one after the other; go on from any of them">
      Replay</a>` : null}
    ${isGoing ? html`<${Button} kind="danger" icon="stop" onClick=${cancel}>End the run</${Button}>` : null}
    ${run?.can_resume ? html`<${Button} icon="play" onClick=${resume}>Go on with it</${Button}>` : null}
    ${message?.can_retry ? html`<${Button} icon="refresh" onClick=${retry}>Send again</${Button}>` : null}
    ${message?.can_withdraw ? html`<${Button} icon="x" onClick=${withdraw}>Take back</${Button}>` : null}`;
}
