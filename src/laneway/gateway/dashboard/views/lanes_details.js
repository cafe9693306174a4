/** A lane and a job from near: everything about them, and what can be done. */
import { about, ask, choosePlace, place } from "../core/api.js";
import { href } from "../core/router.js";
import { duration, now, number, plural, shown } from "../core/format.js";
import { Dialog } from "../ui/dialogs.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Copy, Countdown, ErrorBox, Field, html, Since, stateTone, Text, useEffect, useRef, useState } from "../ui/parts.js";
import { Plot } from "../ui/plot.js";
import { cancel, close, open, resize, turn } from "./lanes_acts.js";
import { jobKind, jobName, seriesOf, shortName, UNLIMITED, whyText, withStep } from "./lanes_model.js";
import { describe, State } from "./lanes_parts.js";

const PERIODS = [[60000, "1 minute"], [300000, "5 minutes"], [900000, "15 minutes"], [3600000, "1 hour"]];
const AGAIN_MS = 2000;

/** How many jobs began and ended, and how long they had waited. */
export function Plots({ series, what, height = 96 }) {
  return html`<div class="lane-plots">
    <${Plot} label=${`Jobs of ${what} in steps of five seconds`} x=${series.times} height=${height} series=${[
      { label: "ended", values: series.ended, color: "--run", fill: true },
      { label: "failed", values: series.failed, color: "--bad" },
      { label: "running", values: series.running, color: "--ok" },
      { label: "waiting", values: series.waiting, color: "--wait" },
    ]} />
    <${Plot} label=${`How long jobs of ${what} waited`} x=${series.times} height=${height} format=${duration} series=${[
      { label: "half waited at most", values: series.wait_p50_ms, color: "--wait", points: true },
      { label: "95 % waited at most", values: series.wait_p95_ms, color: "--warn", points: true },
    ]} />
  </div>`;
}

/** A lane in a dialog. `step` is the newest step of the history. */
export function LaneDialog({ track, step, onClose, onJob }) {
  const load = useLoad((signal) => ask("/traffic/history", { reads: "", query: { lane: track.name }, signal }), [track.name]);
  const [series, setSeries] = useState(null);
  useEffect(() => setSeries(load.data ? seriesOf(load.data, track.name) : null), [load.data]);
  useEffect(() => {
    if (step) setSeries((before) => before && withStep(before, step, track.name));
  }, [step]);
  const name = shown(shortName(track));
  return html`<${Dialog} title=${name} onClose=${onClose} wide=${true} class="lane-dialog">
    <p class="row lane-dialog-lead"><${Text}>${track.name}</${Text}> <${Copy} text=${track.name} label="Copy the name" />
      ${track.session ? html`<a href=${href("chat", track.session)}>Open the session</a>` : null}</p>
    <p class="lane-dialog-state"><${State} track=${track} /></p>
    <${Facts} track=${track} />
    <${Change} track=${track} />
    ${series ? html`<${Plots} series=${series} what=${name} />` : html`<${Loaded} load=${load}>${() => null}</${Loaded}>`}
    <${Jobs} title="Has a slot" jobs=${track.jobs} more=${track.more_jobs} onJob=${onJob} />
    <${Jobs} title="Waits" jobs=${track.queue} more=${track.more_queue} onJob=${onJob} />
  </${Dialog}>`;
}

function Facts({ track }) {
  const facts = [
    ["Slots", track.concurrency >= UNLIMITED ? "no limit" : number(track.concurrency)],
    ["Taken", number(track.running)],
    ["Waiting", number(track.waiting)],
    ["For a later time", track.scheduled ? number(track.scheduled) : null],
    ["Lent", track.lent ? `${plural(track.lent, "slot")}, ${number(track.borrowed)} of them in use by others` : null],
    ["Ended well", number(track.completed)],
    ["Failed", number(track.failed)],
    ["Under pressure from", track.pressure_threshold ? `${number(track.pressure_threshold)} waiting` : null],
    ["Takes at most", track.queued_max === null ? null : `${number(track.queued_max)} waiting`],
    ["Rate", track.rate ? `${number(track.rate[0])} starts in ${duration(track.rate[1])}` : null],
    ["Shares a cap with", track.group || null],
    ["Is for", describe(track) || null],
  ].filter(([, value]) => value !== null);
  return html`<dl class="lane-facts">${facts.map(([name, value]) => html`<div key=${name}>
    <dt>${name}</dt><dd class="num">${shown(value)}</dd></div>`)}</dl>`;
}

function Change({ track }) {
  const [width, setWidth] = useState(null);
  const [period, setPeriod] = useState(PERIODS[0][0]);
  const [reason, setReason] = useState("");
  const wanted = width ?? String(track.concurrency);
  const count = /^\d{1,7}$/.test(wanted) ? Number(wanted) : NaN;
  const isRight = count >= 1 && count <= 1000000;
  const apply = async () => {
    await resize(track, count);
    setWidth(null);
  };
  const canResize = !track.exclusive && track.concurrency < UNLIMITED;
  return html`<div class="lane-change">
    ${canResize ? html`<div class="row">
      <${Field} label="Slots" inline=${true} error=${isRight ? "" : "a whole number from 1 on"}>
        <input class="lane-width-field" inputMode="numeric" value=${wanted} onInput=${(event) => setWidth(event.target.value.trim())} />
      </${Field}>
      <${Button} onClick=${apply} disabled=${!isRight || count === track.concurrency}>Apply</${Button}>
    </div>` : null}
    <div class="row"><${Button} icon=${track.paused ? "play" : "pause"} onClick=${() => turn(track)}>
      ${track.paused ? "Resume" : "Pause"}</${Button}></div>
    ${track.role === "template" ? null : track.closed_until_ms !== null
      ? html`<div class="row"><span>Closed for another <${Countdown} until=${track.closed_until_ms} /></span>
          <${Button} onClick=${() => open(track)}>Open now</${Button}></div>`
      : html`<div class="row">
          <${Field} label="Close for" inline=${true}><select value=${period} onChange=${(event) => setPeriod(Number(event.target.value))}>
            ${PERIODS.map(([ms, text]) => html`<option value=${ms} key=${ms}>${text}</option>`)}</select></${Field}>
          <${Field} label="because" inline=${true}><input value=${reason} maxLength="200" placeholder="say why"
            onInput=${(event) => setReason(event.target.value)} /></${Field}>
          <${Button} onClick=${() => close(track, period, reason)}>Close</${Button}></div>`}
  </div>`;
}

