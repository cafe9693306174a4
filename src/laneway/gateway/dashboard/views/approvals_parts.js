/** A request for approval: what would run, exactly; who asks; until when; and the answer. */
import { ask, can } from "../core/api.js";
import { wantToken } from "../core/access.js";
import { now, plural, shown } from "../core/format.js";
import { href } from "../core/router.js";
import { prompt } from "../ui/dialogs.js";
import { Badge, Button, Copy, Countdown, html, stateTone, Text, Time, toast, useState } from "../ui/parts.js";
import { afterwards, argumentsOf, decidedMeanwhile, outcome, urgency } from "./approvals_model.js";

/** Requests that somebody has been told the end of already, on this page. */
export const told = new Set();

/** A pending request. `onDone()` is called when it was answered, or somebody else was faster. */
export function ApprovalCard({ approval, onDone, isInChat = false }) {
  const args = argumentsOf(approval);
  const [isOpen, setOpen] = useState(args.cut === null);
  const answer = async (body) => {
    try {
      const path = `/approvals/${encodeURIComponent(approval.approval_id)}`;
      const said = await ask(path, { body: { ...body, digest: approval.digest } });
      told.add(approval.approval_id);
      toast(`${said.action}: ${said.state}.`, { tone: body.approve ? "ok" : "warn" });
    } catch (error) {
      const meanwhile = decidedMeanwhile(error);
      if (!meanwhile) throw error;
      told.add(approval.approval_id);
      toast(meanwhile, { tone: "warn" });
    } finally {
      await onDone();
    }
  };
  const deny = async () => {
    const reason = await prompt({
      title: `Deny ${approval.action}?`,
      label: "Why not? The model is told.",
      yes: "Deny",
      multiline: true,
      check: (text) => (text.length > 2000 ? "At most 2,000 characters." : ""),
    });
    if (reason !== null) await answer({ approve: false, reason });
  };
  return html`<article class="card approval" aria-label="Request: ${shown(approval.action)}" data-approval=${approval.approval_id}>
    <div class="row spread">
      <h2 class="approval-what">Run <code><${Text}>${approval.action}</${Text}></code>?</h2>
      <${Deadline} approval=${approval} />
    </div>
    <${Who} approval=${approval} isInChat=${isInChat} />
    ${approval.why ? html`<p><${Text}>${approval.why}</${Text}></p>` : null}
    ${args.hidden > 0
      ? html`<p class="approval-hidden" role="note">${plural(args.hidden, "character")} in it cannot be seen or change the order of
          others; they are shown as signs like ⟨U+202E⟩.</p>` : null}
    <div class="approval-args">
      <pre tabIndex=${0} dir="ltr" aria-label="Arguments, exactly as they run">${isOpen ? args.text : args.text.slice(0, args.cut)}</pre>
      ${isOpen ? null : html`<div class="approval-cut">
        <${Button} icon="down" onClick=${() => setOpen(true)}>
          Show the rest (${plural(args.length - args.cut, "character")} more)</${Button}></div>`}
      <${Copy} text=${approval.arguments_text} label="Copy the arguments" />
    </div>
    <div class="row">
      <${Button} kind="primary" icon="check" disabled=${!isOpen} onClick=${() => answer({ approve: true })}
        title=${isOpen ? "It runs once, with exactly these arguments" : "Look at all of it first"}>Approve</${Button}>
      <${Button} kind="danger" icon="x" onClick=${deny}>Deny …</${Button}>
      ${isOpen ? null : html`<span class="dim">What is cut off cannot be approved: show the rest first.</span>`}
      ${approval.approvers.length
        ? html`<span class="dim">Only ${approval.approvers.map((each) => shown(each)).join(", ")} may answer.</span>` : null}
      ${approval.escalated ? html`<${Badge} tone="warn">escalated</${Badge}>` : null}
    </div>
  </article>`;
}

function Deadline({ approval }) {
  const tone = urgency(approval, now.value);
  if (!approval.awaited) return html`<span class="dim">${afterwards(approval)}</span>`;
  return html`<span class="row approval-until"><${Badge} tone=${tone}><${Countdown} until=${approval.expires_ms} /></${Badge}>
    <span class="dim">${afterwards(approval)}</span></span>`;
}

function Who({ approval, isInChat }) {
  const who = approval.asked_for ? approval.asked_for.name || approval.asked_for.id : "";
  return html`<p class="dim approval-who">
    ${isInChat ? null : html`<a href=${href("chat", approval.session_key)}><${Text}>${approval.session_key}</${Text}></a>`}
    ${who ? html` for <${Text}>${who}</${Text}>` : null}
    ${approval.lane ? html` in lane <${Text}>${approval.lane}</${Text}>` : null}
    ${" "}asked <${Time} ms=${approval.asked_ms} />
    ${approval.run_id ? html` · <a href=${href("story", "run", approval.run_id)}>its run</a>` : null}</p>`;
}

/** One that was decided. */
export function Decided({ approval }) {
  return html`<tr>
    <td data-label="When"><${Time} ms=${approval.asked_ms} /></td>
    <td data-label="What"><code><${Text}>${approval.action}</${Text}></code>
      <details><summary>Arguments</summary><pre>${shown(approval.arguments_text)}</pre></details></td>
    <td data-label="Session"><a href=${href("chat", approval.session_key)}><${Text}>${approval.session_key}</${Text}></a></td>
    <td data-label="Outcome"><${Badge} tone=${stateTone(approval.state)}>${approval.state}</${Badge}>
      ${" "}<span class="dim"><${Text}>${outcome(approval).slice(approval.state.length)}</${Text}></span></td>
  </tr>`;
}

/** Says how to get the right to answer, to whoever has not got it. */
export function NeedsToken() {
  if (can("operate")) return null;
  return html`<div class="card approval-token row spread" role="note">
    <p>Answers need a token with the scope <code>operate</code>. A server that is started in a terminal prints one; else
      <code>laneway token create NAME --scope operate</code> makes one.</p>
    <${Button} icon="key" onClick=${() => wantToken({ scope: "operate" })}>Use a token</${Button}>
  </div>`;
}
