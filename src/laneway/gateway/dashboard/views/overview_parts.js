/** What needs somebody, each with the button that helps. */
import { ask, newKey } from "../core/api.js";
import { href } from "../core/router.js";
import { Badge, Button, Countdown, html, Json, Text, Time, toast, useRef } from "../ui/parts.js";
import { prompt } from "../ui/dialogs.js";
import { capital, countOf, needs } from "./overview_model.js";

const SEEN_MAX = 600; // longer arguments are folded: who approves has to see everything

/** Everything that needs somebody, by kind; a calm line if there is nothing. */
export function Needs({ attention, approvals, reload }) {
  const found = needs(attention);
  return html`<section class="card stack overview-needs" aria-labelledby="overview-needs">
    <h2 id="overview-needs">Needs you</h2>
    ${found.length ? null : html`<p class="overview-calm"><${Badge} tone="ok">all well</${Badge}> Nothing needs you at this moment.</p>`}
    ${found.map((kind) => html`<div class="stack overview-kind" key=${kind.name} data-kind=${kind.name}>
      <div class="row spread">
        <h3><${Badge} tone=${kind.tone}>${countOf(kind)}</${Badge}> ${kind.title}</h3>
        <a href=${href(kind.route)}>${kind.count > kind.items.length ? `All ${countOf(kind)}` : "Open the view"}</a>
      </div>
      <ul class="overview-list">${kind.items.map((care) => html`<${Care} key=${care.id} kind=${kind.name} care=${care} reload=${reload}
        approval=${kind.name === "approvals" ? approvals.find((each) => each.approval_id === care.id) : null} />`)}</ul>
    </div>`)}
  </section>`;
}

function Care({ kind, care, approval, reload }) {
  const Acts = ACTS[kind];
  return html`<li class="overview-item">
    <div class="overview-main">
      <span class="overview-words"><span class="overview-name"><${Text}>${care.title}</${Text}></span>
        ${care.session_key ? html` <span class="dim">in <a href=${href("chat", care.session_key)}>
          <${Text}>${care.session_key}</${Text}></a></span>` : null}</span>
      ${care.why ? html`<span class="dim"><${Text}>${capital(care.why)}</${Text}></span>` : null}
      ${approval ? html`<${Json} value=${approval.arguments} />` : null}
    </div>
    <div class="overview-side dim">
      ${care.since_ms ? html`<${Time} ms=${care.since_ms} />` : null}
      ${care.until_ms ? html`<span>ends in <${Countdown} until=${care.until_ms} /></span>` : null}
    </div>
    <div class="row overview-acts"><${Acts} care=${care} approval=${approval} reload=${reload} /></div>
  </li>`;
}

function ApprovalActs({ care, approval, reload }) {
  const answer = async (body) => {
    await ask(`/approvals/${encodeURIComponent(care.id)}`, { body });
    toast(body.approve ? "Approved: the run goes on." : "Denied: the model is told.");
    reload();
  };
  const deny = async () => {
    const reason = await prompt({ title: "Deny this call", label: "Reason, told to the model", yes: "Deny" });
    if (reason !== null) await answer({ approve: false, reason });
  };
  const isWhole = approval && JSON.stringify(approval.arguments, null, 2).length <= SEEN_MAX;
  if (!isWhole) return html`<a class="button" href=${href("approvals")}>Look at it</a>`;
  const approve = () => answer({ approve: true, args: approval.arguments });
  return html`<${Button} kind="primary" icon="check" onClick=${approve}>Approve</${Button}>
    <${Button} icon="x" onClick=${deny}>Deny</${Button}>`;
}

function LedgerActs({ care }) {
  return html`<a class="button" href=${href("ledger", { session: care.session_key, state: "unknown" })}>Settle</a>
    ${care.run_id ? html`<a class="button button-quiet" href=${href("story", "run", care.run_id)}>Story</a>` : null}`;
}

/** A key that stays the same until what it was for has been done: a lost answer does not do it twice. */
function useKey() {
  const key = useRef("");
  return async (doIt) => {
    key.current = key.current || newKey();
    const answer = await doIt(key.current);
    key.current = "";
    return answer;
  };
}

function RunActs({ care, reload }) {
  const once = useKey();
  const resume = async () => {
    await once((key) => ask(`/runs/${encodeURIComponent(care.id)}/resume`, { method: "POST", key }));
    toast("It goes on in a run of its own.");
    reload();
  };
  return html`<${Button} icon="play" onClick=${resume}>Go on</${Button}>
    <a class="button button-quiet" href=${href("story", "run", care.id)}>Story</a>`;
}

function LetterActs({ care, reload }) {
  const once = useKey();
  const retry = async () => {
    await once((key) => ask(`/dead-letters/${encodeURIComponent(care.id)}/retry`, { method: "POST", key }));
    toast("It was sent again.");
    reload();
  };
  return html`<${Button} icon="send" onClick=${retry}>Send again</${Button}>
    <a class="button button-quiet" href=${href("letters")}>Look at it</a>`;
}

function TaskActs() {
  return html`<a class="button" href=${href("workers")}>Start a worker</a>
    <a class="button button-quiet" href=${href("tasks")}>Look at it</a>`;
}

function LaneActs({ care, reload }) {
  const resume = async () => {
    await ask(`/lanes/${encodeURIComponent(care.id)}`, { method: "PATCH", body: { paused: false }, reads: "" });
    toast(`Lane ${care.id} goes on.`);
    reload();
  };
  return html`<${Button} icon="play" onClick=${resume}>Resume</${Button}>`;
}

function LimitActs({ care, reload }) {
  const open = async () => {
    await ask(`/limits/${encodeURIComponent(care.id)}/open`, { method: "POST" });
    toast(`${care.id} is open.`);
    reload();
  };
  return html`<${Button} icon="play" onClick=${open}>Open now</${Button}>`;
}

const ACTS = {
  approvals: ApprovalActs,
  ledger: LedgerActs,
  runs: RunActs,
  dead_letters: LetterActs,
  tasks: TaskActs,
  lanes: LaneActs,
  limits: LimitActs,
};
