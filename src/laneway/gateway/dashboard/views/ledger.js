/** The ledger: calls with side effects, what became of them, and those of which nobody knows. */
import { ask, can } from "../core/api.js";
import { duration, plural, shown } from "../core/format.js";
import { useStream } from "../core/live.js";
import { go, href } from "../core/router.js";
import { useKeys } from "../ui/keys.js";
import { Paged, useLoad, usePages } from "../ui/load.js";
import { Badge, Button, Empty, ErrorBox, Field, html, Json, Page, stateTone, Text, Time } from "../ui/parts.js";
import { useEffect, useRef, useState } from "../ui/parts.js";
import { endWords, replaced, STATES, stateWords, stillMarked } from "./ledger_model.js";
import { SettleDialog } from "./ledger_settle.js";

const LIMIT = 50;
const READ_MS = 500; // what happens at once is read once
const TELLS = new Set(["tool_end", "run_resumed", "background_end", "turn.started", "turn.ended", "end", "error"]);

/** The view: unknown outcomes first, then everything, newest first. */
export default function Ledger({ query }) {
  const asked = { state: query.state ?? "", session: query.session ?? "", tool: query.tool ?? "", run: query.run ?? "" };
  const names = [asked.state, asked.session, asked.tool, asked.run];
  const unknown = usePages((after, signal) => list({ ...asked, state: "unknown" }, after, signal), names);
  const others = usePages((after, signal) => list(asked, after, signal), names);
  const [marked, setMarked] = useState(new Set());
  const [settling, setSettling] = useState(null);
  const soon = useSoon(() => Promise.all([unknown.reload(), others.reload()]));
  const field = useRef(null);
  useStream("/events", (type) => { if (TELLS.has(type)) soon(); }, { onOpen: (again) => { if (again) soon(); } });
  useKeys({ "/": { run: () => field.current?.focus(), text: "Filter by session" } }, "Ledger");
  const settled = (entry) => {
    unknown.update((items) => replaced(items, entry, "unknown"));
    others.update((items) => replaced(items, entry, asked.state));
  };
  const open = unknown.items ?? [];
  const marks = stillMarked(marked, open);
  return html`<${Page} title="Ledger" class="ledger"
    lead="Calls with side effects: what they were about to do, and what became of them. Nothing here is made twice by itself.">
    ${query.entry ? html`<${OneEntry} id=${query.entry} onSettle=${(entry) => setSettling([entry])} version=${open.length} />` : null}
    <${Filters} asked=${asked} field=${field} />
    ${open.length
      ? html`<${Unknown} entries=${open} marks=${marks} setMarks=${setMarked} onSettle=${setSettling} pages=${unknown} />`
      : html`<${NoUnknown} pages=${unknown} />`}
    ${asked.state === "unknown" ? null : html`<${Others} asked=${asked} pages=${others} />`}
    ${settling ? html`<${SettleDialog} entries=${settling} onSettled=${settled} onClose=${() => setSettling(null)} />` : null}
  </${Page}>`;
}

function Others({ asked, pages }) {
  return html`<section class="stack" aria-labelledby="ledger-all">
    <h2 id="ledger-all">${asked.state ? `Calls that are ${asked.state}` : "All calls, newest first"}</h2>
    <${Paged} pages=${pages} empty=${html`<${None} asked=${asked} />`}>${(items) => html`<${Table} items=${items} />`}</${Paged}>
  </section>`;
}

function list({ state, session, tool, run }, after, signal) {
  return ask("/ledger", { query: { state, session, tool, run, order: "newest", after, limit: LIMIT }, signal });
}

/** Read again soon, however much happens meanwhile. */
function useSoon(reload) {
  const self = useRef({ timer: 0, reload });
  self.current.reload = reload;
  useEffect(() => () => clearTimeout(self.current.timer), []);
  return () => {
    self.current.timer ||= setTimeout(async () => {
      await self.current.reload();
      self.current.timer = 0;
    }, READ_MS);
  };
}

function Filters({ asked, field }) {
  const set = (change) => go(href("ledger", { ...asked, ...change }), { replace: true });
  const typed = (name) => {
    const onChange = (event) => set({ [name]: event.target.value.trim() });
    return { value: asked[name], onChange, type: "search", autocomplete: "off" };
  };
  const isAny = Object.values(asked).some(Boolean);
  return html`<div class="toolbar ledger-filters" role="search" aria-label="Filter the ledger">
    <${Field} label="State" inline><select value=${asked.state} onChange=${(event) => set({ state: event.target.value })}>
      <option value="">all</option>${STATES.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></${Field}>
    <${Field} label="Session" inline><input ref=${field} ...${typed("session")} placeholder="exact key" /></${Field}>
    <${Field} label="Tool" inline><input ...${typed("tool")} placeholder="exact name" /></${Field}>
    ${asked.run ? html`<span class="chip">run ${shown(asked.run)}</span>` : null}
    ${isAny ? html`<${Button} kind="quiet" icon="x" onClick=${() => go(href("ledger"), { replace: true })}>Clear</${Button}>` : null}
  </div>`;
}

function NoUnknown({ pages }) {
  if (pages.error) return html`<${ErrorBox} error=${pages.error} retry=${pages.reload} />`;
  if (pages.items === null) return null;
  return html`<p class="ledger-well" role="status">No unknown outcomes: of every call it is known what became of it.</p>`;
}

