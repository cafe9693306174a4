/** Parts of the list of sessions: a row, a new session, a stop, a passivation. */
import { ask, newKey } from "../core/api.js";
import { number, plural, shown } from "../core/format.js";
import { go, href } from "../core/router.js";
import { confirm, Dialog, prompt } from "../ui/dialogs.js";
import { Labels } from "../ui/labels.js";
import { Badge, Button, Field, Form, html, Text, Time, toast, useMemo, useState } from "../ui/parts.js";
import { modeName, whyWords } from "./queue_model.js";
import { freshKey, keyProblem, passivatedWords, stateOf } from "./sessions_model.js";

/** A session in the list. */
export function Row({ item, onDone }) {
  const { word, tone } = stateOf(item);
  const why = item.resting_reason || item.waits_for || (item.waiting && item.reason ? whyWords(item.reason) : "");
  const who = { user: "", assistant: "↳ ", waiting: "waits: ", system: "" }[item.preview_role] ?? "";
  return html`<div class="session-row">
    <div class="session-words">
      <div class="session-name"><a href=${href("chat", item.session_key)}><${Text}>${item.session_key}</${Text}></a>
        <${Badge} tone=${tone}>${word}</${Badge}>
        ${item.waiting
          ? html`<a class="session-depth" href=${href("sessions", item.session_key)}>${number(item.waiting)} waiting</a>` : null}
        <${Labels} identity=${item.identity} />
      </div>
      <div class="session-say dim">${why ? html`<${Text}>${why}</${Text}>` : html`${who}<${Text}>${item.preview}</${Text}>`}</div>
    </div>
    <div class="session-facts dim"><span title="What a message does while it is busy">${modeName(item.mode)}</span>
      <${Time} ms=${item.last_ms} /></div>
    <div class="session-actions">
      <a class="button button-quiet button-icon" href=${href("sessions", item.session_key)} title="Queue and settings"
        aria-label="Queue and settings of ${shown(item.session_key)}">⋯</a>
      ${item.run_id || item.waiting
        ? html`<${Button} kind="quiet" icon="stop" title="Stop everything in it"
            onClick=${() => stop(item.session_key).then(onDone)} />` : null}
    </div>
  </div>`;
}

/** Ask, and stop a session: what waits, what runs, its sub-agents. */
export async function stop(key) {
  const text = "What runs is ended, what waits is taken back, its sub-agents are stopped.";
  if (!(await confirm({ title: `Stop everything in ${shown(key)}?`, text, yes: "Stop", danger: true }))) return;
  const done = await ask(`/sessions/${encodeURIComponent(key)}/stop`, { body: {} });
  toast(`Stopped: ${plural(done.turns, "run")}, ${plural(done.waiting + done.debounced, "message")}.`);
}

/** Ask, and have a session leave memory. */
export async function passivate(key) {
  const text = "It comes to a boundary, is stored whole and leaves memory. What still runs after 30 seconds is cut, and goes on later.";
  const hint = "It is back by itself with a message, an answer, the result of a task, or when what its run waits for is over.";
  const title = `Passivate ${shown(key)}?`;
  const reason = await prompt({ title, text, label: "Why (for the audit log)", hint, yes: "Passivate" });
  if (reason === null) return;
  const done = await ask(`/sessions/${encodeURIComponent(key)}/passivate`, { body: { reason } });
  toast(passivatedWords(done));
}

/** Begin a session with its first message. */
export function NewSession({ onClose }) {
  const [key, setKey] = useState(freshKey);
  const [text, setText] = useState("");
  const [isTried, setTried] = useState(false);
  const once = useMemo(newKey, []);
  const wrong = keyProblem(key);
  const send = async () => {
    setTried(true);
    if (wrong || !text.trim()) return;
    const name = key.trim();
    await ask(`/sessions/${encodeURIComponent(name)}/messages`, { body: { text }, key: once });
    onClose();
    go(href("chat", name));
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit();
  };
  return html`<${Dialog} title="New session" onClose=${onClose}>
    <${Form} onSubmit=${send} onKeyDown=${keys}>
      <${Field} label="Name" error=${isTried ? wrong : ""} hint="What it is found by; a name that exists goes on with that session.">
        <input value=${key} autocomplete="off" onInput=${(event) => setKey(event.target.value)} /></${Field}>
      <${Field} label="First message" error=${isTried && !text.trim() ? "Say something." : ""}>
        <textarea rows="4" autofocus value=${text} onInput=${(event) => setText(event.target.value)}></textarea></${Field}>
      <div class="dialog-foot"><${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" type="submit" icon="send">Send</${Button}></div>
    </${Form}>
  </${Dialog}>`;
}
