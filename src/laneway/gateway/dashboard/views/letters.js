/** Dead letters: what could not be done, again and again. Found, mended, sent again or forgotten, one or many. */
import { ask, can } from "../core/api.js";
import { plural, serverNow } from "../core/format.js";
import { useStream } from "../core/live.js";
import { go, href } from "../core/router.js";
import { attention } from "../ui/attention.js";
import { confirm } from "../ui/dialogs.js";
import { useKeys } from "../ui/keys.js";
import { Paged, usePages } from "../ui/load.js";
import { Button, Empty, html, Page, useEffect, useRef, useState } from "../ui/parts.js";
import { editable, filterOf, isNarrow, kept, NOBODY, queryOf, toggled, toggledAll } from "./letters_model.js";
import { useMany } from "./letters_many.js";
import { EditDialog, Filter, LetterRow, Results } from "./letters_parts.js";
import { Folded, useRefresh } from "./work_live.js";

const AGAIN_MS = 10000;
const PAGE = 100;
const SHOWS = [["open", "Open"], ["retried", "Sent again"], ["purged", "Forgotten"]];

/** The list with its filter. */
export default function Letters({ query }) {
  const status = SHOWS.some(([name]) => name === query.show) ? query.show : "open";
  const filter = filterOf(query);
  const asked = JSON.stringify(filter);
  const read = (after, signal) =>
    ask("/dead-letters", { query: { ...queryOf(filter, serverNow()), status, order: "newest", limit: PAGE, after }, signal });
  const pages = usePages(read, [status, asked]);
  const tell = useRefresh(pages.reload, AGAIN_MS);
  const hear = (type, facts) => {
    if (type === "gap" || (type === "message.ended" && facts.state === "dead_lettered")) tell();
  };
  useStream("/events", hear, { query: { replay: "none" }, onOpen: tell });
  const items = pages.items ?? [];
  const order = items.map((each) => each.letter_id);
  const [choice, setChoice] = useState(NOBODY);
  const [open, setOpen] = useState("");
  const [editing, setEditing] = useState(null);
  useEffect(() => setChoice((before) => kept(before, order)), [order.join(" ")]);
  const isWhole = status === "open" && asked === "{}" && pages.items !== null && !pages.more;
  useEffect(() => {
    if (isWhole) attention.value = { ...attention.value, letters: items.length };
  }, [isWhole, items.length]);
  const many = useMany(() => pages.reload());
  const deal = useDeal(many, () => setChoice(NOBODY));
  const search = useRef(null);
  useLetterKeys({ search, order, choice, setChoice, items, deal, setEditing });
  const lead = status !== "open" || pages.items === null ? "What could not be done, again and again."
    : !items.length ? "Nothing needs care."
    : `${pages.more ? "At least " : ""}${plural(items.length, "letter needs", "letters need")} somebody.`;
  return html`<${Page} title="Dead letters" class="letters" lead=${html`<span aria-live="polite">${lead}</span>`}>
    <nav class="row" aria-label="Which letters">${SHOWS.map(([name, label]) => html`<a key=${name}
      class="button ${name === status ? "letter-tab" : ""}" aria-current=${name === status ? "page" : undefined}
      href=${href("letters", { ...filter, show: name === "open" ? "" : name })}>${label}</a>`)}</nav>
    <${Folded} isNarrow=${isNarrow(filter)}><${Filter} filter=${filter} first=${search}
      onChange=${(next) => go(href("letters", { ...next, show: query.show }), { replace: true })} /></${Folded}>
    ${many.work ? html`<${Results} work=${many.work} onAgain=${many.again} onStop=${many.stop} onClose=${many.close} />` : null}
    ${status === "open" && items.length ? html`<${Chosen} choice=${choice} order=${order} filter=${filter} deal=${deal} more=${pages.more}
      isBusy=${many.work?.isBusy} onAll=${() => setChoice(toggledAll(choice, order))} />` : null}
    <${Paged} pages=${pages} empty=${html`<${Nothing} status=${status} isNarrow=${isNarrow(filter)} />`}>${(found) => html`
      <table class="table letter-table" aria-label="Dead letters"><thead><tr>
        <th scope="col"><span class="visually-hidden">Chosen</span></th>
        <th scope="col">Letter</th><th scope="col">Of</th><th scope="col">Error</th><th scope="col">Died</th>
        <th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${found.map((each) => html`<${LetterRow} key=${each.letter_id} letter=${each} isChosen=${choice.ids.has(each.letter_id)}
        isOpen=${open === each.letter_id} onOpen=${(id) => setOpen(open === id ? "" : id)} onEdit=${setEditing}
        onChoose=${(id, shift) => setChoice((before) => toggled(before, order, id, shift))}
        onRetry=${(ids) => deal.retry({ ids })} onPurge=${(ids) => deal.purge({ ids })} />`)}</tbody></table>`}</${Paged}>
    ${editing ? html`<${EditDialog} letter=${editing} onClose=${() => setEditing(null)} onDone=${pages.reload}
      onRetry=${(ids) => deal.retry({ ids })} />` : null}
  </${Page}>`;
}

