/** The overview: what runs, what waits and why, what needs somebody, and what one can do about it, at a glance. */
import { about, ask } from "../core/api.js";
import { number, plural } from "../core/format.js";
import { useStream } from "../core/live.js";
import { href } from "../core/router.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Empty, html, Page, Since, Text, toast, useEffect, useMemo } from "../ui/parts.js";
import { Plot } from "../ui/plot.js";
import { confirm } from "../ui/dialogs.js";
import { Needs } from "./overview_parts.js";
import { capital, doingOf, needs, pacer, restOf, sentenceOf, traffic, wayOut } from "./overview_model.js";

const POLL_MS = 5000; // what an operator does elsewhere is no event
const PLOT_HEIGHT = 96;
const PIECES = new Set(["text_delta", "reasoning_delta", "tool_output_delta"]); // they change nothing that is shown here

/** The overview. */
export default function Overview() {
  const load = useLoad(readAll, []);
  const pace = useMemo(() => pacer(load.reload), [load.reload]);
  const hear = (type) => PIECES.has(type) || pace.told();
  useStream("/events", hear, { query: { replay: "none" }, onOpen: pace.told });
  useEffect(() => {
    const timer = setInterval(() => document.hidden || pace.told(), POLL_MS);
    return () => {
      clearInterval(timer);
      pace.stop();
    };
  }, [pace]);
  const lead = load.data ? sentenceOf(load.data.now, load.data.attention) : "What your agents do, and why something waits.";
  const actions = html`<a class="button" href=${href("guide")}>Guide</a>
    <a class="button button-primary" href=${href("sessions", { new: "1" })}>New message</a>`;
  return html`<${Page} title="Overview" class="overview" actions=${actions} lead=${html`<span aria-live="polite">${lead}</span>`}>
    <${Loaded} load=${load}>${(data) => html`<${Body} data=${data} reload=${load.reload} />`}</${Loaded}>
  </${Page}>`;
}

async function readAll(signal) {
  const [now, attention, sessions, history] = await Promise.all([
    ask("/now", { signal }),
    ask("/attention", { signal }),
    ask("/sessions", { query: { limit: 1 }, signal }),
    about.value?.shared ? ask("/traffic/history", { signal }) : null, // lanes belong to all: not everybody may see them
  ]);
  const approvals = attention.approvals.count ? await ask("/approvals", { signal }) : { items: [] };
  return { now, attention, history, approvals: approvals.items, isNew: !sessions.items.length };
}

function Body({ data, reload }) {
  const { now, attention, isNew } = data;
  if (isNew && !now.running && !now.waiting && !needs(attention).length) return html`<${Welcome} />`;
  return html`
    <${Needs} attention=${attention} approvals=${data.approvals} reload=${reload} />
    <div class="overview-columns">
      <${AtWork} now=${now} reload=${reload} />
      <${Waiting} now=${now} reload=${reload} />
    </div>
    <${Traffic} history=${data.history} />`;
}

function Welcome() {
  return html`<${Empty} title="Nobody has sent a message yet">
    <p>Three short steps show what Laneway does: send a message, steer it while it runs, and watch the lanes.</p>
    <div class="row overview-begin">
      <a class="button button-primary" href=${href("guide")}>Begin the guide</a>
      <a class="button" href=${href("sessions", { new: "1" })}>Send a message</a>
    </div>
  </${Empty}>`;
}

function AtWork({ now, reload }) {
  const more = now.running - now.at_work.length;
  return html`<section class="card stack" aria-labelledby="overview-work">
    <div class="row spread"><h2 id="overview-work">At work</h2>
      <${Badge} tone=${now.running ? "run" : "off"}>${number(now.running)}</${Badge}></div>
    ${now.at_work.length ? null : html`<p class="dim">No run goes on.${now.waiting ? "" : " Whatever is sent begins at once."}</p>`}
    <ul class="overview-list">${now.at_work.map((work) => html`<${Work} key=${work.run_id} work=${work} reload=${reload} />`)}</ul>
    ${more > 0 ? html`<a href=${href("sessions")}>and ${plural(more, "more session", "more sessions")}</a>` : null}
  </section>`;
}

