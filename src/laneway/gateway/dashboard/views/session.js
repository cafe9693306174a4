/** One session from outside: what waits, its settings, the lanes of its tools, what it did last. */
import { ask } from "../core/api.js";
import { cut, duration, number } from "../core/format.js";
import { useStream } from "../core/live.js";
import { href } from "../core/router.js";
import { Labels } from "../ui/labels.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Empty, html, Page, Since, stateTone, Text, Time, useEffect, useMemo, useState } from "../ui/parts.js";
import { ApprovalsOf } from "./approvals.js";
import { pacer } from "./overview_model.js";
import { QueuePanel } from "./queue.js";
import { memoryWords, PIECES } from "./sessions_model.js";
import { passivate, stop } from "./sessions_parts.js";

const ANSWER_SHOWN = 200;

/** The details of a session. */
export function Session({ sessionKey }) {
  const [version, setVersion] = useState(0);
  const path = `/sessions/${encodeURIComponent(sessionKey)}`;
  const load = useLoad(async (signal) => {
    const [session, runs] = await Promise.all([
      ask(path, { signal }),
      ask(`${path}/runs`, { query: { newest: "true", limit: 10 }, signal }),
    ]);
    return { session, runs: runs.items };
  }, [sessionKey]);
  const pace = useMemo(() => pacer(load.reload), [load.reload]);
  useEffect(() => () => pace.stop(), [pace]);
  const told = () => {
    setVersion((count) => count + 1);
    pace.told();
  };
  useStream(`${path}/events`, (type) => PIECES.has(type) || told(), { query: { replay: "none" }, onOpen: told });
  const session = load.data?.session;
  const actions = html`<a class="button button-primary" href=${href("chat", sessionKey)}>Open the chat</a>
    ${session?.in_memory ? html`<${Button} icon="pause" title="Have it leave memory until something comes for it"
      onClick=${() => passivate(sessionKey).then(told)}>Passivate</${Button}>` : null}
    <${Button} kind="danger" icon="stop" onClick=${() => stop(sessionKey).then(told)}>Stop</${Button}>`;
  const state = session?.resting ? "rests" : session?.state;
  const lead = session ? html`<${Badge} tone=${session.resting ? "wait" : stateTone(session.run_id ? "running" : state)}>${state}</${Badge}>
    ${" "}in workspace <${Text}>${session.workspace}</${Text}>, conversation ${session.conversation}` : "";
  return html`<${Page} title=${sessionKey} class="session" lead=${lead} actions=${actions}>
    <p><a href=${href("sessions")}>All sessions</a></p>
    ${session ? html`<${Labels} identity=${session.identity} />` : null}
    ${session?.forked_from ? html`<p class="dim">It is a fork: what came before is in
      ${" "}<a href=${href("story", "run", session.forked_from.run_id)}><${Text}>${session.forked_from.run_id}</${Text}></a>, up to step
      ${" "}${number(session.forked_from.step)}.</p>` : null}
    ${session && memoryWords(session) ? html`<p class="dim" role="status">${memoryWords(session)}</p>` : null}
    <${ApprovalsOf} sessionKey=${sessionKey} version=${version} />
    <${QueuePanel} sessionKey=${sessionKey} version=${version} />
    <${Loaded} load=${load}>${(data) => html`
      <${Runs} runs=${data.runs} />
      <${Lanes} lanes=${data.session.lanes} inMemory=${data.session.in_memory} />`}</${Loaded}>
  </${Page}>`;
}

function Runs({ runs }) {
  return html`<section class="stack" aria-labelledby="session-runs"><h2 id="session-runs">Last runs</h2>
    ${runs.length ? html`<table class="table">
      <thead><tr><th scope="col">Began</th><th scope="col">State</th><th scope="col">Took</th><th scope="col">Answer</th></tr></thead>
      <tbody>${runs.map((run) => html`<tr key=${run.run_id}>
        <td data-label="Began"><a href=${href("story", "run", run.run_id)}><${Time} ms=${run.began_ms} /></a></td>
        <td data-label="State"><${Badge} tone=${run.ended_ms ? stateTone(run.state) : "run"}>${run.state}</${Badge}></td>
        <td data-label="Took">${run.ended_ms
          ? html`<span class="num">${duration(run.ended_ms - run.began_ms)}</span>` : html`<${Since} ms=${run.began_ms} />`}</td>
        <td data-label="Answer"><${Text}>${cut(run.answer ?? run.reason, ANSWER_SHOWN)}</${Text}></td>
      </tr>`)}</tbody></table>` : html`<${Empty} title="Nothing has run yet" />`}
  </section>`;
}

function Lanes({ lanes, inMemory }) {
  const none = inMemory ? "Its tools have no lanes of their own." : "They are there while the session is in memory.";
  return html`<section class="stack" aria-labelledby="session-lanes"><h2 id="session-lanes">Lanes of its tools</h2>
    ${lanes.length ? html`<table class="table">
      <thead><tr><th scope="col">Lane</th><th scope="col">Made by</th><th scope="col" class="right">Running</th>
        <th scope="col" class="right">Waiting</th></tr></thead>
      <tbody>${lanes.map((lane) => html`<tr key=${lane.name}>
        <td data-label="Lane"><${Text}>${lane.name}</${Text}></td><td data-label="Made by">${lane.mode}</td>
        <td data-label="Running" class="right num">${lane.running} of ${lane.concurrency}</td>
        <td data-label="Waiting" class="right num">${lane.waiting}</td></tr>`)}</tbody></table>`
      : html`<p class="dim">${none}</p>`}
  </section>`;
}
