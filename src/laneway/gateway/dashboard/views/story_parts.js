/** Parts of a story: the bars, the plan, the steps, and what else belongs to it. */
import { ask } from "../core/api.js";
import { clock, duration, moment, money, number, plural, shown } from "../core/format.js";
import { href } from "../core/router.js";
import { Badge, Button, html, Json, stateTone, Text, useState } from "../ui/parts.js";
import { KINDS, ticks, waitWords } from "./story_bars.js";
import { callTone, callWords, steps } from "./story_model.js";

const percent = (value) => `${Math.max(0, Math.min(100, value * 100)).toFixed(3)}%`;

/** What waited and what worked, on one scale. A press on a line leads to its step. */
export function Bars({ chart }) {
  const { rows, from, to, left } = chart;
  const span = to - from;
  const kinds = [...new Set(rows.flatMap((row) => row.segments.map((each) => each.kind)))];
  const jump = (key) => {
    const step = document.getElementById(`step-${key}`);
    step?.scrollIntoView({ block: "center" });
    step?.focus({ preventScroll: true });
  };
  return html`<section class="card story-bars" aria-labelledby="story-bars-title">
    <h2 id="story-bars-title">Where the time went</h2>
    ${left ? html`<p class="dim">${plural(left, "earlier line")} not drawn.</p>` : null}
    <div class="story-scale" aria-hidden="true">
      ${ticks(from, to).map((each) => html`<span key=${each.at} style=${{ left: percent(each.at) }}>${each.text}</span>`)}
    </div>
    <ul class="story-rows">
      ${rows.map((row) => html`<li key=${row.key} class="story-row">
        <button type="button" class="story-label" onClick=${() => jump(row.key)} title="Go to its step">${shown(row.label)}</button>
        <div class="story-track">
          ${row.segments.map((each, at) => html`<span key=${at} class="story-segment story-${each.kind}${each.open ? " story-open" : ""}"
            title=${shown(each.title)} style=${{ left: percent((each.from - from) / span), width: percent((each.to - each.from) / span) }}
            ><span class="visually-hidden">${shown(each.title)}. </span></span>`)}
        </div>
      </li>`)}
    </ul>
    <p class="story-key">${kinds.map((kind) => html`<span key=${kind} class="story-key-one">
      <span class="story-swatch story-${kind}" aria-hidden="true"></span>${KINDS[kind] ?? kind}</span>`)}</p>
  </section>`;
}

const MARKS = { completed: "✓", failed: "✗", skipped: "–", in_progress: "▸", pending: "·" };

/** The plan of a run. */
export function PlanList({ plan }) {
  return html`<section class="card" aria-labelledby="story-plan-title"><h2 id="story-plan-title">Plan</h2>
    <ol class="story-plan">${plan.map((step) => html`<li key=${step.id} class="story-plan-${step.status}">
      <span class="story-mark" aria-hidden="true">${MARKS[step.status] ?? "·"}</span>
      <span><${Text}>${step.content}</${Text}> <span class="dim">${step.status.replaceAll("_", " ")}</span></span></li>`)}</ol>
  </section>`;
}

/** Every step, in order. */
export function Steps({ run, message }) {
  const all = steps(run, message);
  const start = all[0]?.at ?? 0;
  return html`<section aria-labelledby="story-steps-title" class="stack"><h2 id="story-steps-title">What happened</h2>
    ${run?.rounds_before ? html`<p class="dim">${plural(run.rounds_before, "earlier round")} left out.</p>` : null}
    <ol class="story-steps">
      ${all.map((step) => html`<li key=${step.key} id=${`step-${step.key}`} tabIndex=${-1} class="story-step story-step-${step.tone}">
        <time class="story-when num" title=${moment(step.at)} dateTime=${new Date(step.at).toISOString()}>${
          step.at === start ? clock(step.at) : `+${duration(step.at - start)}`}</time>
        <div class="story-body">${body(step, run)}</div>
      </li>`)}
    </ol>
  </section>`;
}

function body(step, run) {
  const parts = { round: RoundStep, call: CallStep, approval: ApprovalStep, child: ChildStep, message: MessageStep, wait: WaitStep };
  const Part = parts[step.what];
  return Part ? html`<${Part} step=${step} runId=${run?.run.run_id} />` : html`<${Head} step=${step} />
    ${step.text ? html`<p class="dim"><${Text}>${step.text}</${Text}></p>` : null}`;
}

