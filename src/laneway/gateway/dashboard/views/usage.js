/** Usage: tokens and cost by day, session, model, run and workspace, and how close runs have come to their limits. */
import { ask } from "../core/api.js";
import { ago, duration, money, number, plural, serverNow } from "../core/format.js";
import { go, href } from "../core/router.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Button, Empty, html, Page, Text, useEffect } from "../ui/parts.js";
import { Plot } from "../ui/plot.js";
import {
  beginOf, compact, daySeries, groupOf, GROUPS, limitRows, periodOf, PERIODS, priceNote, shareOf, tokensOf,
} from "./usage_model.js";
import { Bar, Budgets } from "./usage_parts.js";

const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const POLL_MS = 15000; // a call more is no reason to hurry
const PLOT_HEIGHT = 180;

/** The view of usage. The period and the grouping are in the address, so that they can be shared. */
export default function Usage({ query }) {
  const period = periodOf(query?.period);
  const group = groupOf(query?.by);
  const load = useLoad((signal) => readAll(period, group, signal), [period, group]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || load.reload(), POLL_MS);
    return () => clearInterval(timer);
  }, [load.reload]);
  const choose = (change) => go(href("usage", { period, by: group, ...change }), { replace: true });
  const actions = html`<${Choice} label="Period" options=${PERIODS} value=${period} onChoose=${(name) => choose({ period: name })} />
    <${Button} kind="quiet" icon="refresh" title="Read again" onClick=${load.reload} />`;
  return html`<${Page} title="Usage" lead="What model calls have used and cost." actions=${actions} class="usage">
    <${Loaded} load=${load}>${(data) => html`<${Body} data=${data} group=${group} choose=${choose} />`}</${Loaded}>
  </${Page}>`;
}

async function readAll(period, group, signal) {
  const fromMs = beginOf(period, serverNow());
  const query = { from_ms: fromMs || undefined, timezone: HERE };
  const [days, parts, limits, budgets] = await Promise.all([
    ask("/usage", { query: { ...query, group: "day", limit: 1000 }, signal }),
    ask("/usage", { query: { ...query, group, limit: 100 }, signal }),
    ask("/usage/limits", { query: { from_ms: fromMs || undefined }, signal }),
    ask("/budgets", { signal }),
  ]);
  return { fromMs, days, parts, limits, budgets };
}

function Choice({ label, options, value, onChoose }) {
  return html`<div class="row usage-choice" role="group" aria-label=${label}>${options.map(([name, text]) => html`<${Button} key=${name}
    kind="quiet" class="chip" aria-pressed=${String(name === value)} onClick=${() => onChoose(name)}>${text}</${Button}>`)}</div>`;
}

function Body({ data, group, choose }) {
  const { total } = data.days;
  if (!total.calls) {
    return html`<${Empty} title="No model was called in this time">
      <p>Choose a longer period, or <a href=${href("sessions", { new: "1" })}>send a message</a>.</p>
    </${Empty}><${Budgets} items=${data.budgets.items} /><${Limits} items=${data.limits.items} />`;
  }
  return html`<${Totals} total=${total} />
    <${Days} data=${data} />
    <section class="card stack" aria-labelledby="usage-parts">
      <div class="row spread"><h2 id="usage-parts">By ${group}</h2>
        <${Choice} label="Group" options=${GROUPS} value=${group} onChoose=${(name) => choose({ by: name })} /></div>
      <${Parts} parts=${data.parts} group=${group} />
    </section>
    <${Budgets} items=${data.budgets.items} />
    <${Limits} items=${data.limits.items} />`;
}

function Totals({ total }) {
  const note = priceNote(total);
  const facts = [
    ["Cost", total.cost === null ? "not known" : money(total.cost)],
    ["Tokens in", number(total.input_tokens)],
    ["Tokens out", number(total.output_tokens)],
    ["From the cache", number(total.cache_read_tokens)],
    ["Calls", number(total.calls)],
  ];
  return html`<div class="usage-totals">${facts.map(([name, value]) => html`<div class="card" key=${name}>
      <div class="dim">${name}</div><div class="usage-number num">${value}</div></div>`)}</div>
    ${note ? html`<p class="dim">${note} The configuration can say it: <code>input_price</code> and <code>output_price</code>.</p>`
      : null}`;
}

