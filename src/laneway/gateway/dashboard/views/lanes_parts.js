/** A lane as a track: slots with jobs in them, and those that wait behind them. */
import { href } from "../core/router.js";
import { duration, number, plural, shown } from "../core/format.js";
import { Badge, Button, Countdown, Icon, html, Since, Text } from "../ui/parts.js";
import { open, resize, turn } from "./lanes_acts.js";
import { freeSlots, jobKind, jobName, jobsOf, shortName, trouble, UNLIMITED, whyText } from "./lanes_model.js";

const MODES = { external: "made by workers", hybrid: "watched by workers", mixed: "differs by workspace" };
const FOR = {
  turns: "turns of sessions", model: "model calls", tools: "tool calls", session: "one turn at a time", template: "in each session",
  waits: "turns that wait for an answer",
};

/** A head of a group: folds and unfolds it. */
export function Head({ row, onFold }) {
  return html`<button type="button" class="lane-head" aria-expanded=${String(row.open)} onClick=${() => onFold(row)}>
    <span class="lane-turn"><${Icon} name="right" /></span>
    <span class="lane-head-title">${shown(row.title)}</span>
    <span class="dim num">${number(row.count)}${row.busy === undefined ? "" : `, ${number(row.busy)} at work`}</span>
    ${row.note ? html`<span class="dim lane-head-note">${row.note}</span>` : null}
  </button>`;
}

/** A session: what it does, however many lanes it has. */
export function SessionRow({ row, onFold, onJob }) {
  const jobs = jobsOf(row.tracks);
  const isStopped = row.tracks.some((track) => track.paused || track.closed_until_ms !== null);
  return html`<div class="lane-session">
    <button type="button" class="lane-fold" aria-expanded=${String(row.open)} onClick=${() => onFold(row)}
      aria-label=${`Lanes of session ${shown(row.session)}`}><span class="lane-turn"><${Icon} name="right" /></span></button>
    <a class="lane-session-name" href=${href("chat", row.session)} title=${shown(row.session)}><${Text}>${row.session}</${Text}></a>
    ${row.workspace && row.workspace !== "default" ? html`<span class="chip">${shown(row.workspace)}</span>` : null}
    ${isStopped ? html`<${Badge} tone="warn">stopped</${Badge}>` : null}
    <span class="lane-session-jobs">
      ${row.open ? null : jobs.slice(0, 8).map((job, at) => html`<${Cell} key=${job.id || at} job=${job} onJob=${onJob}
        inSession=${true} />`)}
      ${!row.open && jobs.length > 8 ? html`<span class="dim num">+${jobs.length - 8}</span>` : null}
      ${jobs.length ? null : html`<span class="dim">idle</span>`}
    </span>
  </div>`;
}

/** One job, where it stands. */
export function Cell({ job, onJob, inSession = false }) {
  const isWaiting = job.state === "queued" || job.state === "scheduled";
  const tone = job.lent ? "lent" : isWaiting ? (job.position ? "wait" : "hold") : "run";
  const name = shown(jobName(job, inSession));
  const note = [
    `${jobKind(job)}, ${job.lent ? "has lent its slot" : job.state}`,
    job.why ? shown(job.why) : "",
    job.borrowed_from ? "in a lent slot" : "",
    job.cancelling ? "is being ended" : "",
  ].filter(Boolean).join("; ");
  const marks = `lane-cell lane-cell-${tone}${job.borrowed_from ? " lane-cell-borrowed" : ""}${job.cancelling ? " lane-cell-ending" : ""}`;
  if (job.foreign) return html`<span class="${marks} lane-cell-foreign" title=${note}>${name}</span>`;
  return html`<button type="button" class=${marks} title=${`${name}: ${note}`} onClick=${() => onJob(job)}>
    <span class="lane-cell-name">${name}</span><span class="visually-hidden">, ${note}</span>
    ${job.lent ? html`<span class="lane-cell-mark">lent</span>` : null}
    ${job.borrowed_from ? html`<span class="lane-cell-mark">borrowed</span>` : null}
    ${isWaiting ? null : html`<span class="lane-cell-time"><${Since} ms=${job.since_ms} /></span>`}
  </button>`;
}

/** Slots and queue. */
export function Track({ track, onJob, most = 12 }) {
  const free = freeSlots(track, most);
  const cells = Array.from({ length: free.cells }, (_, at) => html`<span class="lane-slot" key=${`free-${at}`} aria-hidden="true"></span>`);
  return html`<div class="lane-track">
    <div class="lane-slots">
      ${track.jobs.map((job, at) => html`<${Cell} key=${job.id || `other-${at}`} job=${job} onJob=${onJob} />`)}
      ${track.more_jobs ? html`<span class="lane-more num">+${number(track.more_jobs)}</span>` : null}
      ${cells}
      ${free.more ? html`<span class="lane-more num">+${number(free.more)} free</span>` : null}
      ${free.unlimited && !track.jobs.length ? html`<span class="lane-more">no limit</span>` : null}
    </div>
    ${track.queue.length || track.more_queue ? html`<div class="lane-queue">
      <span class="lane-gate" aria-hidden="true"></span>
      ${track.queue.map((job, at) => html`<${Cell} key=${job.id || `other-${at}`} job=${job} onJob=${onJob} />`)}
      ${track.more_queue ? html`<span class="lane-more num">+${number(track.more_queue)} more</span>` : null}
    </div>` : null}
  </div>`;
}

