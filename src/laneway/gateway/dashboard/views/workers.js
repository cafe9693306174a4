/** Workers: who is there, what each of them takes and has in hand, and when it was heard of. */
import { about, ask, can } from "../core/api.js";
import { number, plural, serverNow } from "../core/format.js";
import { useStream } from "../core/live.js";
import { go, href } from "../core/router.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Copy, Empty, Field, html, Page, Text, Time, useRef, useState } from "../ui/parts.js";
import { useKeys } from "../ui/keys.js";
import { shortId, useRefresh } from "./work_live.js";
import { healthOf, keyOf, notesOf, ordered, slotsOf, startCommand, totals } from "./workers_model.js";

const AGAIN_MS = 2000;
const TASKS_SHOWN = 8;

/** Everybody who was heard of in the last minutes. */
export default function Workers({ query }) {
  const load = useLoad(async (signal) => {
    const page = await ask("/workers", { query: { limit: 1000 }, signal });
    const at = serverNow();
    return { ...page, items: ordered(page.items).map((each) => ({ ...each, seenAt: at - each.seen_ago_ms })) };
  });
  const tell = useRefresh(load.reload, AGAIN_MS);
  const hear = (type) => {
    if (type === "gap" || type.startsWith("external_task_")) tell();
  };
  useStream("/events", hear, { query: { replay: "none" }, onOpen: tell });
  const search = useRef(null);
  useKeys({ "/": { run: () => search.current?.focus(), text: "Find a worker" } }, "Workers");
  const workers = load.data?.items ?? [];
  const part = (query.name ?? "").toLowerCase();
  const shown = workers.filter((each) => !part || each.name.toLowerCase().includes(part));
  const [isHelp, setHelp] = useState(false);
  const actions = html`<a class="button" href=${href("tasks")}>Tasks</a>
    ${workers.length
      ? html`<${Button} aria-expanded=${String(isHelp)} onClick=${() => setHelp(!isHelp)}>Start another</${Button}>` : null}`;
  const find = (event) => go(href("workers", { name: event.target.value }), { replace: true });
  return html`<${Page} title="Workers" class="workers" lead=${load.data ? leadOf(workers) : ""} actions=${actions}>
    ${isHelp ? html`<div class="card"><${HowTo} /></div>` : null}
    ${workers.length > 5 || part ? html`<${Field} label="Name" inline=${true}><input type="search" ref=${search} value=${query.name ?? ""}
      onInput=${find} /></${Field}>` : null}
    <${Loaded} load=${load} empty=${html`<${Nobody} />`}>${(data) => html`
      ${shown.length ? null : html`<${Empty} title="No worker is called so"><p>Take the filter away.</p></${Empty}>`}
      <ul class="worker-list">${shown.map((each) => html`<${Worker} key=${keyOf(each)} worker=${each} />`)}</ul>
      ${data.next ? html`<p class="dim">There are more than ${number(data.items.length)} workers; these are some of them.</p>` : null}`}
    </${Loaded}>
  </${Page}>`;
}

function leadOf(workers) {
  if (!workers.length) return "";
  const { there, away, used, slots } = totals(workers);
  const gone = away ? `, ${plural(away, "is", "are")} not heard of` : "";
  return `${plural(there, "worker is", "workers are")} there${gone}; ${number(used)} of ${plural(slots, "slot")} used.`;
}