/** A text of somebody; a long one scrolls, which has to work with keys, too. */
function Quote({ children }) {
  return html`<div class="story-quote" tabIndex=${0} role="group" aria-label="What was said">${children}</div>`;
}

function Head({ step, children }) {
  return html`<p class="story-title"><strong><${Text}>${step.title}</${Text}></strong> ${children}</p>`;
}

function WaitStep({ step }) {
  const { wait } = step;
  const took = wait.ended_ms === null ? "still" : duration(wait.ended_ms - wait.began_ms);
  const link = wait.run_id ? html`<a href=${href("story", "run", wait.run_id)}>${shown(wait.run_id)}</a>` : null;
  return html`<${Head} step=${step}><span class="num">${took}</span></${Head}>
    <p class="dim">${link ?? html`<${Text}>${wait.reason}</${Text}>`}</p>`;
}

function MessageStep({ step }) {
  const { message } = step;
  const sender = message.sender ? html`<span class="dim">${shown(message.sender)}: </span>` : null;
  return html`<${Head} step=${step}><a href=${href("story", "message", message.message_id)}>its story</a></${Head}>
    <${Quote}>${sender}<${Text}>${message.text}</${Text}></${Quote}>`;
}

function ApprovalStep({ step }) {
  const { approval } = step;
  const took = approval.ended_ms === null ? "" : ` after ${duration(approval.ended_ms - approval.asked_ms)}`;
  const by = approval.answered_by ? ` by ${approval.answered_by}` : "";
  return html`<${Head} step=${step}><${Badge} tone=${stateTone(approval.state)}>${approval.state}</${Badge}></${Head}>
    <p class="dim"><${Text}>${[`${approval.state}${took}${by}`, approval.reason].filter(Boolean).join(": ")}</${Text}>
      ${approval.state === "pending" ? html` <a href=${href("approvals")}>Answer it</a>` : null}</p>`;
}

function ChildStep({ step }) {
  const { child } = step;
  const took = child.ended_ms === null ? "" : `, ${duration(child.ended_ms - child.began_ms)}`;
  return html`<${Head} step=${step}><${Badge} tone=${stateTone(child.state)}>${child.state.replaceAll("_", " ")}</${Badge}></${Head}>
    <p class="dim">${number(child.tokens)} tokens${took}
      ${child.run_id ? html`. <a href=${href("story", "run", child.run_id)}>The story of its run</a>` : null}</p>`;
}

function RoundStep({ step, runId }) {
  const { round } = step;
  const isTimed = round.asked_ms !== null && round.answered_ms !== null && round.state !== "asking";
  const facts = [
    isTimed ? `answered after ${duration(round.answered_ms - round.asked_ms)}` : "",
    round.state === "asking" ? "" : `${number(round.input_tokens)} tokens in, ${number(round.output_tokens)} out`,
    round.cost === null ? "" : money(round.cost),
    round.model,
    round.retries ? `asked again ${plural(round.retries, "time")}` : "",
    round.state === "cut" ? "the run was ended in it" : round.state === "forgotten" ? "rolled back" : "",
  ].filter(Boolean);
  const isCut = round.text_chars > round.text.length;
  return html`<${Head} step=${step} />
    ${facts.length ? html`<p class="dim"><${Text}>${facts.join(", ")}</${Text}></p>` : null}
    ${round.waits.map((wait, at) => html`<p key=${at} class="story-waited"><${Text}>${waited(wait)}</${Text}></p>`)}
    ${round.text ? html`<${Quote}><${Text}>${round.text}</${Text}>${isCut ? " …" : ""}</${Quote}>` : null}
    ${isCut || round.has_reasoning
      ? html`<${Whole} runId=${runId} number=${round.number} label="Show the whole round" show=${wholeRound} />`
      : null}`;
}

function waited(wait) {
  if (wait.kind === "cheaper") return wait.reason;
  const took = wait.ended_ms === null ? "waits" : `waited ${duration(wait.ended_ms - wait.began_ms)}`;
  return `${took} for ${waitWords(wait.kind)}: ${wait.reason}`;
}

