/** Parts of the view of dead letters: a row, the filter, what came of many, and the form that changes one. */
import { ask } from "../core/api.js";
import { href } from "../core/router.js";
import { Dialog } from "../ui/dialogs.js";
import { Badge, Button, Copy, Field, Form, html, Json, Text, Time, toast, useEffect, useState } from "../ui/parts.js";
import { changeOf, contentOf, editable, flawOf, isNarrow, sentenceOf, summed } from "./letters_model.js";
import { inOneLine } from "./tasks_model.js";

const KINDS = { message: "message", call: "call", job: "job" };
const RESULTS_SHOWN = 200;

/** One letter in the list. */
export function LetterRow({ letter, isChosen, isOpen, onChoose, onOpen, onEdit, onRetry, onPurge }) {
  const name = letter.kind === "message" ? "message" : letter.what;
  const canDo = letter.status === "open";
  return html`<tr class="letter-row" data-letter=${letter.letter_id}>
    <td class="letter-check">${canDo ? html`<input type="checkbox" aria-label="Choose ${name} ${letter.letter_id}" checked=${isChosen}
      onClick=${(event) => onChoose(letter.letter_id, event.shiftKey)} />` : null}</td>
    <td data-label="Letter"><div class="stack letter-what">
      <button type="button" class="letter-open" aria-expanded=${String(isOpen)} onClick=${() => onOpen(letter.letter_id)}>
        <${Text}>${inOneLine(letter.kind === "message" ? letter.text : letter.arguments, 140) || name}</${Text}></button>
      <span class="row dim">${KINDS[letter.kind]}${letter.kind === "message" ? null : html` <code><${Text}>${letter.what}</${Text}></code>`}
        ${letter.edited ? html`<${Badge} tone="run">changed</${Badge}>` : null}
        ${letter.attempts ? html`<span>after ${letter.attempts} attempts</span>` : null}</span></div></td>
    <td data-label="Of"><div class="stack letter-what">${letter.session_key
      ? html`<a href=${href("chat", letter.session_key)}><${Text}>${letter.session_key}</${Text}></a>` : html`<span>the server</span>`}
      ${letter.lane ? html`<span class="dim">lane <${Text}>${letter.lane}</${Text}></span>` : null}</div></td>
    <td data-label="Error"><div class="letter-error"><${Text}>${letter.error}</${Text}></div></td>
    <td data-label="Died"><${Time} ms=${letter.died_ms} /></td>
    <td class="right"><div class="row letter-actions"><${Fate} letter=${letter} />
      ${canDo ? html`${editable(letter) ? html`<${Button} icon="edit" title="Change it" onClick=${() => onEdit(letter)} />` : null}
        <${Button} icon="refresh" onClick=${() => onRetry([letter.letter_id])}>Retry</${Button}>
        <${Button} icon="trash" title="Forget it" onClick=${() => onPurge([letter.letter_id])} />` : null}</div></td>
  </tr>${isOpen ? html`<tr class="letter-more"><td colspan="6"><${Whole} letter=${letter} /></td></tr>` : null}`;
}

/** What became of a letter, if anything did. */
function Fate({ letter }) {
  if (letter.status === "purged") return html`<${Badge} tone="off">forgotten</${Badge}>`;
  if (letter.status !== "retried") return null;
  return html`<a href=${href("story", "message", letter.message_id)}>sent again</a>`;
}

function Whole({ letter }) {
  return html`<div class="stack">
    <div><h3>${letter.kind === "message" ? "What it says" : "Called with"}</h3><${Json} value=${contentOf(letter)} /></div>
    <div><h3>What went wrong</h3><${Json} value=${letter.error} /></div>
    <div class="row"><span class="mono dim">${letter.letter_id}</span><${Copy} text=${letter.letter_id} label="Copy the id" />
      ${letter.kind === "message" ? html`<a href=${href("story", "message", letter.letter_id)}>Its story</a>` : null}</div>
  </div>`;
}

