/** What operators have done: newest first, in plain words, with why; found by who, what, when, and any text. */
import { ask } from "../core/api.js";
import { clock, serverNow } from "../core/format.js";
import { go, href } from "../core/router.js";
import { useKeys } from "../ui/keys.js";
import { Paged, usePages } from "../ui/load.js";
import { Badge, Button, Empty, Field, html, Json, Page, Text, useEffect, useRef, useState } from "../ui/parts.js";
import { AREAS, byDay, deletedOf, factsOf, PERIODS, queryOf, sentenceOf, targetOf } from "./audit_model.js";

const PAGE = 50;
const TYPING_MS = 250;
const POLL_MS = 10000; // what operators do is no event
const NONE = { text: "", actor: "", action: "", target: "", period: "" };

/** The view of the audit log. The filters are in the address. */
export default function Audit({ query }) {
  const [filter, setFilter] = useState({ ...NONE, ...pick(query) });
  const asked = useSettled(filter);
  const pages = usePages(
    (after, signal) => ask("/audit", { query: { ...queryOf(asked, serverNow()), after: after ?? undefined, limit: PAGE }, signal }),
    [JSON.stringify(asked)],
  );
  const field = useRef(null);
  useKeys({ "/": { run: () => field.current?.focus(), text: "Search" } }, "Audit");
  useEffect(() => {
    go(href("audit", asked), { replace: true });
  }, [asked]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || pages.reload(), POLL_MS);
    return () => clearInterval(timer);
  }, [pages.reload]);
  const set = (name) => ({ value: filter[name], onInput: (event) => setFilter({ ...filter, [name]: event.target.value }) });
  const isFiltered = Object.values(asked).some(Boolean);
  const clear = () => setFilter(NONE);
  const empty = isFiltered
    ? html`<${Empty} title=${pages.more ? "Nothing yet: there is more to look through" : "No action fits"}>
        <${Button} onClick=${clear}>Show all</${Button}></${Empty}>`
    : html`<${Empty} title="Nobody has changed anything yet">
        <p>Whoever pauses a lane, answers a request, changes a schedule or makes a token is kept here, with the reason.</p></${Empty}>`;
  return html`<${Page} title="Audit" lead="Who has changed what, when, and why." class="audit"
    actions=${html`<${Button} kind="quiet" icon="refresh" title="Read again" onClick=${pages.reload} />`}>
    <search class="toolbar audit-filters">
      <${Field} label="Text" inline=${true}><input ref=${field} type="search" ...${set("text")} maxlength="400" /></${Field}>
      <${Field} label="Who" inline=${true}><input type="search" class="audit-who" ...${set("actor")} maxlength="200" /></${Field}>
      <${Field} label="About" inline=${true}><select ...${set("action")}>${AREAS.map(([name, text]) => html`
        <option key=${name} value=${name}>${text}</option>`)}</select></${Field}>
      <${Field} label="When" inline=${true}><select ...${set("period")}>${PERIODS.map(([name, text]) => html`
        <option key=${name} value=${name}>${text}</option>`)}</select></${Field}>
      ${isFiltered ? html`<${Button} kind="quiet" icon="x" onClick=${clear}>Clear</${Button}>` : null}
    </search>
    <${Paged} pages=${pages} empty=${empty}>${(items) => html`<${Days} items=${items}
      onActor=${(actor) => setFilter({ ...filter, actor })} />`}</${Paged}>
  </${Page}>`;
}

function Days({ items, onActor }) {
  const deleted = deletedOf(items);
  return byDay(items, dayOf).map(({ day, items: some }) => html`<section key=${day} class="audit-day" aria-label=${day}><h2>${day}</h2>
    <ol class="audit-list">${some.map((each) => html`<${Entry} key=${each.seq} entry=${each} target=${targetOf(each, deleted)}
      onActor=${onActor} />`)}</ol>
  </section>`);
}

function pick(query = {}) {
  return Object.fromEntries(Object.keys(NONE).filter((name) => query[name]).map((name) => [name, query[name]]));
}

/** A value a moment after it last changed: nobody is asked for every letter. */
function useSettled(value) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), TYPING_MS);
    return () => clearTimeout(timer);
  }, [JSON.stringify(value)]);
  return settled;
}

function dayOf(ms) {
  return new Intl.DateTimeFormat("en-GB", { weekday: "long", day: "numeric", month: "long", year: "numeric" }).format(ms);
}

function Entry({ entry, target, onActor }) {
  const [isOpen, setOpen] = useState(false);
  const facts = factsOf(entry);
  return html`<li class="card audit-entry">
    <div class="row audit-line">
      <time class="num dim" dateTime=${new Date(entry.at_ms).toISOString()}>${clock(entry.at_ms, entry.at_ms)}</time>
      <${Button} kind="quiet" class="audit-actor" title="Only what this one did" onClick=${() => onActor(entry.actor)}>
        <${Text}>${entry.actor}</${Text}></${Button}>
      <span class="grow"><${Text}>${sentenceOf(entry)}</${Text}>${entry.reason
        ? html`<span class="dim">: <${Text}>${entry.reason}</${Text}></span>` : null}</span>
      <span class="audit-do">${target ? html`<a href=${href(...target)} aria-label="Open what it was done to">open</a>` : null}
        <${Button} kind="quiet" aria-expanded=${String(isOpen)} icon=${isOpen ? "up" : "down"}
          title=${isOpen ? "Fold" : "All that is known"} onClick=${() => setOpen(!isOpen)} /></span>
    </div>
    ${isOpen ? html`<dl class="audit-facts">
      <dt>Action</dt><dd><${Badge}>${entry.action}</${Badge}></dd>
      <dt>Target</dt><dd class="mono"><${Text}>${entry.target}</${Text}></dd>
      <dt>Number</dt><dd class="num">${entry.seq}</dd>
      ${Object.keys(facts).length ? html`<dt>Facts</dt><dd><${Json} value=${facts} /></dd>` : null}
    </dl>` : null}
  </li>`;
}
