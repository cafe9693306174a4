/** One waiting message: what it says, why it waits, and what can be done about it. */
import { href } from "../core/router.js";
import { Badge, Button, html, Since, stateTone, Text, useEffect, useRef, useState } from "../ui/parts.js";
import { modeName, MODES, modeWords, whyWords } from "./queue_model.js";

const TEXT_SHOWN = 400;
const WORDS = { held: "held", parked: "goes in next" };

/** A row of the queue. `act` has what can be done with a message: edit, hold, release, withdraw, steer, sendAs. */
export function QueueRow({ row, isNarrow, act }) {
  if (row.isUnread) return html`<div class="queue-in dim"><span></span><span class="queue-place num">${row.position}</span> …</div>`;
  const sender = row.sender ? row.sender.name || row.sender.id : row.kind === "user" ? "host" : row.kind;
  const isHeld = row.disposition === "held";
  return html`<div class="queue-in">
    <span class="queue-handle" data-handle="" aria-hidden="true" title="Drag to another place (or Alt+↑ and Alt+↓)">⠿</span>
    <span class="queue-place num" title="Its place">${row.position}</span>
    <div class="queue-words">
      <div class="queue-text"><${Text}>${row.text.slice(0, TEXT_SHOWN)}</${Text}></div>
      <div class="queue-facts dim">
        ${WORDS[row.disposition] ? html`<${Badge} tone=${stateTone(row.disposition)}>${WORDS[row.disposition]}</${Badge}>` : null}
        <span class="queue-mode" title=${modeWords(row.mode)}>${modeName(row.mode)}</span>
        <span class="queue-sender" title="Who sent it">${row.kind === "user" ? "from" : ""} <${Text}>${sender}</${Text}></span>
        <span title="How long it has waited"><${Since} ms=${row.arrived_ms} /></span>
        <span class="queue-why" title=${whyWords(row.reason)}><${Text}>${whyWords(row.reason)}</${Text}></span>
      </div>
    </div>
    <div class="queue-actions" role="group" aria-label="Message at place ${row.position}">
      ${row.kind === "user" && row.disposition !== "parked"
        ? html`<${Button} kind="quiet" icon="steer" title="Steer now: into the running turn" onClick=${() => act.steer(row)} />`
        : null}
      <${Button} kind="quiet" icon=${isHeld ? "play" : "pause"} title=${isHeld ? "Release" : "Hold: others pass it"}
        onClick=${() => (isHeld ? act.release(row) : act.hold(row))} />
      <${Button} kind="quiet" icon="edit" title="Edit" onClick=${() => act.edit(row)} />
      <${Button} kind="quiet" icon="trash" title="Withdraw" onClick=${() => act.withdraw(row)} />
      ${row.kind === "user" ? html`<${SendAs} row=${row} act=${act} />` : null}
      ${isNarrow ? html`
        <${Button} kind="quiet" icon="up" title="Move up" onClick=${() => act.shift(row, -1)} />
        <${Button} kind="quiet" icon="down" title="Move down" onClick=${() => act.shift(row, 1)} />` : null}
      <a class="button button-quiet button-icon queue-story" href=${href("story", "message", row.message_id)} title="Its story"
        aria-label="Its story"><${Story} /></a>
    </div>
  </div>`;
}

function Story() {
  return html`<span aria-hidden="true">⋯</span>`;
}

function SendAs({ row, act }) {
  const choose = (event) => {
    const mode = event.target.value;
    event.target.value = "";
    if (mode) act.sendAs(row, mode);
  };
  return html`<select class="queue-as" aria-label="Send as another mode" title="Send as another mode" onChange=${choose}>
    <option value="">Send as …</option>
    ${MODES.map(([value, name, words]) => html`<option value=${value} disabled=${value === row.mode} title=${words}>${name}</option>`)}
  </select>`;
}

/** Another text for a waiting message: `draft.text`, which is changed in place. Ctrl+Enter saves, Escape gives up. */
export function Editor({ draft, onSave, onCancel, note }) {
  const [words, setWords] = useState(draft.text);
  const type = (event) => {
    draft.text = event.target.value; // kept outside, too: the row may go away while somebody types
    setWords(draft.text);
  };
  const field = useRef(null);
  useEffect(() => {
    field.current.focus();
    field.current.setSelectionRange(words.length, words.length);
  }, []);
  const keys = (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      onCancel();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      save.current?.click();
    }
  };
  const save = useRef(null);
  return html`<div class="queue-editor" onKeyDown=${keys}>
    ${note ? html`<p class="field-error" role="alert">${note}</p>` : null}
    <textarea ref=${field} rows="4" aria-label="Text of the message" value=${words} onInput=${type}></textarea>
    <div class="row">
      <span ref=${(node) => { save.current = node?.querySelector("button"); }}><${Button} kind="primary" disabled=${!words.trim()}
        onClick=${() => onSave(words)}>Save</${Button}></span>
      <${Button} onClick=${onCancel}>Cancel</${Button}>
      <span class="dim queue-hint">Ctrl+Enter saves, Escape gives up</span>
    </div>
  </div>`;
}
