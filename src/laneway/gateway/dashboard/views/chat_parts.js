/** What a chat is made of: messages, runs with their rounds, calls, plans and sub-agents. */
import { cut, duration, money, number, plural, shown } from "../core/format.js";
import { href } from "../core/router.js";
import { Badge, Button, Clock, Component, Copy, Countdown, html, Icon, Json, Since, Text, Time, useState } from "../ui/parts.js";
import { becameOf, callStatus, canResume, canRetry, contentOf, openersOf, partsOf, statusOf } from "./chat_blocks.js";
import { isFinalRun } from "./chat_model.js";

const STEPS_SHOWN = 30;
const FOLDED = 3000;
const CODE_PIECES = 20; // a text that is longer than these is not looked through in every frame

/** Renders anew only when its version is another one: of a long conversation only what has changed is worked on. */
export class Still extends Component {
  shouldComponentUpdate(next) {
    return next.v !== this.props.v;
  }

  render() {
    return this.props.draw();
  }
}

/** A text in pieces of which only the last one grows. */
export function Words({ pieces, class: name = "" }) {
  return html`<div class="chat-words ${name}" dir="auto">
    ${pieces.map((piece, at) => html`<${Still} key=${at} v=${piece} draw=${() => html`<span>${shown(piece)}</span>`} />`)}
  </div>`;
}

/** What a model has said: code between fences is set as code, all else is text as it came. */
function Said({ pieces }) {
  const text = pieces.length > CODE_PIECES ? "" : pieces.join("");
  if (!text.includes("```") && !text.includes("~~~")) return html`<${Words} pieces=${pieces} class="chat-said" />`;
  const draw = (part) => (part.code ? html`<${Code} part=${part} />` : html`<div class="chat-words" dir="auto">${shown(part.text)}</div>`);
  return html`<div class="chat-said">
    ${partsOf(text).map((part, at) => html`<${Still} key=${at} v=${`${part.code} ${part.text}`} draw=${() => draw(part)} />`)}
  </div>`;
}

function Code({ part }) {
  return html`<figure class="chat-code">
    <figcaption class="dim"><span>${shown(part.language) || "code"}</span><${Copy} text=${part.text} label="Copy the code" /></figcaption>
    <pre tabIndex=${0}><code>${shown(part.text)}</code></pre>
  </figure>`;
}

/** A text of somebody; a very long one is folded. */
export function Long({ text }) {
  const [isOpen, setOpen] = useState(false);
  if (text.length <= FOLDED || isOpen) return html`<div class="chat-words" dir="auto">${shown(text)}</div>`;
  return html`<div class="chat-words" dir="auto">${shown(text.slice(0, FOLDED))} …</div>
    <${Button} kind="quiet" onClick=${() => setOpen(true)}>Show all ${number(text.length)} characters</${Button}>`;
}

function Attachments({ list }) {
  if (!list?.length) return null;
  const name = (each) => each.name || each.filename || each.title || each.url || each.type || "attachment";
  return html`<ul class="chat-files" aria-label="Attachments">
    ${list.map((each, at) => html`<li key=${at}><details>
      <summary class="chip"><${Icon} name="link" /> ${shown(String(name(each)))}</summary>
      <${Json} value=${each} /></details></li>`)}
  </ul>`;
}

/** What has become of a message, with a way to its story. */
export function Became({ message, store }) {
  const end = becameOf(message, store.chat.runs.get(message.runId));
  const reply = store.replies.get(message.id);
  return html`<div class="chat-became">
    ${end ? html`<${Badge} tone=${end.tone}>${end.text}</${Badge}>` : null}
    ${end?.reason ? html`<span class="dim"><${Text}>${end.reason}</${Text}></span>` : null}
    ${message.arrivedMs ? html`<span class="dim"><${Clock} ms=${message.arrivedMs} /></span>` : null}
    <a href=${href("story", "message", message.id)} aria-label="Story of this message">Story</a>
    ${canRetry(message) ? html`<${Button} kind="quiet" icon="refresh" onClick=${() => store.retry(message)}>Send again</${Button}>` : null}
    ${reply ? html`<div class="chat-reply"><${Text} block>${reply}</${Text}></div>` : null}
  </div>`;
}

