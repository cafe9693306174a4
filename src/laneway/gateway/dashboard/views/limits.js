/** Limits: accounts of models and lanes that start nothing until a time, what is left of them, and who waits. */
import { ask, can } from "../core/api.js";
import { clock, duration, now, number, plural } from "../core/format.js";
import { href } from "../core/router.js";
import { Dialog } from "../ui/dialogs.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Countdown, Empty, Field, Form, html, Page, Text, useRef, useSignalEffect, useState } from "../ui/parts.js";
import { isDue, rateWords, sortLimits, SPANS, stateOf, titleOf, waitingWords } from "./limits_model.js";

const POLL_MS = 4000; // a provider's answer closes a limit, which is no event of a session

/** The view of limits. */
export default function Limits() {
  const load = useLoad(readAll, []);
  const [closing, setClosing] = useState(null);
  const latest = useRef({});
  latest.current = { ...load, readMs: latest.current.data === load.data ? latest.current.readMs : now.peek() };
  useSignalEffect(() => {
    const nowMs = now.value; // read in any case: it is what this follows
    const { loading, data, readMs, reload } = latest.current;
    if (!loading && isDue(data?.items, readMs ?? 0, nowMs, POLL_MS)) reload();
  });
  const closed = (load.data?.items ?? []).filter((each) => each.closed).length;
  const lead = closed
    ? `${plural(closed, "limit is", "limits are")} closed: nothing starts there until its time.`
    : "Accounts of models, rate limits, and lanes that are closed until a time.";
  const empty = html`<${Empty} title="There are no limits yet">
    <p>The account of a model is here once it was called; a provider that says “later” closes it by itself.</p>
    <p><a href=${href("lanes")}>Lanes</a> can be closed for a while, too.</p></${Empty}>`;
  return html`<${Page} title="Limits" lead=${lead} class="limits"
    actions=${html`<${Button} kind="quiet" icon="refresh" title="Read again" onClick=${load.reload} />`}>
    <${Loaded} load=${load} empty=${empty}>${(data) => html`<div class="grid limits-grid">${sortLimits(data.items).map((each) => html`
      <${Limit} key=${each.key} limit=${each} reload=${load.reload} close=${setClosing} />`)}</div>
      ${data.next ? html`<p class="dim">There are more limits than fit here; the lanes view has all of them.</p>` : null}`}</${Loaded}>
    ${closing ? html`<${Closing} limit=${closing} onClose=${() => setClosing(null)}
      onDone=${() => { setClosing(null); return load.reload(); }} />` : null}
  </${Page}>`;
}

function readAll(signal) {
  return ask("/limits", { query: { limit: 500 }, signal });
}

function Limit({ limit, reload, close }) {
  const state = stateOf(limit, now.value);
  const title = titleOf(limit);
  const open = async () => {
    await ask(`/limits/${pathOf(limit.key)}/open`, { method: "POST", body: { reason: "" } });
    await reload();
  };
  return html`<section class="card stack limits-card" aria-label=${title}>
    <div class="row spread"><h2><${Text}>${title}</${Text}></h2><${Badge} tone=${state.tone}>${state.text}</${Badge}></div>
    ${limit.closed ? html`<div class="limits-closed">
      <div>Opens in <strong><${Countdown} until=${limit.closed_until_ms} /></strong>${" "}
        <span class="dim num">at ${clock(limit.closed_until_ms, now.value)}</span></div>
      ${limit.reason ? html`<div><${Text}>${limit.reason}</${Text}></div>` : null}</div>` : null}
    ${limit.rate ? html`<${Rate} rate=${limit.rate} />` : null}
    <dl class="limits-facts"><div><dt>Running</dt><dd class="num">${number(limit.running)}</dd></div>
      <div><dt>Waiting</dt><dd class="num">${number(limit.waiting)}</dd></div></dl>
    ${limit.waiting ? html`<${Waiters} limit=${limit} />` : null}
    <div class="toolbar">
      ${limit.closed ? html`<${Button} kind="primary" icon="play" onClick=${open}>Open now</${Button}>` : null}
      <${Button} icon="clock" disabled=${!can("operate")} title=${can("operate") ? undefined : "It needs a token with the scope operate"}
        onClick=${() => close(limit)}>${limit.closed ? "Another time" : "Close for a while"}</${Button}>
    </div>
  </section>`;
}

/** A key may have slashes, which are part of the address. */
function pathOf(key) {
  return key.split("/").map(encodeURIComponent).join("/");
}

function Rate({ rate }) {
  const full = Math.round((rate.left / rate.count) * 100);
  const words = `${number(rate.left)} of ${number(rate.count)} left`;
  return html`<div class="stack limits-rate">
    <div class="row spread"><span>${rateWords(rate)}</span><span class="num">${words}</span></div>
    <div class="bar" role="img" aria-label=${words}><span style=${{ width: `${full}%` }}></span></div>
    ${rate.next_ms ? html`<div class="dim">The next one in ${duration(rate.next_ms)}.</div>` : null}
  </div>`;
}

function Waiters({ limit }) {
  const named = limit.waiters.filter((each) => each.session_key !== null);
  const rest = waitingWords(limit);
  return html`<ul class="limits-waiters">
    ${named.map((each, index) => html`<li key=${index}><a href=${href("chat", each.session_key)}><${Text}>${each.session_key}</${Text}></a>
      <span class="dim"> <${Text}>${each.label}</${Text}>, for ${duration(each.waited_ms)}</span></li>`)}
    ${rest ? html`<li class="dim">${rest}</li>` : null}
  </ul>`;
}

function Closing({ limit, onClose, onDone }) {
  const [span, setSpan] = useState(SPANS[0][0]);
  const [reason, setReason] = useState("");
  const submit = async () => {
    await ask(`/limits/${pathOf(limit.key)}/close`, { body: { for_ms: span, reason } });
    await onDone();
  };
  return html`<${Dialog} title="Close ${titleOf(limit)}" onClose=${onClose}>
    <${Form} onSubmit=${submit}>
      <p>Nothing starts there until then; what runs goes on, what waits waits on.</p>
      <${Field} label="For how long"><select value=${span} onChange=${(event) => setSpan(Number(event.target.value))}>
        ${SPANS.map(([ms, text]) => html`<option key=${ms} value=${ms}>${text}</option>`)}</select></${Field}>
      <${Field} label="Reason" hint="Whoever waits is told, and it is kept in the audit log.">
        <input type="text" autocomplete="off" maxlength="2000" value=${reason}
          onInput=${(event) => setReason(event.target.value)} /></${Field}>
      <div class="dialog-foot"><${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" type="submit">Close it</${Button}></div>
    </${Form}>
  </${Dialog}>`;
}