function Jobs({ title, jobs, more, onJob }) {
  if (!jobs.length) return null;
  return html`<section class="stack"><h3>${title}</h3>
    <table class="table"><thead><tr><th>Job</th><th>What</th><th>Since</th><th>Why</th></tr></thead><tbody>
      ${jobs.map((job, at) => html`<tr key=${job.id || at}>
        <td data-label="Job">${job.foreign ? html`<span class="dim">${jobName(job)}</span>`
          : html`<button type="button" class="lane-link" onClick=${() => onJob(job)}><${Text}>${jobName(job)}</${Text}></button>`}</td>
        <td data-label="What">${jobKind(job)}</td>
        <td data-label="Since"><${Since} ms=${job.since_ms} /></td>
        <td data-label="Why"><${Text}>${whyOf(job)}</${Text}></td></tr>`)}
    </tbody></table>
    ${more ? html`<p class="dim num">and ${number(more)} more</p>` : null}
  </section>`;
}

function whyOf(job) {
  if (job.lent) return "has lent its slot while it waits for another job";
  if (job.borrowed_from) return "has the slot that another job has lent it";
  return job.state === "running" ? "runs" : whyText(job) || job.state;
}

/** A job in a dialog: what it is, why it is where it is, the ways to its session and story, and its end. */
export function JobDialog({ job: known, onClose }) {
  const load = useLoad((signal) => ask(`/jobs/${encodeURIComponent(known.id)}`, { reads: "", signal }), [known.id]);
  const isGone = load.error?.status === 404;
  const readAt = useRef(0);
  useEffect(() => {
    if (isGone || load.loading || now.value - readAt.current < AGAIN_MS) return;
    readAt.current = now.value;
    load.reload();
  }, [now.value]);
  const job = load.data?.job ?? known;
  const end = async () => {
    if (await cancel(job)) load.reload();
  };
  return html`<${Dialog} title=${shown(jobName(job))} onClose=${onClose} class="lane-dialog">
    <p class="row"><${Badge} tone=${isGone ? "off" : stateTone(job.state)}>${isGone ? "ended" : job.lent ? "lent" : job.state}</${Badge}>
      <span>${jobKind(job)}</span>${job.cancelling && !isGone ? html`<${Badge} tone="warn">is being ended</${Badge}>` : null}</p>
    ${isGone ? html`<p>It has ended. Its story says what became of it.</p>`
      : load.error ? html`<${ErrorBox} error=${load.error} retry=${load.reload} />`
      : html`<p class="lane-why-full"><${Text}>${load.data?.detail ?? known.why ?? ""}</${Text}></p>`}
    <dl class="lane-facts">
      <div><dt>${job.state === "running" ? "Runs" : "Waits"} since</dt><dd><${Since} ms=${job.since_ms} /></dd></div>
      ${job.position ? html`<div><dt>Position</dt><dd class="num">${job.position}</dd></div>` : null}
      ${job.until_ms ? html`<div><dt>Until</dt><dd><${Countdown} until=${job.until_ms} /></dd></div>` : null}
      <div><dt>Level</dt><dd>${job.priority}</dd></div>
      ${job.attempt ? html`<div><dt>Attempt</dt><dd class="num">${job.attempt}</dd></div>` : null}
      ${(job.lanes ?? []).length ? html`<div><dt>Lanes</dt><dd><${Text}>${job.lanes.join(", ")}</${Text}></dd></div>` : null}
      ${job.session ? html`<div><dt>Session</dt><dd><${Text}>${job.session}</${Text}></dd></div>` : null}
      <div><dt>Id</dt><dd class="mono">${job.id}</dd></div>
    </dl>
    <${Blockers} jobs=${load.data?.blocked_by ?? []} />
    <div class="dialog-foot">
      ${job.session ? html`<a class="button" href=${href("chat", job.session)} onClick=${() => choose(job)}>Open the session</a>` : null}
      ${job.run ? html`<a class="button" href=${href("story", "run", job.run)} onClick=${() => choose(job)}>Story of the run</a>` : null}
      ${isGone ? null : html`<${Button} kind="danger" icon="x" onClick=${end} disabled=${job.cancelling}>Cancel the job</${Button}>`}
    </div>
  </${Dialog}>`;
}

function Blockers({ jobs }) {
  if (!jobs.length) return null;
  return html`<section><h3>Before it</h3><ul class="lane-blockers">${jobs.map((job, at) => html`<li key=${job.id || at}>
    <${Text}>${jobName(job)}</${Text}>${" "}
    <span class="dim">${jobKind(job)}, ${job.state}, <${Since} ms=${job.since_ms} /></span></li>`)}</ul></section>`;
}

/** The session may be of another workspace than the one that is chosen. */
function choose(job) {
  const chosen = place.value.workspace || about.value?.workspaces?.[0]?.name || "";
  if (job.workspace && chosen && job.workspace !== chosen) choosePlace({ workspace: job.workspace });
}