const who = (message) => message.sender?.name || message.sender?.id || "";

/** A message of somebody. */
export function Message({ message, store, inside = false }) {
  const isSystem = message.kind !== "user";
  const name = isSystem ? "chat-system" : "chat-user";
  return html`<div class="chat-message ${name} ${inside ? "chat-inside" : ""}" data-message=${message.id}>
    <span class="visually-hidden">${isSystem ? "Notice" : "Message"}${who(message) ? ` of ${shown(who(message))}` : ""}: </span>
    ${inside ? html`<div class="chat-tag"><${Icon} name="steer" /> came in while it ran</div>` : null}
    <${Long} text=${message.text} />
    <${Attachments} list=${message.attachments} />
    <${Became} message=${message} store=${store} />
  </div>`;
}

/** Why a call is not made yet: how full its lane is. */
function LaneNow({ name, isQueued, store }) {
  const lane = isQueued ? store.lanes.value.get(name) : null;
  if (!lane) return null;
  return html`<span class="dim">${lane.running} of ${lane.concurrency} run there, ${lane.waiting} wait</span>`;
}

function Times({ call }) {
  const waited = call.startedMs && call.queuedMs ? call.startedMs - call.queuedMs : 0;
  return html`<span class="chat-times dim">
    ${waited > 50 ? `waited ${duration(waited)} · ` : ""}
    ${call.state === "queued" && call.queuedMs ? html`<${Since} ms=${call.queuedMs} />` : null}
    ${call.state === "running" && call.startedMs ? html`<${Since} ms=${call.startedMs} />` : null}
    ${call.durationMs !== null && call.state !== "running" ? duration(call.durationMs) : null}
  </span>`;
}

/** The first words of what a call is asked to do: enough to know which one it is. */
function gist(args) {
  if (!args || typeof args !== "object") return "";
  const first = Object.values(args).find((each) => typeof each === "string" || typeof each === "number");
  return first === undefined ? "" : String(first).split("\n")[0].slice(0, 90);
}

function Call({ call, store }) {
  const status = callStatus(call);
  const isOn = ["running", "written"].includes(call.state);
  return html`<details class="chat-call chat-call-${status.tone}" open=${isOn && Boolean(call.output)}>
    <summary>
      <span class="chat-dot tone-${status.tone}" aria-hidden="true"></span>
      <strong class="mono">${shown(call.name)}</strong>
      <span class="chat-gist mono dim">${shown(gist(call.args))}</span>
      ${call.lane ? html`<span class="chip">${shown(call.lane)}</span>` : null}
      <${Badge} tone=${status.tone}>${shown(status.text)}</${Badge}>
      <${LaneNow} name=${call.lane} isQueued=${call.state === "queued"} store=${store} />
      ${call.attempt > 1 ? html`<span class="dim">attempt ${call.attempt}</span>` : null}
      <${Times} call=${call} />
    </summary>
    <div class="chat-call-body">
      ${call.task ? html`<p class="dim">External task ${shown(call.task.id)}${call.task.worker ? ` at ${shown(call.task.worker)}` : ""}
        ${call.task.progress?.text ? `: ${shown(call.task.progress.text)}` : ""}</p>` : null}
      ${call.denied ? html`<p class="chat-bad">Refused by ${shown(call.denied.gate)}: ${shown(call.denied.reason)}</p>` : null}
      ${call.args && Object.keys(call.args).length ? html`<${Json} value=${call.args} />` : null}
      ${!call.args && call.writing ? html`<pre class="chat-output" tabIndex=${0}>${shown(call.writing)}</pre>` : null}
      ${call.output ? html`<pre class="chat-output" tabIndex=${0} aria-label="Output">${shown(call.output)}</pre>` : null}
      ${call.exitCode !== null && call.exitCode !== 0 ? html`<p class="chat-bad">Exit code ${call.exitCode}</p>` : null}
      ${call.artifact ? html`<p class="dim">The whole output: <code>${shown(call.artifact)}</code></p>` : null}
      ${!call.output && isFinal(call.state) ? html`<p class="dim">It said nothing.</p>` : null}
    </div>
  </details>`;
}