/** What is the matter with a lane, in a badge and a few words. */
export function State({ track }) {
  const what = trouble(track);
  if (what === "paused") {
    return html`<${Badge} tone="warn">paused</${Badge}> <${Why} text=${track.pause_reason} />`;
  }
  if (what === "closed") {
    return html`<${Badge} tone="warn">closed</${Badge}>${" "}
      <span class="lane-closed">opens in <${Countdown} until=${track.closed_until_ms} /></span> <${Why} text=${track.closed_reason} />`;
  }
  if (what === "critical" || what === "warning" || what === "pressure") {
    const note = what === "pressure" ? "More waits here than its threshold." : `The queue is long (${what}).`;
    return html`<${Badge} tone=${what === "critical" ? "bad" : "warn"} title=${note}>under pressure</${Badge}>
      <${Waiting} track=${track} />`;
  }
  if (track.waiting) return html`<${Waiting} track=${track} />`;
  if (track.lent) return html`<span class="dim">${plural(track.lent, "slot")} lent</span>`;
  return html`<span class="dim">${describe(track)}</span>`;
}

function Why({ text }) {
  return text ? html`<span class="dim" title=${shown(text)}><${Text}>${text}</${Text}></span>` : null;
}

function Waiting({ track }) {
  const why = shown(track.queue.length ? whyText(track.queue[0]) : "");
  return html`<span class="dim lane-why" title=${why}>
    ${track.oldest_since_ms === null ? null : html`longest <${Since} ms=${track.oldest_since_ms} />`}${why ? ` · ${why}` : ""}</span>`;
}

/** What a lane is for. */
export function describe(track) {
  const mode = MODES[track.mode];
  if (mode) return mode;
  if (track.rate) return `at most ${track.rate[0]} in ${duration(track.rate[1])}`;
  return FOR[track.role] ?? "";
}

/** A lane: what it is, its track, its numbers, and what can be done about it. */
export function LaneRow({ row, isActive, draft, onDraft, onActive, onLane, onJob }) {
  const { track } = row;
  const isOff = track.paused || track.closed_until_ms !== null;
  const name = shown(shortName(track));
  const classes = `lane${row.inner ? " lane-inner" : ""}${isActive ? " lane-active" : ""}${isOff ? " lane-off" : ""}`;
  return html`<div class=${classes} data-lane=${track.name} aria-current=${isActive ? "true" : undefined} onClick=${() => onActive(row)}>
    <div class="lane-words">
      <button type="button" class="lane-name" onClick=${() => onLane(track)} title=${shown(track.name)}>${name}</button>
      <span class="lane-state"><${State} track=${track} /></span>
    </div>
    <${Track} track=${track} onJob=${onJob} />
    <div class="lane-side">
      <span class="lane-count num" title="slots taken, of all"><b>${number(track.running)}</b>${" "}
        <span class="dim">/ ${track.concurrency >= UNLIMITED ? "∞" : number(track.concurrency)}</span></span>
      <span class="lane-wait num ${track.waiting ? "" : "dim"}" title="jobs that wait">
        <b>${number(track.waiting)}</b> <span class="dim">wait</span></span>
      <${Controls} track=${track} name=${name} draft=${draft} onDraft=${onDraft} />
    </div>
  </div>`;
}

/** Width, and whether anything starts. */
export function Controls({ track, name, draft, onDraft }) {
  const wanted = draft ?? track.concurrency;
  const canResize = !track.exclusive && track.concurrency < UNLIMITED;
  const step = (by) => onDraft(track, Math.min(1000000, Math.max(1, wanted + by)));
  const apply = async () => {
    await resize(track, wanted);
    onDraft(track, null);
  };
  const isClosed = track.closed_until_ms !== null;
  return html`<span class="lane-controls">
    ${canResize ? html`<span class="lane-stepper" role="group" aria-label=${`Slots of ${name}`}>
      <${Button} kind="quiet" icon="minus" title=${`One slot less in ${name}`} disabled=${wanted <= 1} onClick=${() => step(-1)} />
      <span class="num lane-width" aria-live="polite">${draft === undefined ? "" : number(wanted)}</span>
      <${Button} kind="quiet" icon="plus" title=${`One slot more in ${name}`} onClick=${() => step(1)} />
      ${draft === undefined ? null
        : html`<${Button} kind="primary" onClick=${apply} title=${`Give ${name} ${wanted} slots`}>Apply</${Button}>`}
    </span>` : null}
    ${isClosed ? html`<${Button} onClick=${() => open(track)} title=${`Open ${name} before its time`}>
      Open<span class="visually-hidden"> ${name}</span></${Button}>` : null}
    <${Button} kind="quiet" icon=${track.paused ? "play" : "pause"} title=${`${track.paused ? "Resume" : "Pause"} ${name}`}
      onClick=${() => turn(track)} />
  </span>`;
}
