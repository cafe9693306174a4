/** The guide: three steps that are really carried out: send a message, steer it while it runs, watch a lane fill. */
import { about, ask, newKey, place } from "../core/api.js";
import { plural } from "../core/format.js";
import { useStream } from "../core/live.js";
import { href } from "../core/router.js";
import { Badge, Button, html, Json, Page, Text, toast, useEffect, useRef, useState } from "../ui/parts.js";
import { fold, manyOf, NOTHING, progress, TEXTS, whyNoSteer } from "./guide_model.js";
import { Filling } from "./guide_parts.js";

const KEPT = "laneway.guide";

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT) || "null") ?? {};
  } catch {
    return {};
  }
}

function keep(value) {
  try {
    localStorage.setItem(KEPT, JSON.stringify(value));
  } catch {
    // then it is known as long as the page is open
  }
}

function fresh() {
  const course = { key: `guide-${newKey().slice(0, 8)}`, many: 0 };
  keep(course);
  return course;
}

function begun() {
  const course = kept();
  return course.key ? course : fresh();
}

/** The guide. What it does is in a session of its own; leaving and coming back goes on where it was. */
export default function Guide() {
  const [course, setCourse] = useState(begun);
  const [state, setState] = useState(NOTHING);
  const change = (next) => {
    keep(next);
    setCourse(next);
  };
  const hear = (type, facts, id) => setState((before) => fold(before, type, facts, id));
  useStream(`/sessions/${encodeURIComponent(course.key)}/events`, hear, { query: { replay: "all" } });
  const again = () => {
    setState(NOTHING);
    setCourse(fresh());
  };
  const workspaces = about.value?.workspaces ?? [];
  const here = workspaces.find((each) => each.name === place.value.workspace) ?? workspaces[0];
  const isScripted = here?.scripted ?? true;
  const texts = isScripted ? TEXTS.scripted : TEXTS.real;
  const { done, next } = progress(state, course.many > 0);
  const actions = html`<${Button} icon="refresh" onClick=${again}>Begin anew</${Button}>`;
  const lead = html`Three steps, on this server, in session <a href=${href("chat", course.key)}>${course.key}</a>.
    You may leave and come back.`;
  return html`<${Page} title="Guide" class="guide" actions=${actions} lead=${lead}>
    ${isScripted ? null : html`<p class="card guide-note">This workspace uses the model <b>${here.model}</b>: what you send here
      is sent to it, and costs what it costs. Each step shows its text before it is sent.</p>`}
    <ol class="guide-steps">
      <${Step} number=${1} title="Send a message" isDone=${done[0]} isNext=${next === 1}>
        <${First} course=${course} state=${state} text=${texts.first} isScripted=${isScripted} />
      </${Step}>
      <${Step} number=${2} title="Steer it while it runs" isDone=${done[1]} isNext=${next === 2}>
        <${Steer} course=${course} state=${state} text=${texts.steer} />
      </${Step}>
      <${Step} number=${3} title="Fill a lane" isDone=${done[2]} isNext=${next === 3}>
        <${Filling} course=${course} change=${change} text=${texts.many} countOf=${manyOf} />
      </${Step}>
    </ol>
    ${next === 4 ? html`<${Done} />` : null}
    <${Told} lines=${state.lines} answer=${state.answer} />
  </${Page}>`;
}

function Step({ number, title, isDone, isNext, children }) {
  const word = isDone ? html`<${Badge} tone="ok">done</${Badge}>` : isNext ? html`<${Badge} tone="run">now</${Badge}>` : null;
  return html`<li class="card stack guide-step ${isNext ? "guide-next" : ""}" aria-current=${isNext ? "step" : undefined}>
    <h2><span class="guide-number" aria-hidden="true">${number}</span> ${title} ${word}</h2>
    ${children}
  </li>`;
}

/** A function that sends a message once, however often it has to be tried. */
function useSend(key) {
  const used = useRef({});
  return async (body, what) => {
    used.current[what] = used.current[what] || newKey();
    const taken = await ask(`/sessions/${encodeURIComponent(key)}/messages`, { body, key: used.current[what] });
    used.current[what] = "";
    return taken;
  };
}

function First({ course, state, text, isScripted }) {
  const send = useSend(course.key);
  const isUnder = state.phase === "waiting" || state.phase === "running";
  return html`<p>A message goes into the queue of its session, and is on disk before you hear that it was taken.
      ${isScripted ? " The scripted model does what the lines say: it waits for ten seconds, twice." : ""}</p>
    <${Json} value=${text} />
    <div class="row"><${Button} kind=${state.phase === "unsent" ? "primary" : "plain"} icon="send" disabled=${isUnder}
      onClick=${() => send({ text }, "first")}>${state.phase === "unsent" ? "Send it" : "Send it again"}</${Button}>
      ${state.run ? html`<a href=${href("story", "run", state.run)}>The story of this run</a>` : null}</div>`;
}

const STEERING = {
  parked: ["wait", "It goes in at the next boundary of the run: after the call that runs now."],
  in: ["ok", "It went into the run, which goes on with it. Nothing was lost, nothing was begun anew."],
  late: ["warn", "The run ended before it could go in; it has a run of its own. Send the first message again to try once more."],
};

function Steer({ course, state, text }) {
  const send = useSend(course.key);
  const why = whyNoSteer(state);
  const [tone, words] = STEERING[state.steering] ?? ["off", ""];
  const steer = async () => {
    const taken = await send({ text, mode: "steer" }, "steer");
    if (taken.disposition !== "parked") toast("The run had ended already.", { tone: "warn" });
  };
  return html`<p>A message that comes while the agent is busy may wait, be merged, end what runs, or, as here, be put into the run.</p>
    <${Json} value=${text} />
    <div class="row"><${Button} kind=${why ? "plain" : "primary"} icon="steer" disabled=${Boolean(why)}
      onClick=${steer}>Steer it</${Button}>
      <span class="dim" role="status">${words ? html`<${Badge} tone=${tone}>${state.steering}</${Badge}> ${words}` : why}</span></div>`;
}

function Done() {
  return html`<section class="card stack guide-done"><h2>That was it</h2>
    <p>All of this is in <a href=${href("lanes")}>the lanes</a>, <a href=${href("sessions")}>the sessions</a> and the stories
      of your messages. Press <kbd>?</kbd> anywhere for the keys.</p></section>`;
}

function Told({ lines, answer }) {
  const end = useRef(null);
  useEffect(() => {
    if (end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [lines.length]);
  if (!lines.length) return null;
  return html`<section class="card stack" aria-labelledby="guide-told"><div class="row spread"><h2 id="guide-told">What happened</h2>
      <span class="dim">${plural(lines.length, "event")}</span></div>
    <ol class="guide-lines scroll" ref=${end} tabIndex=${0} aria-label="What happened">${lines.map((line) => html`<li key=${line.id}>
      <span class="guide-dot guide-dot-${line.tone}" aria-hidden="true"></span><${Text}>${line.text}</${Text}></li>`)}</ol>
    ${answer ? html`<div class="guide-answer"><span class="dim">The answer:</span> <${Text}>${answer}</${Text}></div>` : null}
  </section>`;
}