function wholeRound(whole) {
  return html`${whole.reasoning ? html`<h3>Reasoning</h3><${Json} value=${whole.reasoning} open />` : null}
    ${whole.text ? html`<h3>Text</h3><${Json} value=${whole.text} open />` : null}`;
}

function CallStep({ step, runId }) {
  const { call, round } = step;
  const words = callWords(call);
  const task = call.task_id ? html` <a href=${href("tasks", call.task_id)}>task</a>` : null;
  const size = call.output_chars ? ` and output (${plural(call.output_chars, "character")})` : "";
  const whole = (found) => html`<${Json} value=${found.calls.find((each) => each.call_id === call.call_id)?.output ?? ""} open />`;
  return html`<${Head} step=${step}><${Badge} tone=${callTone(call)}>${call.status.replaceAll("_", " ")}</${Badge}>
      ${call.ledger ? html`<${LedgerLink} ledger=${call.ledger} />` : null}</${Head}>
    ${words ? html`<p class="dim"><${Text}>${words}</${Text}>${task}</p>` : null}
    ${call.why ? html`<p class="story-waited"><${Text}>${call.why}</${Text}></p>` : null}
    <details class="story-fold"><summary>Arguments${size}</summary>
      <h3>Arguments</h3><${Json} value=${call.arguments} />
      ${call.output_chars ? html`<h3>Output</h3><${Json} value=${call.output} />` : null}
      ${call.output_chars > call.output.length
        ? html`<${Whole} runId=${runId} number=${round.number} label="Show the whole output" show=${whole} />`
        : null}
    </details>`;
}

function LedgerLink({ ledger }) {
  const name = ledger.state === "unknown" ? "unknown outcome: settle it" : `ledger: ${ledger.state}`;
  return html`<a href=${href("ledger", { entry: ledger.entry_id })}>${name}</a>`;
}

/** What is too long for a story is read when somebody wants to see it. */
function Whole({ runId, number: round, label, show }) {
  const [whole, setWhole] = useState(null);
  if (whole) return show(whole);
  const read = async () => setWhole(await ask(`/runs/${encodeURIComponent(runId)}/rounds/${round}`, { reads: "" }));
  return html`<${Button} kind="quiet" onClick=${read}>${label}</${Button}>`;
}

/** What else belongs to the story. */
export function Related({ run, message }) {
  const own = message?.message.message_id;
  const links = [];
  const add = (name, where, text) => {
    links.push(html`<li key=${links.length}><span class="dim">${name}</span> <a href=${where}>${shown(text)}</a></li>`);
  };
  const session = run?.run.session_key ?? message?.message.session_key;
  add("Session", href("chat", session), session);
  if (run?.parent_session) add("Works for session", href("chat", run.parent_session), run.parent_session);
  for (const each of message?.runs ?? []) add("Run", href("story", "run", each), each);
  for (const each of run?.messages ?? []) {
    if (each.message_id === own) continue;
    add(`Message (${each.role})`, href("story", "message", each.message_id), each.text.slice(0, 80) || each.message_id);
  }
  if (message?.message.retry_of) add("Sent again for", href("story", "message", message.message.retry_of), message.message.retry_of);
  if (message?.message.disposition === "dead_lettered") add("Dead letter", href("letters", own), own);
  if (run?.resumed_from) add("Goes on for run", href("story", "run", run.resumed_from), run.resumed_from);
  if (run?.resumed_by) add("Gone on with by run", href("story", "run", run.resumed_by), run.resumed_by);
  const fork = run?.forked_from;
  if (fork) add("Fork of run", href("replay", fork.run_id, { step: fork.step }), `${fork.run_id}, at step ${fork.step}`);
  for (const each of run?.children ?? []) {
    if (each.run_id) add("Sub-agent", href("story", "run", each.run_id), each.label || each.run_id);
  }
  const calls = (run?.rounds ?? []).flatMap((round) => round.calls);
  const unknown = calls.filter((each) => each.ledger?.state === "unknown");
  const open = unknown.length ? `, ${unknown.length} unknown` : "";
  if (calls.some((each) => each.ledger)) add("Ledger", href("ledger", { run: run.run.run_id }), `calls with side effects${open}`);
  return html`<section class="card" aria-labelledby="story-related-title">
    <h2 id="story-related-title">Related</h2><ul class="story-related">${links}</ul>
  </section>`;
}
