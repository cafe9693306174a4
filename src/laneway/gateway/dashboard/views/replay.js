/** The replay of a run: its steps one after the other, whether it would go the same way today, and ways on from each. */
import { ask } from "../core/api.js";
import { number, shown } from "../core/format.js";
import { go, href } from "../core/router.js";
import { useKeys } from "../ui/keys.js";
import { useLoad } from "../ui/load.js";
import {
  Badge, Button, Empty, ErrorBox, html, Loading, Page, Text, useEffect, useLayoutEffect, useRef, useState,
} from "../ui/parts.js";
import { VirtualList } from "../ui/virtual.js";
import { scrollFor } from "../ui/window.js";
import { isOver, kindOf, listed, stepAfter, stepOf, toneOf } from "./replay_model.js";
import { CompareDialog, Compared, Details, ForkDialog, Forks, Verdict } from "./replay_parts.js";

const PAGE = 200;
const FAR = 1000; // of an address that leads into the middle of a long run
const ROW = 52;

/** The view of `replay/<run>`; `step`, `other` (a run to compare with) and `events` are in its query. */
export default function Replay({ params, query }) {
  const [run] = params;
  if (!run) {
    return html`<${Page} title="Replay" lead="A run, step by step.">
      <${Empty} title="Which run?">Open it from the story of a run.</${Empty}></${Page}>`;
  }
  return html`<${OneReplay} key=${run} run=${run} query=${query} />`; // another run begins anew, its dialogs too
}

/** The steps of a run, as many as were wanted so far: `{ run, items, more, error, loading, want(number), reload }`. */
function useSteps(run, first) {
  const path = `/runs/${encodeURIComponent(run)}/steps`;
  const [state, setState] = useState({ run: null, items: null, error: null, loading: true });
  const self = useRef({ items: [], next: "", turn: 0, isBusy: false });
  const read = async (upto) => {
    const { current } = self;
    if (current.isBusy || current.next === null || current.items.length >= upto) return;
    current.isBusy = true;
    const turn = current.turn;
    try {
      while (current.next !== null && current.items.length < upto) {
        const limit = upto - current.items.length > PAGE ? FAR : PAGE;
        const page = await ask(path, { query: { after: current.next, limit }, reads: "" });
        if (turn !== current.turn) return;
        current.items = [...current.items, ...page.items];
        current.next = page.next;
        setState({ run: page, items: current.items, error: null, loading: current.next !== null && current.items.length < upto });
      }
    } catch (error) {
      if (turn === current.turn) setState((before) => ({ ...before, error, loading: false }));
    } finally {
      if (turn === current.turn) current.isBusy = false;
    }
  };
  const reload = () => {
    const wanted = Math.max(self.current.items.length, first, 1);
    self.current = { items: [], next: "", turn: self.current.turn + 1, isBusy: false };
    return read(wanted);
  };
  useEffect(() => {
    reload();
    return () => { self.current.turn += 1; };
  }, [run]);
  return { ...state, more: self.current.next !== null, want: read, reload };
}