function Worker({ worker }) {
  const { words, tone, text } = healthOf(worker);
  const { used, all, share } = slotsOf(worker);
  const where = [worker.host, worker.pid ? `process ${worker.pid}` : ""].filter(Boolean).join(", ");
  const more = worker.holds - Math.min(worker.tasks.length, TASKS_SHOWN);
  return html`<li class="card worker stack">
    <div class="row spread"><h2 class="worker-name"><${Text}>${worker.name}</${Text}></h2>
      <${Badge} tone=${tone} title=${text}>${words}</${Badge}></div>
    ${tone === "ok" || tone === "run" ? null : html`<p class="dim">${text}</p>`}
    ${notesOf(worker).map((note) => html`<p class="worker-note" key=${note}>${note}</p>`)}
    <div class="worker-slots">
      <span class="num">${all === null ? `${number(used)} in hand` : `${number(used)} of ${number(all)} slots`}</span>
      ${all === null ? null : html`<span class="bar" aria-hidden="true"><span style=${{ width: `${share * 100}%` }}></span></span>`}
      <span class="dim">heard <${Time} ms=${worker.seenAt} /></span></div>
    ${worker.tasks.length ? html`<ul class="worker-tasks" aria-label="In hand">${worker.tasks.slice(0, TASKS_SHOWN).map((id) => html`
      <li key=${id}><a class="mono" title=${id} href=${href("tasks", id)}>${shortId(id)}</a></li>`)}
      ${more > 0 ? html`<li><a href=${href("tasks", { worker: worker.name })}>and ${number(more)} more</a></li>` : null}</ul>` : null}
    <dl class="worker-facts">
      <dt>Takes</dt><dd><${Names} names=${worker.lanes} all="every lane" word="lane" /> ${worker.commands.length
        ? html`<span class="dim">only</span> <${Names} names=${worker.commands} />` : null}</dd>
      ${worker.labels.length ? html`<dt>Labels</dt><dd><${Names} names=${worker.labels} /></dd>` : null}
      ${worker.workspaces.length ? html`<dt>Workspaces</dt><dd><${Names} names=${worker.workspaces} /></dd>` : null}
      <dt>Did</dt><dd class="num">${number(worker.completed)} completed, ${number(worker.failed)} failed${worker.lost
        ? html`, <span class="worker-lost">${number(worker.lost)} lost</span>` : ""}</dd>
      <dt>Where</dt><dd><${Text}>${where || "it does not say"}</${Text}></dd>
      ${worker.version ? html`<dt>Version</dt><dd><${Text}>${worker.version}</${Text}>${isOther(worker)
        ? html` <span class="dim">(the server has ${about.value.version})</span>` : null}</dd>` : null}
      ${worker.token ? html`<dt>Token</dt><dd><${Text}>${worker.token}</${Text}>${worker.tenant === null
        ? html` <span class="dim">for all tenants</span>` : null}</dd>` : null}
    </dl>
  </li>`;
}

function isOther(worker) {
  return about.value && worker.version !== about.value.version;
}

function Names({ names, all = "", word = "" }) {
  if (!names.length) return html`<span>${all}</span>`;
  return html`<span class="worker-chips">${names.map((each) => html`<span class="chip" key=${each}>
    ${word ? html`<span class="visually-hidden">${word} </span>` : null}<${Text}>${each}</${Text}></span>`)}</span>`;
}

function Nobody() {
  return html`<div class="card stack"><h2>No worker was heard of lately</h2>
    <p class="dim">A worker is a process, on this machine or any other, that makes calls of tools for the agents here.
      Without one nothing is missing, unless the mode of a lane is <code>external</code>.</p><${HowTo} /></div>`;
}

/** How to start one, with what this server is reached by. */
function HowTo() {
  const make = "laneway token create fleet --scope worker > worker.token";
  const start = startCommand(location.origin);
  return html`<ol class="worker-steps">
    <li>A token with the scope <code>worker</code>, in a file on the worker's machine:
      ${can("admin") ? html` make one in <a href=${href("tokens")}>Tokens</a>.`
        : html`<div class="row"><code>${make}</code><${Copy} text=${make} label="Copy the command that makes a token" /></div>`}</li>
    <li>The worker, where the calls are to be made: <div class="row"><code>${start}</code>
      <${Copy} text=${start} label="Copy the command that starts a worker" /></div></li>
    <li>A lane whose calls go to workers: <code>${"queue: {lane_handlers: {execute: {mode: external}}}"}</code> in the settings.
      Where agents have such lanes, <code>laneway lane set execute --mode external</code> does it until the server ends.</li>
  </ol>`;
}
