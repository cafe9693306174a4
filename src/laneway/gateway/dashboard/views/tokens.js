/** Tokens: who may come in, and with which rights. A secret is shown once. */
import { about, ask, can } from "../core/api.js";
import { plural, shown } from "../core/format.js";
import { Dialog, prompt } from "../ui/dialogs.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Copy, Empty, Field, Form, html, Page, stateTone, Text, Time, toast, useState } from "../ui/parts.js";

const SCOPES = [
  ["chat", "talk to sessions and see them"],
  ["operate", "also approve, pause, resize, cancel, retry"],
  ["admin", "also make and revoke tokens"],
  ["worker", "only take external tasks"],
];
const DAY = 86400000;
const SPANS = [[0, "never"], [DAY, "in a day"], [7 * DAY, "in a week"], [30 * DAY, "in 30 days"], [365 * DAY, "in a year"]];

/** The view. */
export default function Tokens() {
  const load = useLoad((abort) => ask("/tokens", { reads: "", signal: abort }), []);
  const [isNew, setNew] = useState(false);
  const [made, setMade] = useState(null);
  const onMade = (token) => {
    setNew(false);
    setMade(token);
    load.reload();
  };
  const revoke = async (token) => {
    const reason = await prompt({
      title: `Revoke ${shown(token.name)}?`,
      text: "Whoever uses it is out at once, with all streams. This cannot be undone.",
      label: "Reason, for the audit log",
      yes: "Revoke it",
    });
    if (reason === null) return;
    await ask(`/tokens/${encodeURIComponent(token.id)}`, { method: "DELETE", query: { reason }, reads: "" });
    toast(`${token.name} is revoked.`);
    await load.reload();
  };
  const actions = html`<${Button} kind="primary" icon="plus" onClick=${() => setNew(true)}>New token</${Button}>`;
  return html`<${Page} title="Tokens" lead="Who may come in, and what for. The first token closes the server to everybody without one."
    actions=${can("admin") || !load.error ? actions : null}>
    <${Loaded} load=${load} empty=${html`<${Empty} title="There are no tokens">Whoever is on this machine may talk and look.
      Make one for an operator, a phone or another machine.</${Empty}>`}>
      ${(data) => html`<${List} items=${data.items} revoke=${revoke} />`}
    </${Loaded}>
    ${isNew ? html`<${NewToken} onMade=${onMade} close=${() => setNew(false)} />` : null}
    ${made ? html`<${Secret} token=${made} close=${() => setMade(null)} />` : null}
  </${Page}>`;
}

function List({ items, revoke }) {
  const valid = items.filter((each) => each.state === "valid");
  const sorted = [...valid, ...items.filter((each) => each.state !== "valid")];
  return html`<p class="dim">${plural(valid.length, "token")} of ${items.length} count.</p>
    <table class="table"><caption class="visually-hidden">Tokens</caption>
      <thead><tr><th>Name</th><th>State</th><th>May</th><th>Tenant</th><th>Made</th><th>Ends</th>
        <th><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${sorted.map((each) => html`<tr key=${each.id} data-token=${each.id}>
        <td data-label="Name"><span><${Text}>${each.name}</${Text}> <span class="dim mono">${each.id}</span></span></td>
        <td data-label="State"><span><${Badge} tone=${stateTone(each.state)}>${each.state}</${Badge}></span></td>
        <td data-label="May">${each.scopes.join(", ")}</td>
        <td data-label="Tenant">${each.tenant === "*" ? "all" : html`<${Text}>${each.tenant}</${Text}>`}</td>
        <td data-label="Made"><${Time} ms=${each.created_ms} /></td>
        <td data-label="Ends">${endOf(each)}</td>
        <td class="right">${each.state === "valid"
          ? html`<${Button} kind="danger" aria-label=${`Revoke ${each.name}`} onClick=${() => revoke(each)}>Revoke</${Button}>`
          : null}</td></tr>`)}</tbody>
    </table>`;
}

function endOf(token) {
  if (token.revoked_ms) return html`<span>revoked <${Time} ms=${token.revoked_ms} /></span>`;
  if (!token.kept) return "with this server";
  return token.expires_ms ? html`<${Time} ms=${token.expires_ms} />` : "never";
}

function NewToken({ onMade, close }) {
  const [form, setForm] = useState({ name: "", scope: "chat", tenant: "", span: "0", reason: "" });
  const [errors, setErrors] = useState({});
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const submit = async () => {
    const wrong = form.name.trim() ? {} : { name: "Give it a name: who will use it?" };
    setErrors(wrong);
    if (wrong.name) return;
    const body = { name: form.name.trim(), scopes: [form.scope], reason: form.reason };
    if (form.tenant.trim()) body.tenant = form.tenant.trim();
    if (Number(form.span)) body.expires_in_ms = Number(form.span);
    onMade(await ask("/tokens", { body, reads: "" }));
  };
  return html`<${Dialog} title="New token" onClose=${close}>
    <${Form} onSubmit=${submit}>
      <${Field} label="Name" error=${errors.name} hint="Who will use it: a person, a phone, a worker.">
        <input type="text" value=${form.name} maxLength="200" autocomplete="off" onInput=${set("name")} autofocus />
      </${Field}>
      <fieldset class="tokens-scopes"><legend>It may</legend>
        ${SCOPES.map(([name, words]) => html`<label key=${name}>
          <input type="radio" name="scope" value=${name} checked=${form.scope === name} onChange=${set("scope")} />
          <span><strong>${name}</strong> <span class="dim">${words}</span></span></label>`)}
      </fieldset>
      <${Field} label="Tenant" hint=${`Whose things it sees; * for all. Empty: ${about.value?.tenant ?? "yours"}.`}>
        <input type="text" value=${form.tenant} autocomplete="off" spellcheck=${false} onInput=${set("tenant")} />
      </${Field}>
      <${Field} label="It ends"><select value=${form.span} onChange=${set("span")}>
        ${SPANS.map(([ms, words]) => html`<option key=${ms} value=${ms}>${words}</option>`)}</select></${Field}>
      <${Field} label="Reason, for the audit log">
        <input type="text" value=${form.reason} autocomplete="off" onInput=${set("reason")} /></${Field}>
      <div class="dialog-foot">
        <${Button} onClick=${close}>Cancel</${Button}><${Button} kind="primary" type="submit">Make it</${Button}>
      </div>
    </${Form}>
  </${Dialog}>`;
}

function Secret({ token, close }) {
  const address = `${location.origin}${location.pathname}#token=${token.secret}`;
  const isPerson = !token.scopes.includes("worker");
  return html`<${Dialog} title=${`The token of ${shown(token.name)}`} onClose=${close}>
    <p><strong>Copy it now: it is shown this once.</strong> Whoever has it may do what it may do.</p>
    <div class="row"><code class="grow tokens-secret">${token.secret}</code><${Copy} text=${token.secret} label="Copy the token" /></div>
    ${isPerson ? html`<p class="dim">Or an address that opens this page with it, for another device:</p>
      <div class="row"><code class="grow tokens-secret">${address}</code><${Copy} text=${address} label="Copy the address" /></div>` : null}
    <div class="dialog-foot"><${Button} kind="primary" onClick=${close}>I have it</${Button}></div>
  </${Dialog}>`;
}