function None({ asked }) {
  const isAny = Object.values(asked).some(Boolean);
  return isAny
    ? html`<${Empty} title="No call fits">Clear the filters, or look in another workspace.</${Empty}>`
    : html`<${Empty} title="No calls with side effects yet">
        When an agent writes, sends or runs something, it is noted here before it starts.</${Empty}>`;
}

function Unknown({ entries, marks, setMarks, onSettle, pages }) {
  const mayNot = !can("operate");
  const chosen = entries.filter((each) => marks.has(each.entry_id));
  const mark = (entry, isOn) => {
    const next = new Set(marks);
    if (isOn) next.add(entry.entry_id); else next.delete(entry.entry_id);
    setMarks(next);
  };
  const all = chosen.length === entries.length;
  const markAll = () => setMarks(new Set(all ? [] : entries.map((each) => each.entry_id)));
  return html`<section class="stack ledger-unknown" aria-labelledby="ledger-unknown">
    <div class="row spread"><h2 id="ledger-unknown">${plural(entries.length, "unknown outcome")}${pages.more ? " or more" : ""}</h2>
      <div class="toolbar">
        <label class="row"><input type="checkbox" checked=${all} onChange=${markAll} /> All</label>
        <${Button} disabled=${!chosen.length} onClick=${() => onSettle(chosen)}>
          Settle ${chosen.length ? plural(chosen.length, "call") : "marked calls"}</${Button}>
      </div></div>
    <p class="dim">The process ended, or nobody was heard of, while these calls ran. Look whether they had their effect, then say so.
      ${mayNot ? " Settling needs a token with the scope operate." : ""}</p>
    <ul class="ledger-cards">${entries.map((entry) => html`<li key=${entry.entry_id} class="card">
      <${Entry} entry=${entry} onSettle=${() => onSettle([entry])}
        mark=${html`<input type="checkbox" aria-label=${`Mark ${shown(entry.tool)} of ${shown(entry.session_key)}`}
          checked=${marks.has(entry.entry_id)} onChange=${(event) => mark(entry, event.target.checked)} />`} /></li>`)}</ul>
    ${pages.more ? html`<div class="more"><${Button} onClick=${pages.loadMore} busy=${pages.loading}>Show more</${Button}></div>` : null}
  </section>`;
}

function Entry({ entry, mark, onSettle }) {
  const isOpen = entry.arguments !== null && entry.arguments !== undefined;
  const run = html`<a href=${href("story", "run", entry.run_id)}>run ${shown(entry.run_id)}</a>`;
  const again = entry.attempt > 1 ? `, attempt ${entry.attempt}` : "";
  const session = html`<a href=${href("chat", entry.session_key)}>${shown(entry.session_key)}</a>`;
  return html`<div class="ledger-entry">
    <div class="row">${mark}<strong class="mono">${shown(entry.tool)}</strong>
      <${Badge} tone=${stateTone(entry.state)}>${entry.state}</${Badge}><span class="dim">${entry.effect}</span></div>
    <p>It began <${Time} ms=${entry.started_ms} /> in session ${session}, ${run}${again}.</p>
    ${entry.reason ? html`<p class="dim"><${Text}>${entry.reason}</${Text}></p>` : null}
    ${isOpen ? html`<${Json} value=${entry.arguments} />` : html`<p class="dim">Its arguments are in the story of its run.</p>`}
    ${entry.state === "unknown"
      ? html`<div class="toolbar"><${Button} kind="primary" onClick=${onSettle}>Settle …</${Button}></div>`
      : null}
  </div>`;
}

/** The entry that somebody came for. */
function OneEntry({ id, onSettle, version }) {
  const path = `/ledger/${id.split("/").map(encodeURIComponent).join("/")}`;
  const load = useLoad((signal) => ask(path, { signal, reads: "" }), [id, version]);
  if (load.error) return html`<${ErrorBox} error=${load.error} retry=${load.reload} />`;
  const entry = load.data;
  if (!entry) return null;
  return html`<section class="card" aria-label="The call you came for">
    <${Entry} entry=${entry} onSettle=${() => onSettle(entry)} />
    ${entry.state === "settled" ? html`<p><${Text}>${endWords(entry)}</${Text}></p>` : null}
    <p><a href=${href("ledger")}>All calls</a></p></section>`;
}

function Table({ items }) {
  return html`<table class="table"><thead><tr><th scope="col">Tool</th><th scope="col">State</th><th scope="col">Session</th>
      <th scope="col">Began</th><th scope="col">Took</th><th scope="col">What is known</th></tr></thead>
    <tbody>${items.map((entry) => html`<tr key=${entry.entry_id}>
      <td data-label="Tool"><a class="mono" href=${href("story", "run", entry.run_id)}>${shown(entry.tool)}</a></td>
      <td data-label="State"><${Badge} tone=${stateTone(entry.state)} title=${stateWords(entry.state)}>${entry.state}</${Badge}></td>
      <td data-label="Session"><a href=${href("chat", entry.session_key)}>${shown(entry.session_key)}</a></td>
      <td data-label="Began"><${Time} ms=${entry.started_ms} /></td>
      <td data-label="Took">${entry.ended_ms ? duration(Math.max(0, entry.ended_ms - entry.started_ms)) : "–"}</td>
      <td data-label="Known"><${Text}>${endWords(entry)}</${Text}></td></tr>`)}</tbody></table>`;
}
