/** Parts of the views of external tasks: a row of the list, what can be done to a task, and the form that ends one by hand. */
import { ask, can } from "../core/api.js";
import { now, number } from "../core/format.js";
import { href } from "../core/router.js";
import { confirm, Dialog, prompt } from "../ui/dialogs.js";
import { Badge, Button, Countdown, Field, Form, html, Since, Text, Time, toast, useState } from "../ui/parts.js";
import { inOneLine, isHeld, isLive, leaseOf, resultOf, stateOf, warningOf } from "./tasks_model.js";

/** The state of a task in a word. */
export function TaskState({ task }) {
  const { words, tone } = stateOf(task);
  return html`<${Badge} tone=${tone} title=${task.reason || undefined}>${words}</${Badge}>`;
}

/** How much of a lease is left, as a bar and a countdown. */
export function Lease({ task }) {
  const lease = leaseOf(task, now.value);
  if (!lease) return null;
  const width = `${Math.round(lease.left * 100)}%`;
  const title = "Without a sign of life until then it is taken from the worker.";
  return html`<div class="task-lease" title=${title}>
    <span class="bar task-bar-${lease.tone}" aria-hidden="true"><span style=${{ width }}></span></span>
    <span class="dim">lease <${Countdown} until=${task.leaseUntil} /></span></div>`;
}

/** How far a worker says that it is. */
export function TaskProgress({ progress }) {
  if (!progress || (!progress.text && progress.percent === null)) return null;
  const percent = progress.percent;
  return html`<div class="task-progress">
    ${percent === null ? null : html`<span class="bar" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100"
      aria-valuenow=${Math.round(percent)}><span style=${{ width: `${percent}%` }}></span></span>`}
    <span class="dim">${percent === null ? "" : `${number(Math.round(percent))} % `}<${Text}>${progress.text}</${Text}></span></div>`;
}

/** Why a task waits, or who has it and when that was heard of. */
export function TaskWho({ task }) {
  if (task.state === "pending") {
    return html`<div class="task-why"><${Text}>${task.why || "A worker is about to take it."}</${Text}></div>`;
  }
  if (isHeld(task)) {
    return html`<div class="stack task-who">
      <span><a href=${href("workers", { name: task.worker })}><${Text}>${task.worker}</${Text}></a>
        ${Number.isFinite(task.heardAt) ? html`<span class="dim"> heard <${Time} ms=${task.heardAt} /></span>` : null}</span>
      <${TaskProgress} progress=${task.progress} /><${Lease} task=${task} /></div>`;
  }
  const by = task.worker === "host" ? "by hand" : task.worker;
  return html`<div class="stack task-who">${by ? html`<span><${Text}>${by}</${Text}></span>` : null}
    ${task.reason && task.state !== "completed" ? html`<span class="dim"><${Text}>${task.reason}</${Text}></span>` : null}</div>`;
}

/** One task in the list. */
export function TaskRow({ task, onDone, onEnd }) {
  return html`<tr class="task-row">
    <td data-label="Task"><div class="stack task-what">
      <a href=${href("tasks", task.task_id)} class="task-name"><${Text}>${task.tool}</${Text}></a>
      <span class="mono dim task-args"><${Text}>${inOneLine(task.arguments)}</${Text}></span>
      ${task.labels.length ? html`<span class="row">${task.labels.map((each) => html`<span class="chip" key=${each}>
        <${Text}>${each}</${Text}></span>`)}</span>` : null}</div></td>
    <td data-label="Session"><div class="stack task-who">
      <a href=${href("chat", task.session_key)}><${Text}>${task.session_key}</${Text}></a>
      <span class="dim">lane <${Text}>${task.lane}</${Text}></span></div></td>
    <td data-label="State"><div class="stack task-who"><${TaskState} task=${task} />
      ${task.attempt > 1 ? html`<span class="dim">attempt ${task.attempt}</span>` : null}</div></td>
    <td data-label=${task.state === "pending" ? "Why it waits" : "Worker"}><${TaskWho} task=${task} /></td>
    <td data-label=${isLive(task) ? "For" : "Ended"}><${Since} ms=${isLive(task) ? task.created_ms : task.ended_ms} />
      ${isLive(task) ? null : " ago"}</td>
    <td class="right"><${TaskActions} task=${task} onDone=${onDone} onEnd=${onEnd} /></td></tr>`;
}

