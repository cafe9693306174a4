/** The form of a schedule: says its next times while one types, and what is wrong at the field where it is wrong. */
import { ask, Refused } from "../core/api.js";
import { ago, now, serverNow } from "../core/format.js";
import { Dialog } from "../ui/dialogs.js";
import { Button, Field, Form, html, useEffect, useMemo, useRef, useState } from "../ui/parts.js";
import { bodyOf, cronWords, EXAMPLES, formOf, inZone, isSameTime, refusedAt, timesOf } from "./schedules_model.js";

const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const TYPING_MS = 250;
const WAYS = [["cron", "By the calendar"], ["every", "Every so often"], ["at", "Once"]];

/** A new schedule, or a change of one. */
export function ScheduleForm({ schedule, session, onClose, onDone }) {
  const [form, setForm] = useState(() => formOf(schedule, { nowMs: serverNow(), zone: HERE, session }));
  const [wrong, setWrong] = useState({});
  const preview = usePreview(form);
  const set = (change) => {
    setForm((before) => ({ ...before, ...change }));
    setWrong((before) => Object.fromEntries(Object.entries(before).filter(([name]) => !(name in change))));
  };
  const typed = (name) => ({ value: form[name], onInput: (event) => set({ [name]: event.target.value }) });
  const submit = async () => {
    const { body, wrong: found } = bodyOf(form, schedule);
    if (found) {
      setWrong(found);
      return;
    }
    try {
      const path = schedule ? `/schedules/${encodeURIComponent(schedule.schedule_id)}` : "/schedules";
      await ask(path, { method: schedule ? "PATCH" : "POST", body });
    } catch (error) {
      if (!(error instanceof Refused) || error.status === 401 || error.status === 403) throw error;
      setWrong(refusedAt(error));
      return;
    }
    await onDone();
  };
  const errors = { ...preview.wrong, ...wrong };
  return html`<${Dialog} title=${schedule ? "Edit schedule" : "New schedule"} onClose=${onClose} wide=${true} class="schedules-dialog">
    <${Form} onSubmit=${submit}>
      <${Field} label="Session" error=${errors.session_key} hint=${schedule ? "" : "Who gets the message; it may be a new one."}>
        <input type="text" autocomplete="off" spellcheck=${false} maxlength="400" disabled=${Boolean(schedule)}
          ...${typed("session_key")} />
      </${Field}>
      <${Field} label="Message" error=${errors.text}><textarea rows="3" ...${typed("text")}></textarea></${Field}>
      <fieldset class="schedules-ways"><legend>When</legend>${WAYS.map(([way, text]) => html`<label key=${way}>
        <input type="radio" name="way" value=${way} checked=${form.way === way} onChange=${() => set({ way })} /> ${text}</label>`)}
      </fieldset>
      ${form.way === "cron" ? html`<${Cron} form=${form} set=${set} typed=${typed} errors=${errors} />` : null}
      ${form.way === "every" ? html`<${Field} label="How often" error=${errors.every} hint="As in 90s, 15m, 2h 30m or 1d.">
        <input type="text" autocomplete="off" ...${typed("every")} /></${Field}>` : null}
      ${form.way === "at" ? html`<${Field} label="Date and time" error=${errors.at} hint="In your time (${HERE}).">
        <input type="datetime-local" ...${typed("at")} /></${Field}>` : null}
      <${Preview} preview=${preview} form=${form} />
      <details class="schedules-more"><summary>More</summary>
        <${Field} label="If nobody was there at its time" error=${errors.missed}>
          <select value=${form.missed} onChange=${(event) => set({ missed: event.target.value })}>
            <option value="skip">Leave it out</option><option value="run">Send it once, later</option></select></${Field}>
        <${Field} label="It speaks as" hint="A heartbeat is only sent while nobody waits.">
          <select value=${form.kind} onChange=${(event) => set({ kind: event.target.value })}>
            <option value="system">System note</option><option value="heartbeat">Heartbeat</option></select></${Field}>
        <${Field} label="Reason" hint="Kept in the audit log." error=${errors.reason}>
          <input type="text" autocomplete="off" maxlength="2000" ...${typed("reason")} /></${Field}>
      </details>
      ${errors[""] ? html`<p class="field-error" role="alert">${errors[""]}</p>` : null}
      <div class="dialog-foot">
        <${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" type="submit">${schedule ? "Save" : "Create"}</${Button}>
      </div>
    </${Form}>
  </${Dialog}>`;
}

function Cron({ form, set, typed, errors }) {
  const zones = useMemo(() => ["UTC", ...(Intl.supportedValuesOf?.("timeZone") ?? [])], []);
  const words = cronWords(form.cron);
  return html`<div>
    <div class="row schedules-examples" role="group" aria-label="Examples">${EXAMPLES.map(([cron, text]) => html`<${Button} key=${cron}
      kind="quiet" class="chip" aria-pressed=${String(form.cron === cron)} onClick=${() => set({ cron })}>${text}</${Button}>`)}</div>
    <div class="schedules-cron">
      <${Field} label="Cron" error=${errors.cron} hint=${words || "minute hour day month weekday"}>
        <input type="text" class="mono" autocomplete="off" spellcheck=${false} maxlength="200" ...${typed("cron")} /></${Field}>
      <${Field} label="Timezone" error=${errors.timezone}>
        <input type="text" list="schedules-zones" autocomplete="off" spellcheck=${false} maxlength="100"
          ...${typed("timezone")} /></${Field}>
    </div>
    <datalist id="schedules-zones">${zones.map((zone) => html`<option key=${zone} value=${zone} />`)}</datalist>
  </div>`;
}

/** The next times of a form, asked of the server a moment after the last key; what is wrong with them, by field. */
function usePreview(form) {
  const [state, setState] = useState({ times: [], wrong: {} });
  const turn = useRef(0);
  const asked = JSON.stringify(timesOf(form));
  useEffect(() => {
    const mine = (turn.current += 1);
    const body = JSON.parse(asked);
    if (body.wrong) {
      setState({ times: [], wrong: {} }); // said when it is sent: nobody wants to be told in the middle of a word
      return undefined;
    }
    const timer = setTimeout(async () => {
      let found;
      try {
        found = { times: (await ask("/schedules/preview", { body: { ...body, count: 5 } })).times, wrong: {} };
      } catch (error) {
        found = { times: [], wrong: error instanceof Refused ? refusedAt(error) : {} };
      }
      if (mine === turn.current) setState(found);
    }, TYPING_MS);
    return () => clearTimeout(timer);
  }, [asked]);
  useEffect(() => () => { turn.current += 1; }, []);
  return state;
}

function Preview({ preview, form }) {
  const zone = form.way === "cron" ? form.timezone : HERE;
  return html`<div class="schedules-preview" role="status" aria-label="Next times">
    ${preview.times.length ? html`<h3>Next</h3><ol>${preview.times.map((ms) => html`<li key=${ms}>
      <span class="num">${inZone(ms, HERE)}</span>
      ${isSameTime(ms, zone, HERE) ? null : html`<span class="dim num"> ${inZone(ms, zone)} ${zone}</span>`}
      <span class="dim num"> ${ago(ms, now.value)}</span></li>`)}</ol>` : null}
  </div>`;
}
