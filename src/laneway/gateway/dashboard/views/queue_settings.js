/** The settings of a session's queue: what is in force, where it came from, and a way back. */
import { ask } from "../core/api.js";
import { Dialog } from "../ui/dialogs.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Field, Form, html, toast, useState } from "../ui/parts.js";
import { DROPS, MODES, modeWords, settingsChange } from "./queue_model.js";

const NAMES = { mode: "Mode", debounce_ms: "Quiet moment (ms)", cap: "At most waiting", drop: "When there are too many" };
const ORIGINS = {
  session: "this session", channel: "its channel", workspace: "the workspace", global: "the configuration", default: "the defaults",
};

/** A button that opens the settings. */
export function QueueSettings({ sessionKey }) {
  const [isOpen, setOpen] = useState(false);
  return html`<${Button} icon="edit" onClick=${() => setOpen(true)}>Settings</${Button}>
    ${isOpen ? html`<${SettingsDialog} sessionKey=${sessionKey} onClose=${() => setOpen(false)} />` : null}`;
}

function SettingsDialog({ sessionKey, onClose }) {
  const load = useLoad((signal) => ask(`/sessions/${encodeURIComponent(sessionKey)}`, { signal }), [sessionKey]);
  return html`<${Dialog} title="Settings of this queue" onClose=${onClose}>
    <${Loaded} load=${load}>${(data) => html`<${SettingsForm} key=${JSON.stringify(data.settings)} sessionKey=${sessionKey}
      settings=${data.settings} onChange=${load.set} onClose=${onClose} />`}</${Loaded}>
  </${Dialog}>`;
}

function SettingsForm({ sessionKey, settings, onChange, onClose }) {
  const values = Object.fromEntries(Object.keys(NAMES).map((name) => [name, settings[name].value]));
  const [form, setForm] = useState(values);
  const { change, wrong } = settingsChange(settings, form);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const patch = async (body) => {
    onChange(await ask(`/sessions/${encodeURIComponent(sessionKey)}/settings`, { method: "PATCH", body }));
  };
  const save = async () => {
    if (Object.keys(wrong).length) return;
    if (Object.keys(change).length) {
      await patch(change);
      toast("Saved for this session.");
    }
    onClose();
  };
  const origin = (name) => html`<div class="row queue-origin"><${Badge} tone=${settings[name].origin === "session" ? "run" : "off"}>
      from ${ORIGINS[settings[name].origin] ?? settings[name].origin}</${Badge}>
    ${settings[name].origin === "session"
      ? html`<${Button} kind="quiet" onClick=${() => patch({ [name]: null })}>Give back</${Button}>` : null}</div>`;
  return html`<${Form} onSubmit=${save} class="queue-settings">
    <${Field} label=${NAMES.mode} hint=${`A message that comes while it is busy ${modeWords(form.mode) || "is refused"}.`}>
      <select value=${form.mode} onChange=${set("mode")}>
        ${MODES.map(([value, name]) => html`<option value=${value} selected=${value === form.mode}>${name}</option>`)}
        <option value="reject" selected=${form.mode === "reject"}>Reject</option>
      </select></${Field}>${origin("mode")}
    <${Field} label=${NAMES.debounce_ms} error=${wrong.debounce_ms} hint="How long it has to be quiet before collected messages run.">
      <input inputMode="numeric" value=${form.debounce_ms} onInput=${set("debounce_ms")} /></${Field}>${origin("debounce_ms")}
    <${Field} label=${NAMES.cap} error=${wrong.cap} hint="A smaller number acts on what waits already.">
      <input inputMode="numeric" value=${form.cap} onInput=${set("cap")} /></${Field}>${origin("cap")}
    <${Field} label=${NAMES.drop}>
      <select value=${form.drop} onChange=${set("drop")}>
        ${DROPS.map(([value, name]) => html`<option value=${value} selected=${value === form.drop}>${name}</option>`)}
      </select></${Field}>${origin("drop")}
    <div class="dialog-foot">
      <${Button} onClick=${onClose}>Cancel</${Button}>
      <${Button} kind="primary" type="submit" disabled=${Object.keys(wrong).length > 0}>Save</${Button}>
    </div>
  </${Form}>`;
}