const isFinal = (state) => !["", "queued", "running", "asked", "written"].includes(state);

/** Only the last steps, and a way to the others: a run may have hundreds. */
function Folded({ items, draw, word }) {
  const [isOpen, setOpen] = useState(false);
  const hidden = isOpen ? 0 : Math.max(0, items.length - STEPS_SHOWN);
  const words = `Show ${plural(hidden, `earlier ${word}`)}`;
  return html`${hidden ? html`<${Button} kind="quiet" onClick=${() => setOpen(true)}>${words}</${Button}>` : null}
    ${items.slice(hidden).map(draw)}`;
}

function Round({ round, store }) {
  const calls = [...round.calls.values()];
  return html`<div class="chat-round">
    ${round.reasoning.length
      ? html`<details class="chat-thought"><summary>Thoughts</summary><${Words} pieces=${round.reasoning} /></details>`
      : null}
    ${round.text.length ? html`<${Said} pieces=${round.text} />` : null}
    <${Folded} items=${calls} word="call"
      draw=${(call) => html`<${Still} key=${call.id} v=${call.v} draw=${() => html`<${Call} call=${call} store=${store} />`} />`} />
  </div>`;
}

const MARKS = {
  completed: ["✓", "done"], in_progress: ["▸", "now"], failed: ["✗", "failed"],
  skipped: ["–", "skipped"], cancelled: ["–", "cancelled"],
};

function Plan({ plan }) {
  if (!plan || (plan.state === "none" && !plan.reason)) return null;
  if (plan.state === "none") return html`<p class="dim">It goes on without a plan: ${shown(plan.reason)}</p>`;
  if (!plan.steps.length) return html`<p class="dim" role="status">A plan is being made …</p>`;
  const done = plan.steps.filter((step) => step.status === "completed").length;
  return html`<div class="chat-plan">
    <div class="row spread"><h3>Plan</h3><span class="dim num">${done} of ${plan.steps.length}</span></div>
    <div class="bar" aria-hidden="true"><span style=${{ width: `${(100 * done) / plan.steps.length}%` }}></span></div>
    <ol>${plan.steps.map((step) => {
      const [mark, word] = MARKS[step.status] ?? ["○", "to do"];
      const isNow = step.status === "in_progress" ? "step" : undefined;
      return html`<li key=${step.id} class="chat-step chat-step-${step.status}" aria-current=${isNow}>
        <span class="chat-mark" aria-hidden="true">${mark}</span><span class="visually-hidden">${word}: </span>
        <span>${shown(step.content)}</span>
        ${step.result && step.status !== "completed" ? html`<span class="dim"> ${shown(step.result)}</span>` : null}</li>`;
    })}</ol>
  </div>`;
}

const childTone = (child) => (child.state === "running" ? "run" : child.state === "succeeded" ? "ok" : "bad");

function Children({ list }) {
  if (!list.length) return null;
  return html`<ul class="chat-children" aria-label="Sub-agents">${list.map((child) => html`<li key=${child.id}>
    <span class="chat-dot tone-${childTone(child)}" aria-hidden="true"></span>
    <strong>${shown(child.agent)}</strong> <span>${shown(child.text)}</span>
    <${Badge} tone=${childTone(child)}>${shown(child.state)}</${Badge}>
    ${child.doing ? html`<span class="dim mono">${shown(child.doing)}</span>` : null}
    ${child.durationMs ? html`<span class="dim">${duration(child.durationMs)}</span>` : null}
    ${child.key ? html`<a href=${href("chat", child.key)}>Open</a>` : null}
  </li>`)}</ul>`;
}

