/** Sessions: found in a moment, newest first, each with what it does and why something waits there. */
import { ask, generation } from "../core/api.js";
import { number, plural } from "../core/format.js";
import { useStream } from "../core/live.js";
import { go, href } from "../core/router.js";
import { useKeys } from "../ui/keys.js";
import { Button, Empty, ErrorBox, html, Loading, Page, useEffect, useMemo, useRef, useState } from "../ui/parts.js";
import { VirtualList } from "../ui/virtual.js";
import { pacer } from "./overview_model.js";
import { Session } from "./session.js";
import { FILTERS, fits, merged, PIECES } from "./sessions_model.js";
import { NewSession, Row } from "./sessions_parts.js";

const PAGE = 100;
const TYPED_MS = 200;
const AGAIN_MS = 15000; // what is told by no event: a turn that only thinks goes on

/** The list, or with a key the details of one session. */
export default function Sessions({ params, query }) {
  return params.length ? html`<${Session} key=${params[0]} sessionKey=${params[0]} />` : html`<${List} query=${query} />`;
}

function List({ query }) {
  const [words, setWords] = useState(query.q ?? "");
  const [state, setState] = useState(query.state ?? "");
  const [isNew, setNew] = useState(query.new === "1");
  const asked = useLater(words.trim(), TYPED_MS);
  const list = useSessions(asked, state);
  const box = useRef(null);
  const keys = { "/": { run: () => box.current?.focus(), text: "Search sessions" }, n: { run: () => setNew(true), text: "New session" } };
  useKeys(keys, "Sessions");
  useEffect(() => go(href("sessions", { q: asked, state }), { replace: true }), [asked, state]);
  const counts = list.counts;
  const lead = counts
    ? `${plural(counts.total, "session")}, ${number(counts.busy)} busy, ${number(counts.waiting)} with something waiting.`
    : "Conversations with your agents.";
  const actions = html`<${Button} kind="primary" icon="plus" onClick=${() => setNew(true)}>New session</${Button}>`;
  return html`<${Page} title="Sessions" class="sessions" lead=${lead} actions=${actions}>
    <div class="toolbar">
      <input ref=${box} type="search" class="sessions-search" placeholder="Search by name ( / )" aria-label="Search sessions by name"
        value=${words} maxLength="400" onInput=${(event) => setWords(event.target.value)} />
      <div class="row" role="group" aria-label="Show">
        ${FILTERS.map(([value, name]) => html`<${Button} kind=${value === state ? "primary" : "plain"}
          aria-pressed=${String(value === state)} onClick=${() => setState(value)}>${name}
          ${counts && value ? html` <span class="num">${number(counts[value])}</span>` : null}</${Button}>`)}
      </div>
    </div>
    <${Rows} list=${list} words=${asked} state=${state} />
    ${isNew ? html`<${NewSession} onClose=${() => setNew(false)} />` : null}
  </${Page}>`;
}

function Rows({ list, words, state }) {
  const problem = list.error ? html`<${ErrorBox} error=${list.error} retry=${list.reload} />` : null;
  if (list.items === null) return problem ?? html`<${Loading} />`;
  if (!list.items.length) return html`${problem}<${Nothing} words=${words} state=${state} />`;
  return html`${problem}
    <div class="sessions-list" onPointerEnter=${() => list.hold(true)} onPointerLeave=${() => list.hold(false)}>
      ${list.later ? html`<div class="sessions-later" role="status"><${Button} icon="up" onClick=${list.release}>
        Show ${plural(list.later, "newer session")}</${Button}></div>` : null}
      <${VirtualList} items=${list.items} rowHeight=${68} keyOf=${(each) => each.session_key} label="Sessions"
        onReach=${list.loadMore} onOpen=${(each) => go(href("chat", each.session_key))}
        render=${(each) => html`<${Row} item=${each} onDone=${list.told} />`} />
    </div>`;
}

