/** External tasks: calls that somebody else makes. What waits and why, who has what, what came of it. */
import { ask } from "../core/api.js";
import { plural, serverNow } from "../core/format.js";
import { useStream } from "../core/live.js";
import { go, href } from "../core/router.js";
import { Loaded, Paged, useLoad, usePages } from "../ui/load.js";
import { useKeys } from "../ui/keys.js";
import { Button, Copy, Countdown, Empty, Field, html, Json, Page, Since, Text, Time, useEffect, useRef, useState } from "../ui/parts.js";
import { ENDS, filtersOf, isLive, placed, reasons, remedy, stateOf, STATES, told } from "./tasks_model.js";
import { EndDialog, TaskActions, TaskRow, TaskState, TaskWho } from "./tasks_parts.js";
import { Folded, useRefresh } from "./work_live.js";
import { startCommand } from "./workers_model.js";

const AGAIN_MS = 3000;
const PAGE = 100;

/** The list, or one task: `#/tasks/<id>`. */
export default function Tasks({ params, query }) {
  return params.length ? html`<${OneTask} id=${params[0]} key=${params[0]} />` : html`<${TaskList} query=${query} />`;
}

function TaskList({ query }) {
  const isEnded = query.show === "ended";
  const filters = filtersOf(query);
  const asked = JSON.stringify(filters);
  const read = async (after, signal) => {
    const group = isEnded ? "ended" : "";
    const page = await ask("/tasks", { query: { ...filters, group, order: "newest", limit: PAGE, after }, signal });
    const at = serverNow();
    return { ...page, items: page.items.map((each) => placed(each, at)) };
  };
  const pages = usePages(read, [isEnded, asked]);
  const tell = useRefresh(pages.reload, AGAIN_MS);
  const hear = (type, facts) => {
    if (pages.items === null) return;
    const next = told(pages.items, type, facts);
    if (next.tasks !== pages.items) pages.update((items) => told(items, type, facts).tasks);
    if (next.isStale) tell();
  };
  useStream("/events", hear, { query: { replay: "none" }, onOpen: tell });
  const search = useRef(null);
  const [ending, setEnding] = useState(null);
  useKeys({ "/": { run: () => search.current?.focus(), text: "Go to the filters" } }, "Tasks");
  const items = pages.items ?? [];
  const waiting = items.filter((each) => each.state === "pending");
  const out = items.filter((each) => isLive(each) && each.state !== "pending");
  const lead = isEnded ? "Calls that workers made, newest first." : pages.items === null ? "" : leadOf(waiting, out, pages.more);
  const goTo = (change) => go(href("tasks", { ...query, ...change }), { replace: true });
  return html`<${Page} title="Tasks" class="tasks" lead=${html`<span aria-live="polite">${lead}</span>`}
    actions=${html`<a class="button" href=${href("workers")}>Workers</a>`}>
    <nav class="row" aria-label="Which tasks">
      <a class="button ${isEnded ? "" : "task-tab"}" href=${href("tasks", filters)} aria-current=${isEnded ? undefined : "page"}>Now</a>
      <a class="button ${isEnded ? "task-tab" : ""}" href=${href("tasks", { ...filters, show: "ended" })}
        aria-current=${isEnded ? "page" : undefined}>Ended</a>
    </nav>
    <${Folded} isNarrow=${asked !== "{}"}><${Filters} filters=${filters} isEnded=${isEnded} goTo=${goTo} first=${search} /></${Folded}>
    ${isEnded ? null : html`<${Reasons} tasks=${waiting} />`}
    <${Paged} pages=${pages} empty=${html`<${Nothing} isEnded=${isEnded} isNarrow=${asked !== "{}"} />`}>${(found) => isEnded
      ? html`<${Table} tasks=${found} label="Tasks that have ended" onDone=${pages.reload} onEnd=${setEnding} />`
      : html`<${Section} title="Waiting" tasks=${waiting} onDone=${pages.reload} onEnd=${setEnding} />
        <${Section} title="With a worker" tasks=${out} onDone=${pages.reload} onEnd=${setEnding} />`}</${Paged}>
    ${ending ? html`<${EndDialog} task=${items.find((each) => each.task_id === ending.task_id) ?? ending} onDone=${pages.reload}
      onClose=${() => setEnding(null)} />` : null}
  </${Page}>`;
}