function Item({ item, chat, store }) {
  if (item.kind === "round") return html`<${Round} round=${item.round} store=${store} />`;
  if (item.kind !== "steered") return html`<${Said} pieces=${[item.text]} />`;
  const known = item.ids.map((id) => chat.messages.get(id)).filter((each) => each?.isKnown);
  return html`${known.map((each) => html`<${Message} key=${each.id} message=${each} store=${store} inside />`)}
    ${item.skipped.length
      ? html`<p class="dim">${plural(item.skipped.length, "call was", "calls were")} not made because of it.</p>`
      : null}`;
}

function Foot({ run, store }) {
  const isOver = isFinalRun(run.state);
  const took = isOver && run.endedMs && run.beganMs ? duration(run.endedMs - run.beganMs) : "";
  const cost = run.cost ? money(run.cost) : "";
  const facts = [took, run.tokens ? `${number(run.tokens)} tokens` : "", cost, run.toolCalls ? plural(run.toolCalls, "call") : ""];
  const answer = run.answer ?? "";
  return html`<div class="chat-foot dim">
    ${facts.some(Boolean) ? html`<span class="num">${facts.filter(Boolean).join(" · ")}</span>` : null}
    <a href=${href("story", "run", run.id)} aria-label="Story of this run">Story</a>
    ${isOver && !run.rounds.length
      ? html`<${Button} kind="quiet" onClick=${() => store.readWork(run)}>Show its work</${Button}>`
      : null}
    ${isOver && canResume(run)
      ? html`<${Button} kind="quiet" icon="play" onClick=${() => store.resume(run)}>Go on with it</${Button}>`
      : null}
    ${answer ? html`<${Copy} text=${answer} label="Copy the answer" />` : null}
  </div>`;
}

/** A run: the messages that it began over, what it does and says, and how it ended. */
export function Run({ run, chat, store }) {
  const status = statusOf(run);
  const { shown: openers, more, again } = openersOf(chat, run);
  const items = contentOf(chat, run);
  const isOver = isFinalRun(run.state);
  const name = isOver ? "Run" : "Run that goes on";
  return html`<article class="chat-run ${isOver ? "" : "chat-live"}" data-run=${run.id} data-state=${run.state} aria-label=${name}>
    ${openers.map((each) => html`<${Message} key=${each.id} message=${each} store=${store} />`)}
    ${more ? html`<p class="chat-more dim">and ${plural(more, "more message")}, answered together</p>` : null}
    ${again.map((each) => html`<p key=${each.id} class="chat-more dim">again over <q>${shown(cut(each.text, 80))}</q></p>`)}
    <div class="chat-answer">
      ${run.resumedFrom
        ? html`<p class="dim">It goes on where <a href=${href("story", "run", run.resumedFrom)}>a run before it</a> was cut off.</p>`
        : null}
      <${Plan} plan=${run.plan} />
      <${Folded} items=${items} word="step"
        draw=${(item) => html`<${Item} key=${item.key} item=${item} chat=${chat} store=${store} />`} />
      <${Children} list=${[...run.children.values()]} />
      ${run.notes.length
        ? html`<ul class="chat-notes dim">${run.notes.map((text, at) => html`<li key=${at}>${shown(text)}</li>`)}</ul>`
        : null}
      ${status ? html`<div class="chat-status">
        <${Badge} tone=${status.tone}>
          ${isOver ? null : html`<span class="chat-pulse" aria-hidden="true"></span>`}${shown(status.text)}</${Badge}>
        ${status.reason ? html`<span><${Text}>${status.reason}</${Text}></span>` : null}
        ${status.untilMs ? html`<span class="dim">for another <${Countdown} until=${status.untilMs} /></span>` : null}
        ${!isOver && run.beganMs ? html`<span class="dim">began <${Time} ms=${run.beganMs} /></span>` : null}
      </div>` : null}
      <${Foot} run=${run} store=${store} />
    </div>
  </article>`;
}