/** Which letters are looked for. */
export function Filter({ filter, onChange, first }) {
  const [words, setWords] = useState(filter);
  useEffect(() => setWords(filter), [JSON.stringify(filter)]);
  const fields = [["text", "Says"], ["error", "Error"], ["session", "Session"], ["tool", "Tool"], ["lane", "Lane"]];
  const submit = (event) => {
    event.preventDefault();
    onChange({ ...filter, ...Object.fromEntries(fields.map(([name]) => [name, (words[name] ?? "").trim()])) });
  };
  const clear = () => {
    setWords({});
    onChange({});
  };
  const choose = (name) => (event) => onChange({ ...filter, [name]: event.target.value });
  return html`<form class="toolbar letter-filter" role="search" aria-label="Filter dead letters" onSubmit=${submit}>
    ${fields.map(([name, label], at) => html`<${Field} label=${label} inline=${true} key=${name}><input type="search" size="11"
      ref=${at ? undefined : first} value=${words[name] ?? ""}
      onInput=${(event) => setWords({ ...words, [name]: event.target.value })} /></${Field}>`)}
    <${Field} label="Kind" inline=${true}><select value=${filter.kind ?? ""} onChange=${choose("kind")}><option value="">any</option>
      <option value="message">messages</option><option value="call">calls</option><option value="job">jobs</option></select></${Field}>
    <${Field} label="Died" inline=${true}><select value=${filter.age ?? ""} onChange=${choose("age")}><option value="">at any time</option>
      <option value="hour">in the last hour</option><option value="day">in the last day</option>
      <option value="week">in the last week</option><option value="older">longer ago</option></select></${Field}>
    <${Button} type="submit" icon="search">Filter</${Button}>
    ${isNarrow(filter) ? html`<${Button} kind="quiet" onClick=${clear}>Clear</${Button}>` : null}
  </form>`;
}

/** What came of many letters; `work` is what `useMany` says. */
export function Results({ work, onAgain, onStop, onClose }) {
  const sum = summed(work.items);
  const isOver = !work.isBusy;
  return html`<section class="card stack letter-results" aria-label="What became of them">
    <div class="row spread">
      <p role="status"><strong>${work.isBusy ? "At it … " : work.error ? "It stopped: " : "Done: "}</strong>${sentenceOf(sum)}</p>
      <div class="row">${work.isBusy ? html`<${Button} onClick=${onStop}>Stop</${Button}>` : null}
        ${isOver ? html`<${Button} kind="quiet" icon="x" title="Close" onClick=${onClose} />` : null}</div></div>
    ${work.error ? html`<div class="row"><p class="letter-refused"><${Text}>${work.error.message}</${Text}></p>
      <${Button} icon="refresh" onClick=${onAgain}>Go on</${Button}>
      <span class="dim">Nothing is sent twice: the same request is asked again.</span></div>` : null}
    ${sum.rows.length ? html`<ul class="letter-outcomes">${sum.rows.slice(0, RESULTS_SHOWN).map((each) => html`<li key=${each.letter_id}>
      <${Outcome} dealt=${each} /> <span class="mono dim">${each.letter_id}</span>
      ${each.message_id ? html` <a href=${href("story", "message", each.message_id)}>became ${each.message_id}</a>` : null}
      ${each.detail ? html` <span class="letter-refused"><${Text}>${each.detail}</${Text}></span>` : null}</li>`)}
      ${sum.rows.length > RESULTS_SHOWN ? html`<li class="dim">and ${sum.rows.length - RESULTS_SHOWN} more</li>` : null}</ul>` : null}
  </section>`;
}

function Outcome({ dealt }) {
  const tones = { sent: "ok", purged: "off", gone: "warn", refused: "bad" };
  const words = { sent: "sent again", purged: "forgotten", gone: "gone already", refused: "refused" };
  return html`<${Badge} tone=${tones[dealt.outcome]}>${words[dealt.outcome] ?? dealt.outcome}</${Badge}>`;
}

/** Change what a letter says, or is called with; and send it, if that is wanted. */
export function EditDialog({ letter, onClose, onDone, onRetry }) {
  const what = editable(letter);
  const [text, setText] = useState(contentOf(letter));
  const [flaw, setFlaw] = useState("");
  const save = async () => {
    const wrong = flawOf(what, text);
    setFlaw(wrong);
    if (wrong) return false;
    await ask(`/dead-letters/${encodeURIComponent(letter.letter_id)}`, { method: "PATCH", body: changeOf(what, text) });
    onDone();
    return true;
  };
  const keep = async () => {
    if (!(await save())) return;
    onClose();
    toast("It was changed, and waits to be sent again.", { tone: "ok" });
  };
  const send = async () => {
    if (!(await save())) return;
    onClose();
    await onRetry([letter.letter_id]);
  };
  const label = what === "text" ? "What it is to say" : "What it is to be called with, as a JSON list";
  return html`<${Dialog} title="Change the letter" onClose=${onClose} wide=${true}>
    <${Form} onSubmit=${keep}>
      <p class="dim">It died with: <${Text}>${inOneLine(letter.error, 300)}</${Text}></p>
      <${Field} label=${label} error=${flaw}><textarea rows="10" class=${what === "args" ? "mono" : ""} spellcheck=${what === "text"}
        value=${text} onInput=${(event) => setText(event.target.value)}></textarea></${Field}>
      <div class="dialog-foot"><${Button} onClick=${onClose}>Cancel</${Button}><${Button} type="submit">Keep it</${Button}>
        <${Button} kind="primary" icon="send" onClick=${send}>Send it again</${Button}></div>
    </${Form}>
  </${Dialog}>`;
}