/**
 * What an operator can do to a task that has not ended, or of which nobody knows how it did. `onEnd(task)` opens the dialog
 * that ends it: the view has that, because a row goes elsewhere when a worker takes its task.
 */
export function TaskActions({ task, onDone, onEnd }) {
  const canEnd = isLive(task) || task.state === "unknown";
  if (!canEnd) return null;
  const cancel = async () => {
    const reason = await prompt({
      title: `Cancel ${task.tool}?`, text: warningOf(task, "cancel"), label: "Why (kept in the audit log)", yes: "Cancel the task",
    });
    if (reason === null) return;
    await ask(`/tasks/${encodeURIComponent(task.task_id)}/cancel`, { body: { reason } });
    toast(`${task.tool} was cancelled.`, { tone: "ok" });
    onDone?.();
  };
  const release = async () => {
    const isBegun = task.state === "started";
    const isSure = await confirm({
      title: `Take ${task.tool} from ${task.worker}?`, text: warningOf(task, "release"), yes: "Take it back", danger: isBegun,
    });
    if (!isSure) return;
    await ask(`/tasks/${encodeURIComponent(task.task_id)}/release`, { body: { reason: "taken back in the dashboard", begun: isBegun } });
    toast(`${task.tool} was taken from ${task.worker}.`, { tone: "ok" });
    onDone?.();
  };
  const title = can("operate") ? undefined : "This needs a token with the scope operate; it will be asked for.";
  return html`<div class="row task-actions">
    <${Button} onClick=${() => onEnd(task)} title=${title}>End by hand</${Button}>
    ${isHeld(task) ? html`<${Button} onClick=${release} title=${title}>Take back</${Button}>` : null}
    ${isLive(task) ? html`<${Button} kind="danger" onClick=${cancel} title=${title}>Cancel</${Button}>` : null}
  </div>`;
}

/** Say what came of a task, as its worker would. */
export function EndDialog({ task, onClose, onDone }) {
  const [outcome, setOutcome] = useState("completed");
  const [text, setText] = useState("");
  const [isJson, setJson] = useState(false);
  const [reason, setReason] = useState("");
  const [flaw, setFlaw] = useState("");
  const isWell = outcome === "completed";
  const submit = async () => {
    const { value, error } = isWell ? resultOf(text, isJson) : { value: text, error: text.trim() ? "" : "Say what went wrong." };
    setFlaw(error || "");
    if (error) return;
    const body = isWell ? { result: value, reason } : { error: value, reason };
    await ask(`/tasks/${encodeURIComponent(task.task_id)}/${isWell ? "complete" : "fail"}`, { body });
    onClose();
    toast(`${task.tool} has ${isWell ? "completed" : "failed"}: its run goes on.`, { tone: "ok" });
    onDone?.();
  };
  const held = isHeld(task) ? html`<p>${task.worker} has it at this moment, and hears at its next sign of life that it is not wanted
    any more. What it says after that does not count.</p>` : null;
  return html`<${Dialog} title="End ${task.tool} by hand" onClose=${onClose}>
    <${Form} onSubmit=${submit}>
      <p class="dim">The agent hears this as if a worker had said it. It is kept in the audit log.</p>${held}
      <fieldset class="task-outcome"><legend>What came of it</legend>
        <label><input type="radio" name="outcome" checked=${isWell} onChange=${() => setOutcome("completed")} /> It worked</label>
        <label><input type="radio" name="outcome" checked=${!isWell} onChange=${() => setOutcome("failed")} /> It did not work</label>
      </fieldset>
      <${Field} label=${isWell ? "Result, for the model" : "What went wrong, for the model"} error=${flaw}>
        <textarea rows="5" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></${Field}>
      ${isWell ? html`<p><label><input type="checkbox" checked=${isJson} onChange=${(event) => setJson(event.target.checked)} />
        ${" "}The result is JSON</label></p>` : null}
      <${Field} label="Why (kept in the audit log)"><input type="text" maxlength="2000" autocomplete="off" value=${reason}
        onInput=${(event) => setReason(event.target.value)} /></${Field}>
      <div class="dialog-foot"><${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" type="submit">${isWell ? "Complete it" : "Fail it"}</${Button}></div>
    </${Form}>
  </${Dialog}>`;
}
