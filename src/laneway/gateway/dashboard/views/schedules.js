/** Schedules: messages that are sent by the clock. What comes next, what came last, and a way to change it. */
import { ask, can } from "../core/api.js";
import { plural } from "../core/format.js";
import { useStream } from "../core/live.js";
import { go, href } from "../core/router.js";
import { confirm } from "../ui/dialogs.js";
import { useKeys } from "../ui/keys.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Empty, html, Page, Text, Time, toast, useEffect, useMemo, useRef, useState } from "../ui/parts.js";
import { ScheduleForm } from "./schedules_form.js";
import { inZone, isOpen, isSameTime, resultOf, whenWords } from "./schedules_model.js";
import { pacer } from "./overview_model.js";

const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** The view of schedules. `query.session` opens the form for a session. */
export default function Schedules({ query }) {
  const heard = useRef({ ended: 0, items: [], again: () => {} });
  const load = useLoad(async (signal) => {
    const before = heard.current.ended;
    const data = await ask("/schedules", { signal });
    heard.current.items = data.items;
    // A run that ended while the list was on its way may still be open in it, and is told no more.
    if (heard.current.ended !== before && data.items.some(isOpen)) heard.current.again();
    return data;
  }, []);
  const [edited, setEdited] = useState(query?.session ? { session: query.session } : null);
  const pace = useMemo(() => pacer(load.reload), [load.reload]);
  heard.current.again = pace.told;
  const items = load.data?.items ?? [];
  const hear = (type) => {
    if (type === "turn.ended") heard.current.ended += 1;
    if (type.startsWith("schedule.") || (type === "turn.ended" && heard.current.items.some(isOpen))) pace.told();
  };
  useStream("/events", hear, { query: { replay: "none" }, onOpen: pace.told });
  useEffect(() => () => pace.stop(), [pace]);
  useKeys({ n: { run: () => setEdited({}), text: "New schedule" } }, "Schedules");
  const done = () => {
    setEdited(null);
    return load.reload();
  };
  const actions = html`<${Button} kind="primary" icon="plus" onClick=${() => setEdited({})}>New schedule</${Button}>`;
  const paused = items.filter((each) => each.paused).length;
  const lead = items.length
    ? `${plural(items.length, "schedule")}${paused ? `, ${paused} paused` : ""}. Messages that are sent by the clock.`
    : "Messages that are sent by the clock.";
  const empty = html`<${Empty} title="Nothing is sent by the clock">
    <p>A schedule sends a message to a session at its times: every morning, every 15 minutes, or once.</p>
    <p class="row schedules-begin"><${Button} kind="primary" icon="plus" onClick=${() => setEdited({})}>New schedule</${Button}></p>
  </${Empty}>`;
  return html`<${Page} title="Schedules" lead=${lead} actions=${actions} class="schedules">
    ${can("operate") || load.data === null ? null : html`<p class="dim">You may look. A token with the scope operate changes them.</p>`}
    <${Loaded} load=${load} empty=${empty}>${(data) => html`<${Table} items=${data.items} edit=${setEdited}
      reload=${load.reload} />`}</${Loaded}>
    ${edited ? html`<${ScheduleForm} schedule=${edited.schedule_id ? edited : null} session=${edited.session ?? ""}
      onClose=${() => setEdited(null)} onDone=${done} />` : null}
  </${Page}>`;
}

function Table({ items, edit, reload }) {
  return html`<table class="table schedules-table">
    <thead><tr><th>Message</th><th>When</th><th>Next</th><th>Last</th><th><span class="visually-hidden">Actions</span></th></tr></thead>
    <tbody>${items.map((each) => html`<${Row} key=${each.schedule_id} schedule=${each} edit=${edit} reload=${reload} />`)}</tbody>
  </table>`;
}

function Row({ schedule, edit, reload }) {
  return html`<tr>
    <td data-label="Message"><div class="schedules-what">
      <a class="schedules-session" href=${href("chat", schedule.session_key)}><${Text}>${schedule.session_key}</${Text}></a>
      <div class="schedules-text"><${Text}>${schedule.text}</${Text}></div></div></td>
    <td data-label="When"><div><div class="schedules-words">${whenWords(schedule)}</div>
      ${schedule.cron ? html`<div class="dim mono">${schedule.cron}${zoneOf(schedule)}</div>` : null}
      ${schedule.kind === "heartbeat" ? html`<div class="dim">heartbeat: only while nobody waits</div>` : null}</div></td>
    <td data-label="Next"><div>${schedule.paused
      ? html`<${Badge} tone="warn">paused</${Badge}>`
      : html`<${Time} ms=${schedule.next_ms} /><div class="dim">${inZone(schedule.next_ms, HERE)}${there(schedule)}</div>`}</div></td>
    <td data-label="Last"><${Last} schedule=${schedule} /></td>
    <td class="schedules-actions"><${Actions} schedule=${schedule} edit=${edit} reload=${reload} /></td>
  </tr>`;
}

function zoneOf(schedule) {
  return schedule.timezone === "UTC" ? " UTC" : ` ${schedule.timezone}`;
}

function there(schedule) {
  if (!schedule.cron || isSameTime(schedule.next_ms, schedule.timezone, HERE)) return "";
  return ` (${inZone(schedule.next_ms, schedule.timezone)} ${schedule.timezone})`;
}

function Last({ schedule }) {
  const result = resultOf(schedule);
  if (!result) return html`<span class="dim">not yet</span>`;
  return html`<div>
    <div class="row"><${Badge} tone=${result.tone} title=${result.title}>${result.text}</${Badge}><${Time} ms=${schedule.last_ms} /></div>
    ${schedule.last_note ? html`<div class="dim">${schedule.last_note}</div>` : null}
    ${schedule.last_message_id ? html`<a href=${href("story", "message", schedule.last_message_id)}>its story</a>` : null}
  </div>`;
}

function Actions({ schedule, edit, reload }) {
  const path = `/schedules/${encodeURIComponent(schedule.schedule_id)}`;
  const name = schedule.text.slice(0, 40);
  const run = async () => {
    const sent = await ask(`${path}/run`, { method: "POST" });
    toast("It is sent.", { tone: "ok", action: { text: "Its story", run: () => go(href("story", "message", sent.message_id)) } });
    await reload();
  };
  const pause = async () => {
    await ask(path, { method: "PATCH", body: { paused: !schedule.paused } });
    await reload();
  };
  const remove = async () => {
    const text = `“${name}” is sent to ${schedule.session_key} no more. What it has sent already stays.`;
    if (!(await confirm({ title: "Delete this schedule?", text, yes: "Delete", danger: true }))) return;
    await ask(path, { method: "DELETE" });
    await reload();
  };
  return html`<div class="toolbar" role="group" aria-label="Actions for ${name}">
    <${Button} icon="send" onClick=${run}>Run now</${Button}>
    <${Button} kind="quiet" icon=${schedule.paused ? "play" : "pause"} title=${schedule.paused ? "Resume" : "Pause"} onClick=${pause} />
    <${Button} kind="quiet" icon="edit" title="Edit" onClick=${() => edit(schedule)} />
    <${Button} kind="quiet" icon="trash" title="Delete" onClick=${remove} />
  </div>`;
}