function OneReplay({ run, query }) {
  const steps = useSteps(run, stepOf(query.step));
  const verdict = useLoad((signal) => ask(`/runs/${encodeURIComponent(run)}/replay`, { signal, reads: "" }), [run]);
  const forks = useLoad((signal) => ask(`/runs/${encodeURIComponent(run)}/forks`, { signal, reads: "" }), [run]);
  const [open, setOpen] = useState(""); // a dialog
  const [forked, setForked] = useState(null); // the step that a fork is asked for: the address may lead elsewhere meanwhile
  const total = steps.run?.total ?? 0;
  const selected = stepOf(query.step, total || Infinity);
  const events = query.events !== "0";
  const rows = listed(steps.items ?? [], { events, selected });
  const step = rows.find((each) => each.number === selected);
  const change = (more) => {
    go(href("replay", run, { step: selected, other: query.other, events: query.events, ...more }), { replace: true });
  };
  const move = (by) => {
    const next = stepAfter(rows, selected, by);
    if (next !== selected) change({ step: next });
    if (by > 0 && rows.at(-1)?.number === next) steps.want((steps.items?.length ?? 0) + 1);
  };
  useEffect(() => { steps.want(selected); }, [selected]);
  useKeys({
    j: { run: () => move(1), text: "The next step" }, k: { run: () => move(-1), text: "The step before" },
    ArrowRight: () => move(1), ArrowLeft: () => move(-1),
    f: { run: () => step && setForked(step), text: "Fork from this step" },
    c: { run: () => setOpen("compare"), text: "Compare with another run" },
  }, "Replay");
  const session = steps.run?.session_key;
  const lead = html`${session ? html`Session <a href=${href("chat", session)}>${shown(session)}</a>, ` : null}
    <a class="mono" href=${href("story", "run", run)}>${shown(run)}</a>`;
  const actions = steps.run ? html`<a class="button" href=${href("story", "run", run)}>Story</a>
    <${Button} onClick=${() => setOpen("compare")}>Compare with …</${Button}>
    <${Button} kind="quiet" icon="refresh" title="Read again"
      onClick=${() => Promise.all([steps, verdict, forks].map((each) => each.reload()))} />` : null;
  return html`<${Page} title="Replay of a run" lead=${lead} class="replay" actions=${actions}>
    ${steps.error ? html`<${ErrorBox} error=${steps.error} retry=${steps.reload} />` : null}
    ${steps.items === null ? (steps.error ? null : html`<${Loading} />`) : html`
      <${Verdict} load=${verdict} recorded=${steps.run.recorded} isOver=${isOver(steps.run.state)}
        onStep=${(at) => change({ step: at })} />
      <${Forks} forks=${forks.data?.items ?? []} onStep=${(at) => change({ step: at })} />
      ${query.other ? html`<${Compared} key=${query.other} run=${run} other=${query.other} onStep=${(at) => change({ step: at })}
        onClose=${() => change({ other: "" })} />` : null}
      <div class="replay-columns">
        <${Steps} rows=${rows} steps=${steps} selected=${selected} events=${events} differs=${verdict.data?.step} run=${run}
          change=${change} />
        ${step ? html`<${Details} key=${step.number} run=${run} step=${step} total=${total} verdict=${verdict.data} move=${move}
          isFirst=${rows[0]?.number === selected} isLast=${!steps.more && rows.at(-1)?.number === selected}
          onFork=${() => setForked(step)} />` : html`<${Loading} />`}
      </div>`}
    ${forked ? html`<${ForkDialog} run=${run} step=${forked} onClose=${() => setForked(null)} />` : null}
    ${open === "compare" && steps.run ? html`<${CompareDialog} run=${steps.run} onClose=${() => setOpen("")}
      onChoose=${(other) => { setOpen(""); change({ other }); }} />` : null}
  </${Page}>`;
}

function Steps({ rows, steps, selected, events, differs, run, change }) {
  const box = useRef(null);
  const at = rows.findIndex((each) => each.number === selected);
  useLayoutEffect(() => {
    const list = box.current?.querySelector(".virtual");
    if (!list || at < 0) return;
    const { scrollTop: top, clientHeight: height } = list;
    const isSeen = scrollFor({ index: at, rowHeight: ROW, top, height }) === top;
    if (!isSeen) list.scrollTop = (at + 0.5) * ROW - height / 2; // with some around it
  }, [at]);
  const { total } = steps.run;
  const count = steps.items.length < total ? `${number(steps.items.length)} of ${number(total)}` : number(total);
  const pick = (each) => change({ step: each.number });
  return html`<section class="replay-list" aria-labelledby="replay-steps" ref=${box}>
    <div class="row spread"><h2 id="replay-steps">Steps <span class="dim num">${count}</span></h2>
      <label class="replay-events"><input type="checkbox" checked=${events}
        onChange=${(event) => change({ events: event.target.checked ? "" : "0" })} /> Events and pieces, too</label></div>
    <${VirtualList} items=${rows} rowHeight=${ROW} keyOf=${(each) => each.number} label="Steps"
      onReach=${() => steps.want(steps.items.length + 1)} onOpen=${pick}
      render=${(each) => html`<${Row} step=${each} run=${run} isSelected=${each.number === selected} differs=${each.number === differs}
        onPick=${pick} />`} />
  </section>`;
}

function Row({ step, run, isSelected, differs, onPick }) {
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in a tab of its own
    event.preventDefault();
    onPick(step);
  };
  return html`<a class="replay-row replay-${toneOf(step)}" href=${href("replay", run, { step: step.number })} tabIndex=${-1}
    aria-current=${isSelected ? "step" : undefined} onClick=${press}>
    <span class="replay-number num">${step.number}</span>
    <span class="replay-kind">${kindOf(step.op)}</span>
    <span class="replay-text"><${Text}>${step.text}</${Text}></span>
    ${differs ? html`<${Badge} tone="warn">differs</${Badge}>` : null}
  </a>`;
}
