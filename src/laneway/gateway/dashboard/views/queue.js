/** What waits in a session: in order, with reasons, and with everything that one can do about it. */
import { ask, generation, newKey, Refused } from "../core/api.js";
import { number, plural } from "../core/format.js";
import { confirm } from "../ui/dialogs.js";
import { Button, Empty, ErrorBox, html, Loading, tell, toast, useEffect, useMemo, useRef, useState } from "../ui/parts.js";
import { pacer } from "./overview_model.js";
import { QueueList } from "./queue_list.js";
import {
  changed, covers, emptyQueue, hasGap, indexOf, modeName, moved, mover, refusedWords, rowsOf, sliceFor, withSlice, without,
} from "./queue_model.js";
import { Editor, QueueRow } from "./queue_row.js";
import { QueueSettings } from "./queue_settings.js";

const AGAIN_MS = 5000; // reasons say how long something has run: they grow old

/** The queue of a session. `version` grows when something has happened in it. */
export function QueuePanel({ sessionKey, version = 0 }) {
  const queue = useQueue(sessionKey, version);
  const [editing, setEditing] = useState(null); // { id, draft: { text }, note }
  const act = useMemo(() => actions(sessionKey, queue, setEditing), [sessionKey, queue.change]);
  const rows = useMemo(() => rowsOf(queue.now), [queue.now]);
  const total = queue.now.total;
  const isHere = editing !== null && indexOf(queue.now, editing.id) >= 0;
  const save = async (text) => {
    const note = await act.save(editing, text);
    setEditing(note ? { ...editing, note } : null);
  };
  const cancel = () => setEditing(null);
  const render = (row, _, isNarrow) => editing?.id === row.message_id
    ? html`<${Editor} key="editor" draft=${editing.draft} note=${editing.note} onSave=${save} onCancel=${cancel} />`
    : html`<${QueueRow} row=${row} isNarrow=${isNarrow} act=${act} />`;
  return html`<section class="card queue" aria-labelledby="queue-title">
    <div class="row spread">
      <h2 id="queue-title" tabIndex=${-1}>Waiting ${total === null ? "" : html`<span class="dim num">${number(total)}</span>`}</h2>
      <div class="toolbar">
        <${QueueSettings} sessionKey=${sessionKey} version=${queue.settled} />
        ${total ? html`<${Button} kind="danger" icon="trash" onClick=${() => act.clear(total)}>Clear all</${Button}>` : null}
      </div>
    </div>
    ${editing !== null && !isHere
      ? html`<${Leftover} editing=${editing} sessionKey=${sessionKey} onDone=${cancel} onSave=${save} />`
      : null}
    <${Rows} queue=${queue} rows=${rows} render=${render} act=${act} tallId=${isHere ? editing.id : null} />
  </section>`;
}

function Rows({ queue, rows, render, act, tallId }) {
  const { error, now } = queue;
  const problem = error ? html`<${ErrorBox} error=${error} retry=${queue.read} />` : null;
  if (now.total === null) return problem ?? html`<${Loading} />`;
  if (!now.total) {
    return html`${problem}<${Empty} title="Nothing waits">A message that comes while the session is busy waits here.</${Empty}>`;
  }
  const onKey = (key, row) => {
    const run = { Enter: act.edit, Delete: act.withdraw, h: row.disposition === "held" ? act.release : act.hold, s: act.steer }[key];
    if (!run) return false;
    Promise.resolve(run(row)).catch(tell);
    return true;
  };
  return html`${problem}
    <${QueueList} rows=${rows} render=${render} label="Waiting messages" tallId=${tallId} onRange=${queue.onRange}
      onMove=${act.move} onKey=${onKey} />
    <p class="dim queue-hint queue-keys">Drag by ⠿, or <kbd>Alt</kbd>+<kbd>↑</kbd><kbd>↓</kbd>; <kbd>Enter</kbd> edits, <kbd>h</kbd>${" "}
      holds, <kbd>s</kbd> steers, <kbd>Del</kbd> withdraws.</p>`;
}

/** Somebody is still typing, and the message is not in the list any more: what was typed is not lost. */
function Leftover({ editing, sessionKey, onDone, onSave }) {
  const key = useMemo(newKey, [editing.id]);
  const send = async (text) => {
    await ask(`/sessions/${encodeURIComponent(sessionKey)}/messages`, { body: { text }, key });
    toast("Sent as a new message.");
    onDone();
  };
  const note = editing.note || "This message is not waiting here any more.";
  return html`<div class="queue-leftover">
    <${Editor} key=${editing.id} draft=${editing.draft} note=${note} onCancel=${onDone} onSave=${editing.note ? send : onSave} />
    ${editing.note ? html`<p class="dim">Save sends it as a new message.</p>` : null}
  </div>`;
}

