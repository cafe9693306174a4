/** Parts of the view of usage: bars, and budgets with what was spent of each. */
import { duration, number, plural, serverNow } from "../core/format.js";
import { href } from "../core/router.js";
import { Badge, Button, html, Text, useState } from "../ui/parts.js";
import { budgetGroups } from "./usage_model.js";

const ROWS_SHOWN = 4; // the fullest; a budget of sessions has one for each of them

/** How full something is. `mark`: a line at so many of a hundred. */
export function Bar({ full, label, tone = "", mark = null }) {
  const color = tone ? `var(--${tone})` : "var(--accent)";
  return html`<div class="bar usage-bar" role="img" aria-label="${label}, ${full} %">
    <span style=${{ width: `${full}%`, background: color }}></span>
    ${mark === null ? null : html`<span class="usage-mark" style=${{ left: `${mark}%` }}></span>`}</div>`;
}

/** Every budget with its fullest counts. */
export function Budgets({ items }) {
  if (!items.length) return null;
  const isMany = new Set(items.map((each) => each.workspace)).size > 1;
  return html`<section class="card stack" aria-labelledby="usage-budgets">
    <div><h2 id="usage-budgets">Budgets</h2><p class="dim">What was spent of each in its window of now, the fullest first.</p></div>
    <ul class="usage-limits">${budgetGroups(items).map((each) => html`<${Budget} key=${each.key} budget=${each} isMany=${isMany} />`)}</ul>
  </section>`;
}

function Budget({ budget, isMany }) {
  const [isOpen, setOpen] = useState(false);
  const rows = isOpen ? budget.rows : budget.rows.slice(0, ROWS_SHOWN);
  const hidden = budget.rows.length - rows.length;
  return html`<li class="usage-budget">
    <div class="usage-rule"><strong><${Text}>${budget.name}</${Text}></strong>
      ${budget.isShared ? html` <${Badge} tone="wait" title="One rule for every tenant">all tenants</${Badge}>` : null}
      ${isMany ? html` <span class="dim">(<${Text}>${budget.workspace}</${Text}>)</span>` : null}
      ${" "}<span class="dim"><${Text}>${budget.rule}</${Text}>${budget.until
        ? ` · new in ${duration(Math.max(0, budget.until - serverNow()))}` : ""}</span></div>
    ${rows.length ? null : html`<p class="dim">Nothing was spent yet.</p>`}
    <ul class="usage-counts">${rows.map((row) => html`<${Count} key=${row.key} row=${row} mark=${budget.mark} />`)}</ul>
    ${hidden ? html`<div><${Button} kind="quiet" onClick=${() => setOpen(true)}>Show ${number(hidden)} more</${Button}></div>` : null}
    ${isOpen && budget.leftOut
      ? html`<p class="dim">${plural(budget.leftOut, "more is", "more are")} not shown: the least full.</p>` : null}
  </li>`;
}

function Count({ row, mark }) {
  const whose = html`<${Text}>${row.whose}</${Text}>`;
  const waits = row.waiting ? plural(row.waiting, "call waits", "calls wait") : "";
  return html`<li class="usage-count">
    <div class="usage-whose">${row.way ? html`<a href=${href(...row.way)}>${whose}</a>` : whose}</div>
    <${Bar} full=${row.full} tone=${row.tone} mark=${mark} label=${row.spent} />
    <div class="num usage-spent">${row.spent} · ${row.percent} %</div>
    ${row.end || waits || row.parked ? html`<div class="usage-end">${row.end ? html`<span class="usage-used-up">${row.end}</span>` : null}
      ${waits ? html` <span class="dim">${waits}</span>` : null}
      ${row.parked ? html` <${Parked} row=${row} />` : null}</div>` : null}
  </li>`;
}

/** The runs that wait for the next window, each with its story. */
function Parked({ row }) {
  const links = row.runs.map((run, at) => html`${at ? ", " : ""}<a href=${href(...run.way)}><${Text}>${run.name}</${Text}></a>`);
  return html`<span class="dim">${plural(row.parked, "run waits", "runs wait")} for it: ${links}${row.unnamed
    ? ` and ${plural(row.unnamed, "more", "more")}` : ""}</span>`;
}
