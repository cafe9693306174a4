/** The rows of a queue: any number of them, moved by hand or by keys; the focus stays with its message whatever happens. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../ui/parts.js";
import { rowAfter, rowsIn, scrollFor } from "../ui/window.js";

const WIDE_ROW = 60;
const NARROW_ROW = 140; // the reason has up to three lines there
const NARROW = 560;
const EDGE = 36;
const SPARE = 120;
const FIELDS = "input, textarea, select";

/**
 * `rows` have `message_id`; `render(row, index, isNarrow)`; `tallId`: the row that is as high as it needs to be.
 * `onRange(from, to)`: these are seen; `onMove(id, position)`; `onKey(key, row)` returns whether the key meant something.
 */
export function QueueList({ rows, render, label, tallId, onRange, onMove, onKey }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 480, isNarrow: false });
  const [active, setActive] = useState(null);
  const focus = useRef({ id: null, element: null, index: 0, goal: null, isRendering: false });
  focus.current.isRendering = true;
  const rowHeight = view.isNarrow ? NARROW_ROW : WIDE_ROW;
  const { from, to } = rowsIn({ count: rows.length, rowHeight, ...view });
  const at = active === null ? -1 : rows.findIndex((each) => each.message_id === active);
  const { drop, begin } = useDrag(box, rowHeight, rows.length, onMove);

  useLayoutEffect(() => {
    const node = box.current;
    const measure = () => setView((before) => {
      const next = { top: node.scrollTop, height: node.clientHeight, isNarrow: node.clientWidth < NARROW };
      return Object.keys(next).every((name) => next[name] === before[name]) ? before : next;
    });
    measure();
    const watcher = new ResizeObserver(measure);
    watcher.observe(node);
    node.addEventListener("scroll", measure, { passive: true });
    return () => {
      watcher.disconnect();
      node.removeEventListener("scroll", measure);
    };
  }, []);

  useEffect(() => onRange(from, to), [from, to, rows]);

  useLayoutEffect(() => {
    focus.current.isRendering = false;
    keepFocus(box.current, rows, focus.current, { rowHeight, setActive });
  });

  const keys = (event) => {
    const node = event.target.closest("[data-id]");
    const index = node ? rows.findIndex((each) => each.message_id === node.dataset.id) : -1;
    if (index < 0 || event.target.closest(FIELDS) || event.ctrlKey || event.metaKey) return;
    const row = rows[index];
    if (event.altKey) {
      const target = rowAfter(event.key, index, rows.length);
      if (target === null || row.isUnread) return;
      event.preventDefault();
      focus.current.goal = row.message_id;
      if (target !== index) onMove(row.message_id, target + 1);
      return;
    }
    if (event.target !== node) return; // a button inside has its own keys
    const next = rowAfter(event.key, index, rows.length, Math.max(1, Math.floor(view.height / rowHeight) - 1));
    if (next !== null) {
      focus.current.goal = rows[next].message_id;
      setActive(rows[next].message_id);
      event.preventDefault();
    } else if (!row.isUnread && onKey(event.key, row)) event.preventDefault();
  };
  const focusIn = (event) => {
    const node = event.target.closest("[data-id]");
    if (!node) return;
    Object.assign(focus.current, { id: node.dataset.id, element: event.target });
    setActive(node.dataset.id);
  };
  const focusOut = (event) => {
    // While rows are being put in order the browser takes the focus away by itself: that is no wish of anybody.
    if (focus.current.isRendering || !box.current || box.current.contains(event.relatedTarget) || !document.hasFocus()) return;
    focus.current.id = null;
  };

  const indexes = [];
  for (let index = from; index < to; index += 1) indexes.push(index);
  const tall = tallId === null ? -1 : rows.findIndex((each) => each.message_id === tallId);
  for (const extra of new Set([at, tall])) {
    if (extra >= 0 && (extra < from || extra >= to)) indexes.push(extra); // where somebody types or stands is never taken away
  }
  const reached = at >= 0 ? at : from;
  const height = rows.length * rowHeight + (tall >= 0 && tall >= rows.length - 3 ? SPARE : 0); // an editor at the end needs room
  return html`<div class="queue-list scroll" ref=${box} onKeyDown=${keys} onFocusIn=${focusIn} onFocusOut=${focusOut}
    onPointerDown=${begin}>
    <div class="queue-rows" role="list" aria-label=${label} style=${{ height: `${height}px` }}>
      ${indexes.map((index) => {
        const row = rows[index];
        const id = row.message_id;
        const name = `queue-row${id === tallId ? " queue-tall" : ""}${drop?.id === id ? " queue-dragged" : ""}`;
        return html`<div class=${name} role="listitem" key=${id} data-id=${id} tabIndex=${index === reached ? 0 : -1}
          aria-setsize=${rows.length} aria-posinset=${index + 1}
          style=${{ height: id === tallId ? "auto" : `${rowHeight}px`, transform: `translateY(${index * rowHeight}px)` }}>
          ${render(row, index, view.isNarrow)}</div>`;
      })}
      ${drop ? html`<div class="queue-drop" aria-hidden="true"
        style=${{ transform: `translateY(${lineOf(drop) * rowHeight}px)` }}></div>` : null}
    </div>
  </div>`;
}