function Work({ work, reload }) {
  const doing = doingOf(work);
  const stop = async () => {
    const text = "The run ends where it is; what waits in its session stays.";
    if (!(await confirm({ title: "End this run?", text, yes: "End it", danger: true }))) return;
    await ask(`/runs/${encodeURIComponent(work.run_id)}/cancel`, { body: { reason: "ended from the overview" } });
    toast("The run is being ended.");
    reload();
  };
  return html`<li class="overview-item">
    <div class="overview-main">
      <a class="overview-name" href=${href("chat", work.session_key)}><${Text}>${work.session_key}</${Text}></a>
      <span class="overview-words"><${Badge} tone=${doing.tone}>${doing.text}</${Badge}> <${Text}>${restOf(work)}</${Text}></span>
    </div>
    <div class="overview-side dim"><${Since} ms=${work.since_ms} />
      ${work.waiting ? html`<span>${plural(work.waiting, "waits", "wait")}</span>` : null}</div>
    <div class="row overview-acts">
      <a class="button button-quiet" href=${href("story", "run", work.run_id)}>Why</a>
      <${Button} kind="quiet" icon="stop" title="End this run" onClick=${stop} />
    </div>
  </li>`;
}

function Waiting({ now, reload }) {
  const most = Math.max(1, ...now.groups.map((each) => each.count));
  return html`<section class="card stack" aria-labelledby="overview-waits">
    <div class="row spread"><h2 id="overview-waits">Waits, and why</h2>
      <${Badge} tone=${now.waiting ? "wait" : "off"}>${number(now.waiting)}</${Badge}></div>
    ${now.groups.length ? null : html`<p class="dim">No message waits.</p>`}
    <ul class="overview-list">${now.groups.map((group) => html`<${Group} key=${`${group.why} ${group.lane}`} group=${group}
      most=${most} reload=${reload} />`)}</ul>
  </section>`;
}

function Group({ group, most, reload }) {
  const way = wayOut(group);
  const others = group.sessions - group.examples.length;
  const resume = async () => {
    await ask(`/lanes/${encodeURIComponent(way.lane)}`, { method: "PATCH", body: { paused: false } });
    toast(`Lane ${way.lane} goes on.`);
    reload();
  };
  return html`<li class="overview-item">
    <div class="overview-main">
      <span class="overview-words"><b class="num">${number(group.count)}</b> <${Text}>${capital(group.words)}</${Text}></span>
      <div class="bar" aria-hidden="true"><span style=${{ width: `${(100 * group.count) / most}%` }}></span></div>
      <span class="dim overview-where">in ${group.examples.map((key, at) => html`${at ? ", " : ""}<a key=${key}
        href=${href("chat", key)}><${Text}>${key}</${Text}></a>`)}${others > 0 ? ` and ${plural(others, "more session")}` : ""}</span>
    </div>
    <div class="row overview-acts">${way.lane
      ? html`<${Button} icon="play" onClick=${resume}>${way.text}</${Button}>`
      : html`<a class="button button-quiet" href=${href(way.route, ...way.params)}>${way.text}</a>`}</div>
  </li>`;
}

function Traffic({ history }) {
  const plots = useMemo(() => traffic(history), [history]);
  if (!plots) return null;
  const ended = [{ label: "ended in 5 s", values: plots.ended, color: "--run", fill: true }];
  const wait = [{ label: "wait, 95 of 100 jobs (ms)", values: plots.wait, color: "--wait", fill: true }];
  return html`<section class="card stack" aria-labelledby="overview-traffic">
    <div class="row spread"><h2 id="overview-traffic">The last minutes</h2><a href=${href("lanes")}>Lanes</a></div>
    <div class="overview-plots">
      <${Plot} x=${plots.x} series=${ended} height=${PLOT_HEIGHT} label="Jobs that ended, all lanes" />
      <${Plot} x=${plots.x} series=${wait} height=${PLOT_HEIGHT} label="How long jobs waited, all lanes" />
    </div>
  </section>`;
}
