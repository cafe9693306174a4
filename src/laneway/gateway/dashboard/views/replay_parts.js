/** Parts of a replay: what is said of the whole, one step in full, a fork, a comparison. */
import { ask, newKey, Refused } from "../core/api.js";
import { number, shown } from "../core/format.js";
import { go, href } from "../core/router.js";
import { Dialog } from "../ui/dialogs.js";
import { Loaded, useLoad } from "../ui/load.js";
import {
  Badge, Button, Clock, ErrorBox, Field, Form, html, Json, Loading, stateTone, Text, Time, toast, useMemo, useState,
} from "../ui/parts.js";
import { keyProblem } from "./sessions_model.js";
import { comparedWords, forkStart, forkWords, kindOf, partsOf, toneOf, verdictOf } from "./replay_model.js";

/** Whether the run would go the same way today, in words. */
export function Verdict({ load, recorded, isOver, onStep }) {
  if (load.error && !load.data) return html`<${Unknown} error=${load.error} retry=${load.reload} recorded=${recorded} />`;
  if (!load.data) return html`<section class="card"><${Loading} text="It is made again, without a model …" /></section>`;
  const { tone, title, text } = verdictOf(load.data, { recorded, isOver });
  return html`<section class="card replay-verdict replay-verdict-${tone}" aria-live="polite"
    aria-label="Whether it would go the same way today">
    <p class="replay-title">${title}</p>
    <p class="dim"><${Text}>${text}</${Text}></p>
    ${load.data.same ? null : html`<${Sides} left=${["Then", load.data.then]} right=${["Now", load.data.now]} />
      <div><${Button} onClick=${() => onStep(load.data.step)}>Go to step ${number(load.data.step)}</${Button}></div>`}
  </section>`;
}

/** The sessions that go on from this run, and from which step each. */
export function Forks({ forks, onStep }) {
  if (!forks.length) return null;
  return html`<section class="card" aria-labelledby="replay-forks"><h2 id="replay-forks">Forks of this run</h2>
    <ul class="story-related">${forks.map((each) => html`<li key=${each.session_key}>
      <a href=${href("chat", each.session_key)}>${shown(each.session_key)}</a>
      ${" "}<${Button} kind="quiet" onClick=${() => onStep(each.step)}>from step ${number(each.step)}</${Button}></li>`)}</ul>
  </section>`;
}

/** The session of the run cannot be asked: a sub-agent has ended, a session rests. The steps are there all the same. */
function Unknown({ error, retry, recorded }) {
  if (!(error instanceof Refused) || ![404, 409].includes(error.status)) return html`<${ErrorBox} error=${error} retry=${retry} />`;
  const told = [error.message, error.hint].filter(Boolean).join(": ");
  return html`<section class="card replay-verdict replay-verdict-off" aria-label="Whether it would go the same way today">
    <p class="replay-title">Whether it would go the same way today cannot be said now</p>
    <p class="dim"><${Text}>${told}</${Text}>${recorded ? "" : ". It was not recorded: its steps are told from checkpoints."}</p>
    <div><${Button} icon="refresh" onClick=${retry}>Try again</${Button}></div>
  </section>`;
}

function Sides({ left, right }) {
  return html`<div class="replay-sides">${[left, right].map(([name, value, more]) => html`<div key=${name} class="replay-side">
    <h3>${name}</h3>${more ? html`<p><${Text}>${more}</${Text}></p>` : null}
    ${value ? html`<${Json} value=${value} />` : more ? null : html`<p class="dim">nothing</p>`}</div>`)}</div>`;
}

/** One step in full. */
export function Details({ run, step, total, verdict, move, isFirst, isLast, onFork }) {
  const [whole, setWhole] = useState(null);
  const one = whole ?? step;
  const read = async () => setWhole(await ask(`/runs/${encodeURIComponent(run)}/steps/${step.number}`, { reads: "" }));
  const differs = verdict && !verdict.same && verdict.step === step.number;
  return html`<section class="card replay-details" aria-labelledby="replay-step">
    <div class="row spread">
      <div class="row"><${Button} icon="left" disabled=${isFirst} title="The step before (k)" onClick=${() => move(-1)}>Previous</${Button}>
        <${Button} icon="right" disabled=${isLast} title="The next step (j)" onClick=${() => move(1)}>Next</${Button}></div>
      <${Button} kind="primary" icon="steer" title="Go on live from here, in a new session (f)" onClick=${onFork}>Fork from here</${Button}>
    </div>
    <div aria-live="polite"><h2 id="replay-step">Step ${number(step.number)} <span class="dim">of ${number(total)}</span>
      ${" "}<${Badge} tone=${toneOf(step)}>${kindOf(step.op)}</${Badge}></h2>
      <p class="replay-told"><${Text}>${step.text}</${Text}></p></div>
    ${step.at_ms === null ? null : html`<p class="dim"><${Clock} ms=${step.at_ms} />, <${Time} ms=${step.at_ms} /></p>`}
    ${differs ? html`<div class="replay-differs"><p><strong>This is where it would go another way: ${shown(verdict.where)}.</strong></p>
      <${Sides} left=${["Then", verdict.then]} right=${["Now", verdict.now]} /></div>` : null}
    ${partsOf(one).map((part, at) => html`<${Part} key=${`${at} ${Boolean(whole)}`} part=${part} />`)}
    ${one.is_cut ? html`<div class="row"><${Button} onClick=${read}>Show the whole step</${Button}>
      <span class="dim">It is too long for a list; this is its beginning.</span></div>` : null}
  </section>`;
}