function leadOf(waiting, out, more) {
  if (!waiting.length && !out.length) return "No call waits for a worker.";
  const some = more ? "at least " : "";
  return `${some}${plural(waiting.length, "task waits", "tasks wait")}, ${plural(out.length, "is", "are")} with a worker.`;
}

function Filters({ filters, isEnded, goTo, first }) {
  const [words, setWords] = useState(filters);
  useEffect(() => setWords(filters), [JSON.stringify(filters)]);
  const names = [["session", "Session"], ["tool", "Tool"], ["lane", "Lane"], ["worker", "Worker"]];
  const states = isEnded ? ENDS : Object.keys(STATES).filter((each) => !ENDS.includes(each));
  const submit = (event) => {
    event.preventDefault();
    goTo(Object.fromEntries(names.map(([name]) => [name, (words[name] ?? "").trim()])));
  };
  const clear = () => {
    setWords({});
    goTo({ session: "", tool: "", lane: "", worker: "", state: "", run: "" });
  };
  return html`<form class="toolbar task-filters" role="search" aria-label="Filter tasks" onSubmit=${submit}>
    ${names.map(([name, label], at) => html`<${Field} label=${label} inline=${true} key=${name}><input type="search" size="12"
      ref=${at ? undefined : first} value=${words[name] ?? ""}
      onInput=${(event) => setWords({ ...words, [name]: event.target.value })} /></${Field}>`)}
    <${Field} label="State" inline=${true}><select value=${filters.state ?? ""} onChange=${(event) => goTo({ state: event.target.value })}>
      <option value="">any</option>
      ${states.map((each) => html`<option value=${each} key=${each}>${STATES[each][0]}</option>`)}</select></${Field}>
    <${Button} type="submit" icon="search">Filter</${Button}>
    ${Object.keys(filters).length ? html`<${Button} kind="quiet" onClick=${clear}>Clear</${Button}>` : null}
    ${filters.run ? html`<span class="chip">run ${filters.run}</span>` : null}
  </form>`;
}

/** Why tasks wait, once for all that wait for the same. */
function Reasons({ tasks }) {
  const found = reasons(tasks);
  if (!found.length) return null;
  return html`<section class="stack" aria-label="Why tasks wait">${found.slice(0, 5).map(({ why, tasks: same }) => html`
    <div class="card task-reason" key=${why}>
      <p><strong>${plural(same.length, "task waits", "tasks wait")}:</strong> <${Text}>${why}</${Text}></p>
      <${Remedy} kind=${remedy(why)} tasks=${same} /></div>`)}</section>`;
}

function Remedy({ kind, tasks }) {
  if (!kind) return null;
  const lanes = [...new Set(tasks.map((each) => each.lane))];
  const labels = [...new Set(tasks.flatMap((each) => each.labels))];
  if (kind === "fit") {
    const needs = [`lane ${lanes.join(" or ")}`, ...labels.map((each) => `label ${each}`)].join(", ");
    return html`<p class="dim">A worker is needed that takes ${needs}. <a href=${href("workers")}>See what the workers take</a>.</p>`;
  }
  const command = startCommand(location.origin, lanes);
  return html`<p class="row"><span class="dim">Start a worker:</span> <code>${command}</code>
    <${Copy} text=${command} label="Copy the command" />
    <a href=${href("workers")}>How that works</a></p>`;
}

function Nothing({ isEnded, isNarrow }) {
  if (isNarrow) {
    const other = isEnded ? "Now" : "Ended";
    return html`<${Empty} title="No task fits this filter"><p>Take some of it away, or look at ${other}.</p></${Empty}>`;
  }
  if (isEnded) return html`<${Empty} title="No external task has ended yet"><p>What workers did is listed here.</p></${Empty}>`;
  return html`<${Empty} title="No call waits for a worker">
    <p>Calls of tools in lanes whose mode is <code>external</code> come here, and go to <a href=${href("workers")}>workers</a>.
      The settings say which: <code>queue.lane_handlers</code>.</p></${Empty}>`;
}