const lineOf = ({ from, to }) => (to > from ? to + 1 : to);

/** After rows were put in order: the focus is where it was, or at the row that took the place of one that is gone. */
function keepFocus(box, rows, focus, { rowHeight, setActive }) {
  const wanted = focus.goal ?? focus.id;
  if (wanted === null) return;
  const index = rows.findIndex((each) => each.message_id === wanted);
  if (index < 0) {
    const next = rows[Math.min(focus.index, rows.length - 1)];
    Object.assign(focus, { id: next?.message_id ?? null, element: null, goal: next?.message_id ?? null });
    if (next) setActive(next.message_id);
    else box.closest("section")?.querySelector("h2")?.focus();
    return;
  }
  focus.index = index;
  const row = box.querySelector(`[data-id="${CSS.escape(wanted)}"]`);
  if (!row) {
    setActive(wanted); // it is far away: it becomes an element, and then gets the focus
    return;
  }
  if (focus.goal !== null) {
    box.scrollTop = scrollFor({ index, rowHeight, top: box.scrollTop, height: box.clientHeight });
    focus.goal = null;
  }
  if (row.contains(document.activeElement)) return;
  (row.contains(focus.element) ? focus.element : row).focus({ preventScroll: true });
}

/** Rows are dragged by their handle, with a mouse, a pen or a finger; Escape lets go. */
function useDrag(box, rowHeight, count, onMove) {
  const [drop, setDrop] = useState(null);
  const latest = useRef({});
  latest.current = { rowHeight, count, onMove };
  const end = useRef(null);
  useEffect(() => () => end.current?.(), []);
  const begin = (event) => {
    const row = event.target.closest("[data-handle]")?.closest("[data-id]");
    if (!row || event.button !== 0) return;
    event.preventDefault();
    const id = row.dataset.id;
    const indexAt = (y) => {
      const { rowHeight: height, count: rows } = latest.current;
      const index = Math.floor((y - box.current.getBoundingClientRect().top + box.current.scrollTop) / height);
      return Math.min(rows - 1, Math.max(0, index));
    };
    const from = indexAt(event.clientY);
    let now = null;
    const move = (each) => {
      const frame = box.current.getBoundingClientRect();
      if (each.clientY < frame.top + EDGE) box.current.scrollTop -= latest.current.rowHeight / 4;
      else if (each.clientY > frame.bottom - EDGE) box.current.scrollTop += latest.current.rowHeight / 4;
      now = { id, from, to: indexAt(each.clientY) };
      setDrop(now);
    };
    const up = () => {
      finish();
      if (now && now.to !== now.from) latest.current.onMove(id, now.to + 1);
    };
    const key = (each) => each.key === "Escape" && finish();
    const finish = () => {
      end.current = null;
      setDrop(null);
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
      removeEventListener("pointercancel", finish);
      removeEventListener("keydown", key);
    };
    end.current = finish;
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
    addEventListener("pointercancel", finish);
    addEventListener("keydown", key);
  };
  return { drop, begin };
}