function useQueue(sessionKey, version) {
  const [now, setNow] = useState(emptyQueue);
  const [error, setError] = useState(null);
  const [settled, setSettled] = useState(0);
  const self = useRef({});
  const made = useMemo(() => {
    const state = { range: [0, 30], turn: 0, isStale: true, isOver: false, queue: emptyQueue(), abort: null };
    const set = (queue) => {
      state.queue = queue;
      setNow(queue);
    };
    const path = `/sessions/${encodeURIComponent(sessionKey)}/pending`;
    const read = async () => {
      if (state.moves.isBusy || state.isOver) return; // it is read when the moves are done
      const turn = (state.turn += 1);
      const fresh = state.isStale;
      state.isStale = false;
      state.abort?.abort();
      state.abort = new AbortController();
      const { after, limit } = sliceFor(...state.range, state.queue.total ?? Infinity);
      try {
        const page = await ask(path, { query: { after: after || "", limit }, signal: state.abort.signal });
        if (turn !== state.turn || state.moves.isBusy) return;
        if (!covers({ after, limit }, state.range, page.total)) { // somebody has scrolled away meanwhile
          state.isStale = state.isStale || fresh;
          await read();
          return;
        }
        set(withSlice(state.queue, page, { fresh }));
        setError(null);
      } catch (problem) {
        if (turn !== state.turn || state.isOver) return;
        state.isStale = state.isStale || fresh;
        if (problem instanceof Refused && problem.status === 404) set({ total: 0, slots: [] }); // nobody has sent anything yet
        else setError(problem);
      }
    };
    const again = () => {
      state.isStale = true;
      return read();
    };
    const send = async (id, position) => {
      try {
        await ask(`/messages/${encodeURIComponent(id)}/move`, { body: { position } });
      } catch (problem) {
        if (refusedWords(problem)) toast(refusedWords(problem), { tone: "warn" });
        else tell(problem);
      }
    };
    state.moves = mover(send, again);
    return { state, set, read, again, pace: pacer(again) };
  }, [sessionKey]);
  self.current = made;
  useEffect(() => () => {
    made.state.isOver = true;
    made.state.abort?.abort();
    made.pace.stop();
  }, [made]);
  useEffect(() => made.pace.told(), [made, version, generation.value]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || !made.state.queue.total || made.pace.told(), AGAIN_MS);
    return () => clearInterval(timer);
  }, [made]);
  const onRange = (from, to) => {
    made.state.range = [from, to];
    if (hasGap(made.state.queue, from, to)) made.read();
  };
  const change = useMemo(() => ({
    move(id, position) {
      made.set(moved(made.state.queue, id, position));
      made.state.moves.wish(id, position);
    },
    show: (fn) => made.set(fn(made.state.queue)),
    again: made.again,
    settle: () => setSettled((count) => count + 1),
    now: () => made.state.queue,
  }), [made]);
  return { now, error, read: made.again, onRange, change, settled };
}

function actions(sessionKey, { change }, setEditing) {
  const of = (row) => `/messages/${encodeURIComponent(row.message_id)}`;
  /** Make a change; whatever comes of it, the list is right afterwards. */
  const make = async (run) => {
    try {
      return await run();
    } catch (error) {
      if (!refusedWords(error)) throw error;
      toast(refusedWords(error), { tone: "warn", hint: error.hint });
      return null;
    } finally {
      await change.again();
    }
  };
  return {
    move: change.move,
    shift: (row, step) => change.move(row.message_id, row.position + step),
    edit: (row) => setEditing({ id: row.message_id, draft: { text: row.text }, note: "" }),
    hold: (row) => make(() => ask(`${of(row)}/hold`, { method: "POST" })),
    release: (row) => make(() => ask(`${of(row)}/release`, { method: "POST" })),
    steer: (row) => make(() => ask(`${of(row)}/steer`, { method: "POST" })),
    sendAs: (row, mode) => make(async () => {
      await ask(of(row), { method: "PATCH", body: { mode } });
      toast(`Sent as ${modeName(mode).toLowerCase()}.`);
    }).catch(tell),
    withdraw: (row) => make(async () => {
      await ask(of(row), { method: "DELETE" });
      change.show((queue) => without(queue, row.message_id));
      const send = () => ask(`${of(row)}/retry`, { method: "POST" }).then(change.again).catch(tell);
      toast("Withdrawn.", { action: { text: "Send again", run: send } });
    }),
    async clear(total) {
      const text = "They are taken back and stay in the history. What runs goes on.";
      if (!(await confirm({ title: `Take back ${plural(total, "message")}?`, text, yes: "Clear all", danger: true }))) return;
      await make(async () => {
        const { withdrawn } = await ask(`/sessions/${encodeURIComponent(sessionKey)}/pending`, { method: "DELETE" });
        toast(`${plural(withdrawn, "message")} taken back.`);
      });
    },
    /** Give a message another text; the answer says why not. */
    async save(editing, text) {
      try {
        await ask(`/messages/${encodeURIComponent(editing.id)}`, { method: "PATCH", body: { text } });
        change.show((queue) => changed(queue, editing.id, { text }));
        return "";
      } catch (error) {
        if (!refusedWords(error)) throw error;
        return refusedWords(error);
      } finally {
        await change.again();
      }
    },
  };
}