/** Sending again and forgetting, with a question where one is due. */
function useDeal(many, onBegun) {
  const begin = (action, which) => {
    onBegun();
    return many.begin(action, which);
  };
  return {
    retry: async (which) => {
      const isMany = !which.ids || which.ids.length > 1;
      const words = which.ids ? plural(which.ids.length, "letter") : "all letters that match";
      const text = "Each becomes a new message or job, at the end of its queue. Those that are refused stay here.";
      if (isMany && !(await confirm({ title: `Send ${words} again?`, text, yes: "Send again" }))) return;
      await begin("retry", which);
    },
    purge: async (which) => {
      const words = which.ids ? plural(which.ids.length, "letter") : "all letters that match";
      const text = "Nobody is told of them again. Messages stay in the history of their sessions; calls and jobs are gone for good.";
      if (!(await confirm({ title: `Forget ${words}?`, text, yes: "Forget", danger: true }))) return;
      await begin("purge", which);
    },
  };
}

function useLetterKeys({ search, order, choice, setChoice, items, deal, setEditing }) {
  const rowOf = (id) => document.querySelector(`[data-letter="${CSS.escape(id)}"]`);
  const current = () => order.indexOf(document.activeElement?.closest("[data-letter]")?.dataset.letter ?? "");
  const move = (by) => () => {
    const next = order[Math.max(0, Math.min(order.length - 1, current() < 0 ? 0 : current() + by))];
    if (next) rowOf(next)?.querySelector(".letter-open")?.focus();
  };
  const chosen = () => {
    if (choice.ids.size) return order.filter((id) => choice.ids.has(id)).reverse();
    return current() < 0 ? [] : [order[current()]];
  };
  useKeys({
    "/": { run: () => search.current?.focus(), text: "Go to the filter" },
    j: { run: move(1), text: "Next letter" },
    k: { run: move(-1), text: "Letter before" },
    x: { run: () => current() >= 0 && setChoice(toggled(choice, order, order[current()])), text: "Choose the letter, or not" },
    r: { run: () => chosen().length && deal.retry({ ids: chosen() }), text: "Send what is chosen again" },
    e: { run: () => items[current()] && editable(items[current()]) && setEditing(items[current()]), text: "Change the letter" },
  }, "Dead letters");
}

/** What is chosen, and what can be done to it. */
function Chosen({ choice, order, filter, deal, more, isBusy, onAll }) {
  const count = choice.ids.size;
  const isAll = count > 0 && count === order.length;
  const ids = order.filter((id) => choice.ids.has(id)).reverse(); // oldest first: so they are sent in their order
  const matching = { filter: queryOf(filter, serverNow()) };
  return html`<div class="toolbar letter-chosen">
    <label class="row"><input type="checkbox" checked=${isAll} ref=${(node) => { if (node) node.indeterminate = count > 0 && !isAll; }}
      onChange=${onAll} /> ${count ? `${plural(count, "letter")} chosen` : "Choose all that are shown"}</label>
    <${Button} kind=${count ? "primary" : "plain"} icon="refresh" disabled=${!count || isBusy}
      onClick=${() => deal.retry({ ids })}>Retry chosen</${Button}>
    <${Button} kind="danger" icon="trash" disabled=${!count || isBusy} onClick=${() => deal.purge({ ids })}>Forget chosen</${Button}>
    ${isAll && more ? html`<span class="dim">There are more than are shown:</span>
      <${Button} disabled=${isBusy} onClick=${() => deal.retry(matching)}>Retry all that match</${Button}>
      <${Button} kind="danger" disabled=${isBusy} onClick=${() => deal.purge(matching)}>Forget all that match</${Button}>` : null}
    ${can("operate") ? null : html`<span class="dim">This needs a token with the scope operate; it will be asked for.</span>`}
  </div>`;
}

function Nothing({ status, isNarrow: narrow }) {
  if (narrow) return html`<${Empty} title="No dead letter fits this filter"><p>Take some of it away.</p></${Empty}>`;
  if (status === "retried") return html`<${Empty} title="Nothing was sent again yet" />`;
  if (status === "purged") return html`<${Empty} title="Nothing was forgotten yet" />`;
  return html`<${Empty} title="There are no dead letters"><p>Messages whose run could never be begun, and calls and jobs that used up
    their retries, come here: to be looked at, mended, and sent again.</p></${Empty}>`;
}
