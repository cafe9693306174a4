/** Settling unknown outcomes: three ways out, a reason, one call or many; and what went on after that. */
import { ask } from "../core/api.js";
import { plural, shown } from "../core/format.js";
import { href } from "../core/router.js";
import { Dialog } from "../ui/dialogs.js";
import { Button, Field, Form, html, Json, Text, useState } from "../ui/parts.js";
import { sentence } from "../ui/toasts.js";
import { settlement, WAYS, wrongReason } from "./ledger_model.js";

/** Asks what is known of these entries and says so to the server, one by one; what fails is told with its reason. */
export function SettleDialog({ entries, onSettled, onClose }) {
  const [way, setWay] = useState("");
  const [reason, setReason] = useState("");
  const [tells, setTells] = useState(true);
  const [error, setError] = useState({ way: "", reason: "" });
  const [done, setDone] = useState(null);
  const submit = async () => {
    const wrong = { way: way ? "" : "Choose one.", reason: wrongReason(reason) };
    setError(wrong);
    if (wrong.way || wrong.reason) return;
    const results = [];
    for (const entry of entries) results.push(await settle(entry, settlement(way, reason, tells)));
    for (const each of results) if (each.settled) onSettled(each.settled);
    setDone(results);
  };
  if (done) return html`<${Done} results=${done} onClose=${onClose} />`;
  const title = entries.length === 1 ? `What became of ${shown(entries[0].tool)}?` : `What became of these ${entries.length} calls?`;
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <${Form} onSubmit=${submit}>
      ${entries.length === 1
        ? html`<${Json} value=${entries[0].arguments ?? "Its arguments are in the story of its run."} />`
        : html`<p class="dim">${entries.slice(0, 8).map((each) => shown(each.tool)).join(", ")}${entries.length > 8 ? " …" : ""}</p>`}
      <fieldset class="ledger-ways"><legend>What did you find out?</legend>
        ${Object.entries(WAYS).map(([name, each]) => html`<label key=${name} class="ledger-way">
          <input type="radio" name="way" value=${name} checked=${way === name} onChange=${() => setWay(name)} />
          <span><strong>${each.label}</strong><br /><span class="dim">${each.says}</span></span></label>`)}
        ${error.way ? html`<p class="field-error" role="alert">${error.way}</p>` : null}
      </fieldset>
      <${Field} label="How you know" error=${error.reason} hint="It is kept in the ledger and in the audit log.">
        <textarea rows="3" value=${reason} onInput=${(event) => setReason(event.target.value)}></textarea>
      </${Field}>
      ${way && WAYS[way].goes ? html`<label class="row ledger-tells"><input type="checkbox" checked=${tells}
        onChange=${(event) => setTells(event.target.checked)} /> Tell the agent, so that it goes on</label>` : null}
      <div class="dialog-foot">
        <${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" type="submit">Settle ${entries.length === 1 ? "it" : plural(entries.length, "call")}</${Button}>
      </div>
    </${Form}>
  </${Dialog}>`;
}

async function settle(entry, body) {
  const path = `/ledger/${entry.entry_id.split("/").map(encodeURIComponent).join("/")}/settle`;
  try {
    return { entry, settled: await ask(path, { body, reads: "" }) };
  } catch (error) {
    return { entry, error };
  }
}

function Done({ results, onClose }) {
  const failed = results.filter((each) => each.error);
  const told = results.filter((each) => each.settled?.message_id);
  const link = ({ entry, settled }) => html`<li key=${entry.entry_id}>
    <a href=${href("story", "message", settled.message_id)} onClick=${onClose}>what it does now in ${shown(entry.session_key)}</a></li>`;
  return html`<${Dialog} title=${failed.length ? "Not everything was settled" : "Settled"} onClose=${onClose}>
    <p>${plural(results.length - failed.length, "call")} settled.</p>
    ${told.length ? html`<p>The agent was told, and goes on:</p><ul class="ledger-told">${told.map(link)}</ul>` : null}
    ${failed.length ? html`<ul class="ledger-failed">${failed.map(({ entry, error }) => html`<li key=${entry.entry_id}>
      <strong>${shown(entry.tool)}</strong>: <${Text}>${sentence(error.message)}</${Text}></li>`)}</ul>` : null}
    <div class="dialog-foot"><${Button} kind="primary" onClick=${onClose}>Close</${Button}></div>
  </${Dialog}>`;
}