function Nothing({ words, state }) {
  if (words) {
    return html`<${Empty} title="No session has this in its name">Look for something shorter, or begin a new session.</${Empty}>`;
  }
  if (state) {
    const what = { busy: "something runs in them", waiting: "something waits in them", needs: "they need an answer" }[state];
    return html`<${Empty} title="None at the moment">Sessions appear here as soon as ${what}.</${Empty}>`;
  }
  return html`<${Empty} title="No sessions yet">A session begins with its first message: press <kbd>n</kbd>, or
    <code>laneway send NAME "hello"</code>.</${Empty}>`;
}

/** What somebody types, once there is a pause. */
function useLater(value, ms) {
  const [later, setLater] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLater(value), ms);
    return () => clearTimeout(timer);
  }, [value]);
  return later;
}

const NONE = { items: null, later: [], next: null, counts: null, error: null };

/** The list, live: what has changed since the last time is read, never the whole of it. */
function useSessions(words, state) {
  const [list, setList] = useState(NONE);
  const made = useMemo(() => {
    const self = { list: NONE, newest: 0, turn: 0, isHeld: false, isMore: false, isOver: false };
    const set = (change) => {
      if (self.isOver) return;
      self.list = { ...self.list, ...change };
      setList(self.list);
    };
    const query = { order: "recent", q: words, state };
    const isShown = (item) => fits(item, { words, state });
    const read = (more) => ask("/sessions", { query: { ...query, limit: PAGE, ...more } });
    const attempt = async (run) => {
      const turn = (self.turn += 1);
      try {
        await run(() => turn === self.turn);
      } catch (error) {
        if (turn === self.turn) set({ error });
      }
    };
    const reload = () => attempt(async (isLatest) => {
      const page = await read({});
      if (!isLatest()) return;
      self.newest = page.newest;
      set({ items: page.items, later: [], next: page.next, counts: page, error: null });
    });
    /** What has changed: also sessions that do not fit the filter any more, so it is asked without one. */
    const refresh = () => (self.list.items === null ? reload() : attempt(async (isLatest) => {
      const page = await ask("/sessions", { query: { order: "recent", since: self.newest, limit: 1000 } });
      if (!isLatest()) return;
      if (page.next !== null) {
        self.turn += 1;
        await reload();
        return;
      }
      self.newest = page.newest;
      set({ ...merged(self.list, page.items, { hold: self.isHeld, isShown }), counts: page, error: null });
    }));
    const loadMore = async () => {
      const { next, items } = self.list;
      if (next === null || self.isMore) return;
      self.isMore = true;
      try {
        const page = await read({ after: next });
        if (self.list.next !== next) return;
        const known = new Set(self.list.items.map((each) => each.session_key));
        const older = page.items.filter((each) => !known.has(each.session_key));
        set({ items: [...self.list.items, ...older], next: page.next });
      } catch (error) {
        if (items === self.list.items) set({ error });
      } finally {
        self.isMore = false;
      }
    };
    const hold = (isHeld) => {
      self.isHeld = isHeld;
      if (!isHeld && self.list.items) set(merged(self.list, [], { isShown }));
    };
    return { self, reload, loadMore, hold, pace: pacer(refresh) };
  }, [words, state]);
  const hear = (type) => PIECES.has(type) || made.pace.told();
  const onOpen = (isAgain) => (isAgain ? made.reload() : made.pace.told());
  useStream("/events", hear, { query: { replay: "none" }, onOpen });
  useEffect(() => {
    made.reload();
  }, [made, generation.value]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || made.pace.told(), AGAIN_MS);
    return () => {
      clearInterval(timer);
      made.self.isOver = true;
      made.pace.stop();
    };
  }, [made]);
  const { reload, loadMore, hold } = made;
  return { ...list, later: list.later.length, reload, loadMore, hold, release: () => hold(false), told: made.pace.told };
}