function Section({ title, tasks, ...more }) {
  if (!tasks.length) return null;
  return html`<section class="stack"><h2>${title} <span class="dim num">${tasks.length}</span></h2>
    <${Table} tasks=${tasks} label=${title} ...${more} /></section>`;
}

function Table({ tasks, label, ...more }) {
  const isWaiting = tasks[0]?.state === "pending";
  return html`<table class="table" aria-label=${label}><thead><tr><th scope="col">Task</th><th scope="col">Session</th>
    <th scope="col">State</th><th scope="col">${isWaiting ? "Why it waits" : "Worker"}</th>
    <th scope="col">${isLive(tasks[0] ?? {}) ? "For" : "Ended"}</th>
    <th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
    <tbody>${tasks.map((each) => html`<${TaskRow} key=${each.task_id} task=${each} ...${more} />`)}</tbody></table>`;
}

/** One task with everything that is known of it. */
function OneTask({ id }) {
  const load = useLoad(async (signal) => placed(await ask(`/tasks/${encodeURIComponent(id)}`, { signal }), serverNow()), [id]);
  const tell = useRefresh(load.reload, AGAIN_MS);
  const hear = (type, facts) => {
    if (type === "gap" || (type.startsWith("external_task_") && facts?.payload?.task_id === id)) tell();
  };
  useStream("/events", hear, { query: { replay: "none" }, onOpen: tell });
  const task = load.data;
  const [ending, setEnding] = useState(null);
  return html`<${Page} title=${task ? `Task ${task.tool}` : "Task"} class="tasks"
    actions=${html`<a class="button" href=${href("tasks")}>All tasks</a>`}>
    <${Loaded} load=${load}>${(found) => html`<div class="card stack">
      <div class="row spread"><div class="row"><${TaskState} task=${found} />
        <span class="dim">${isLive(found) ? html`for <${Since} ms=${found.created_ms} />` : html`<${Time} ms=${found.ended_ms} />`}</span>
        </div>
        <${TaskActions} task=${found} onDone=${load.reload} onEnd=${setEnding} /></div>
      <${TaskWho} task=${found} />
      <dl class="task-facts">
        <dt>Session</dt><dd><a href=${href("chat", found.session_key)}><${Text}>${found.session_key}</${Text}></a></dd>
        <dt>Run</dt><dd>${found.run_id ? html`<a href=${href("story", "run", found.run_id)}>${found.run_id}</a>` : "–"}</dd>
        <dt>Lane</dt><dd>${found.lane}</dd><dt>Effect</dt><dd>${found.effect}</dd><dt>Attempt</dt><dd>${found.attempt}</dd>
        <dt>Needs</dt><dd>${found.labels.length
          ? found.labels.map((each) => html`<span class="chip" key=${each}><${Text}>${each}</${Text}></span> `)
          : "nothing in particular"}</dd>
        <dt>Came</dt><dd><${Time} ms=${found.created_ms} /></dd>
        ${isLive(found) ? html`<dt>Time left</dt><dd><${Countdown} until=${found.until} /></dd>` : null}
        <dt>Task</dt><dd class="mono">${found.task_id} <${Copy} text=${found.task_id} label="Copy the id" /></dd>
      </dl>
      ${isLive(found) ? html`<h2>Arguments</h2><${Json} value=${found.arguments} />` : html`<${Outcome} task=${found} />`}
    </div>`}</${Loaded}>
    ${ending && task ? html`<${EndDialog} task=${task} onDone=${load.reload} onClose=${() => setEnding(null)} />` : null}
  </${Page}>`;
}

function Outcome({ task }) {
  const { words } = stateOf(task);
  return html`<h2>What came of it: ${words}</h2>
    ${task.error ? html`<div class="task-error"><${Text} block=${true}>${task.error}</${Text}></div>` : null}
    ${task.result === null || task.result === undefined ? null : html`<${Json} value=${task.result} />`}
    ${task.result_cut ? html`<p class="dim">This is the beginning; the whole is in the store.</p>` : null}`;
}