function Part({ part }) {
  if (part.facts) {
    return html`<dl class="replay-facts">${part.facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt>
      <dd><${Text}>${value}</${Text}></dd></div>`)}</dl>`;
  }
  return html`<div class="replay-part"><h3><${Text}>${part.name}</${Text}></h3><${Json} value=${part.text ?? part.value} /></div>`;
}

/** Go on live from a step, in a new session. */
export function ForkDialog({ run, step, onClose }) {
  const [prompt, setPrompt] = useState("");
  const [name, setName] = useState("");
  const [refusal, setRefusal] = useState(null);
  const key = useMemo(newKey, [prompt, name]); // the same wish that is sent twice is done once
  const wrong = name.trim() ? keyProblem(name) : "";
  const send = async () => {
    if (wrong) return;
    setRefusal(null);
    const body = { step: step.number, prompt: prompt.trim(), session_key: name.trim() || undefined };
    try {
      const made = await ask(`/runs/${encodeURIComponent(run)}/fork`, { body, key, reads: "" });
      onClose();
      toast(`A new session goes on from step ${number(made.step)}.`);
      go(href("chat", made.session_key));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setRefusal(error);
    }
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit();
  };
  return html`<${Dialog} title="Fork from step ${number(step.number)}" onClose=${onClose}>
    <${Form} onSubmit=${send} onKeyDown=${keys}>
      <p class="replay-told dim"><${Text}>${step.text}</${Text}></p>
      <p><${Text}>${forkStart(step)}</${Text}> From here it goes on live, with the model and the tools of today, in a
        session of its own. This run stays as it is.</p>
      ${refusal ? html`<${ErrorBox} error=${refusal} />` : null}
      <${Field} label="What it is told (optional)" hint="Needed where the run has nothing left to do, as after its answer.">
        <textarea rows="4" autofocus maxLength="1000000" value=${prompt}
          onInput=${(event) => setPrompt(event.target.value)}></textarea></${Field}>
      <${Field} label="Name of the new session (optional)" error=${wrong} hint="Else it gets one by itself.">
        <input type="text" autocomplete="off" maxLength="200" value=${name} onInput=${(event) => setName(event.target.value)} /></${Field}>
      <div class="dialog-foot"><${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" type="submit" icon="steer">Fork</${Button}></div>
    </${Form}>
  </${Dialog}>`;
}

/** Choose the run to compare with: one of the same session, or any other by its id. */
export function CompareDialog({ run, onClose, onChoose }) {
  const [id, setId] = useState("");
  const [isTried, setTried] = useState(false);
  const path = `/sessions/${encodeURIComponent(run.session_key)}/runs`;
  const load = useLoad((signal) => ask(path, { query: { newest: "true", limit: 20 }, signal, reads: run.workspace }), [run.run_id]);
  const send = () => {
    setTried(true);
    if (id.trim()) onChoose(id.trim());
  };
  return html`<${Dialog} title="Compare with another run" onClose=${onClose}>
    <${Form} onSubmit=${send}>
      <${Field} label="Run" error=${isTried && !id.trim() ? "Name a run, or choose one below." : ""}
        hint="The first step in which they differ is named. Times and ids do not count.">
        <input type="text" autofocus autocomplete="off" maxLength="400" placeholder="turn-…" value=${id}
          onInput=${(event) => setId(event.target.value)} /></${Field}>
      <div class="dialog-foot"><${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" type="submit">Compare</${Button}></div>
    </${Form}>
    <h3>Other runs of this session</h3>
    <${Loaded} load=${load}>${({ items }) => html`<${Choices} runs=${items.filter((each) => each.run_id !== run.run_id)}
      onChoose=${onChoose} />`}</${Loaded}>
  </${Dialog}>`;
}

function Choices({ runs, onChoose }) {
  if (!runs.length) return html`<p class="dim">There are none.</p>`;
  return html`<ul class="replay-choices">${runs.map((each) => html`<li key=${each.run_id}>
    <${Button} kind="quiet" onClick=${() => onChoose(each.run_id)}><span class="mono">${shown(each.run_id)}</span></${Button}>
    <${Badge} tone=${stateTone(each.state)}>${each.state.replaceAll("_", " ")}</${Badge}>
    <span class="dim"><${Time} ms=${each.began_ms} /></span>
    <span class="replay-choice dim"><${Text}>${(each.answer ?? each.reason ?? "").slice(0, 120)}</${Text}></span></li>`)}</ul>`;
}

/** Where two runs part. */
export function Compared({ run, other, onStep, onClose }) {
  const load = useLoad((signal) => ask(`/runs/${encodeURIComponent(run)}/diff`, { query: { other }, signal, reads: "" }), [run, other]);
  return html`<section class="card replay-compared" aria-live="polite" aria-label="Comparison">
    <div class="row spread"><p class="dim">Compared with run <a class="mono" href=${href("replay", other)}>${shown(other)}</a></p>
      <${Button} kind="quiet" icon="x" title="Close the comparison" onClick=${onClose} /></div>
    <${Loaded} load=${load}>${(found) => html`<${Parting} found=${found} onStep=${onStep} />`}</${Loaded}>
  </section>`;
}

function Parting({ found, onStep }) {
  const { tone, title } = comparedWords(found);
  const fork = forkWords(found);
  const lead = fork ? html`<p class="dim"><${Text}>${fork}</${Text}></p>` : null;
  if (found.same) return html`${lead}<p class="replay-title replay-title-${tone}">${title}</p>`;
  const { this: here, other: there } = found;
  return html`${lead}<p class="replay-title"><${Text}>${title}</${Text}></p>
    <${Sides} left=${["This run", here.value, here.text]} right=${["The other", there.value, there.text]} />
    <div class="row"><${Button} onClick=${() => onStep(here.step)}>Go to step ${number(here.step)}</${Button}>
      <a class="button" href=${href("replay", found.other_run_id, { step: there.step, other: found.run_id })}>
        Open the other there</a></div>`;
}