function Days({ data }) {
  const found = daySeries(data.days.items, data.fromMs, serverNow());
  const isPriced = data.days.total.priced_calls > 0;
  const tokens = [
    { label: "Tokens in", values: found.input, color: "--run", fill: true },
    { label: "Tokens out", values: found.output, color: "--ok", fill: true },
  ];
  return html`<section class="card stack" aria-labelledby="usage-days">
    <h2 id="usage-days">By day</h2>
    ${found.x.length < 2 ? html`<p class="dim">A longer period shows its days.</p>` : html`<div class="usage-plots">
      <${Plot} label="Tokens by day" x=${found.x} series=${tokens} height=${PLOT_HEIGHT} days=${true} format=${compact} />
      ${isPriced ? html`<${Plot} label="Cost by day" x=${found.x} height=${PLOT_HEIGHT} format=${money} days=${true} least=${0.0001}
        series=${[{ label: "Cost", values: found.cost, color: "--wait", fill: true }]} />` : null}
    </div>`}
  </section>`;
}

function Parts({ parts, group }) {
  const { items } = parts;
  return html`<table class="table usage-table">
    <thead><tr><th>${GROUPS.find(([name]) => name === group)[1]}</th><th class="right">Cost</th><th class="right">In</th>
      <th class="right">Out</th><th class="right">Calls</th><th class="usage-bar-head">Share of the largest</th></tr></thead>
    <tbody>${items.map((each) => html`<tr key=${`${each.workspace} ${each.key}`}>
      <td data-label=${group}><div><${Key} part=${each} group=${group} /></div></td>
      <td data-label="cost" class="right">${each.cost === null ? html`<span class="dim">not known</span>` : money(each.cost)}</td>
      <td data-label="in" class="right">${number(each.input_tokens)}</td>
      <td data-label="out" class="right">${number(each.output_tokens)}</td>
      <td data-label="calls" class="right">${number(each.calls)}</td>
      <td><${Bar} full=${shareOf(each, items)} label="${number(tokensOf(each))} tokens" /></td>
    </tr>`)}</tbody>
  </table>
  ${parts.left_out ? html`<p class="dim">${plural(parts.left_out, "more is", "more are")} not shown: the least expensive.</p>` : null}`;
}

function Key({ part, group }) {
  if (group === "session") return html`<a href=${href("chat", part.key)}><${Text}>${part.key}</${Text}></a>`;
  if (group === "run") {
    return html`<a class="mono" href=${href("story", "run", part.key)}>${part.key}</a>
      <div class="dim"><${Text}>${part.session_key}</${Text}>${part.last_ms ? ` · ${ago(part.last_ms, serverNow())}` : ""}</div>`;
  }
  return html`<${Text}>${part.key || "not named"}</${Text}>`;
}

const UNITS = { ms: duration, tokens: number, rounds: number, calls: number, runs: number, levels: number };

function Limits({ items }) {
  const rows = limitRows(items);
  const isMany = new Set(items.map((each) => each.workspace)).size > 1;
  return html`<section class="card stack" aria-labelledby="usage-limits">
    <div><h2 id="usage-limits">Limits of runs</h2>
      <p class="dim">What a run may have at most, and the most that one has had in this time.
        The <a href=${href("config")}>configuration</a> sets them.</p></div>
    <ul class="usage-limits">${rows.map((each) => html`<li key=${`${each.workspace} ${each.name}`} class="usage-limit">
      <div class="usage-limit-name">${each.words}
        ${isMany ? html` <span class="dim">(<${Text}>${each.workspace}</${Text}>)</span>` : null}</div>
      ${each.full === null ? html`<div class="dim">${each.limit === null ? "no limit" : `at most ${UNITS[each.unit](each.limit)}`}
          ${each.limit === null && each.used ? `, most so far ${UNITS[each.unit](each.used)}` : ""}</div>`
        : html`<div class="grow"><${Bar} full=${each.full} tone=${each.tone} label="${each.used} of ${each.limit}" /></div>
          <div class="num">${UNITS[each.unit](each.used)} of ${UNITS[each.unit](each.limit)}</div>`}
      ${each.run_id ? html`<a href=${href("story", "run", each.run_id)}>which run</a>` : null}
    </li>`)}</ul>
  </section>`;
}
