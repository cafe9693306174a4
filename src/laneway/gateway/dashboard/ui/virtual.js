/** A list of any length: only the rows that are seen are elements. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "./parts.js";
import { rowAfter, rowsIn, scrollFor } from "./window.js";

/**
 * `items` in rows of `rowHeight` pixels; `render(item, index)`; `keyOf(item)` keeps an element with its item.
 * Arrows, Home and End move the focus from row to row; `onReach` is called near the end; `onOpen(item)` on Enter.
 */
export function VirtualList({ items, rowHeight, keyOf, render, label, onReach, onOpen, class: name = "" }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(null); // the key of the row that has, or gets, the focus
  const goal = useRef(null);
  const at = active === null ? -1 : items.findIndex((each) => keyOf(each) === active);
  const { from, to } = rowsIn({ count: items.length, rowHeight, ...view });

  useLayoutEffect(() => {
    const node = box.current;
    const measure = () => setView((before) => {
      const next = { top: node.scrollTop, height: node.clientHeight };
      return before.top === next.top && before.height === next.height ? before : next;
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

  useEffect(() => {
    if (onReach && to >= items.length - 5) onReach();
  }, [to, items.length]);

  useLayoutEffect(() => {
    if (goal.current === null) return;
    const row = box.current.querySelector(`[data-index="${goal.current}"]`);
    if (!row) return;
    goal.current = null;
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" }); // the list itself may be half out of the window
  });

  const keys = (event) => {
    const row = event.target.closest("[data-index]");
    if (!row || event.target !== row || event.altKey || event.ctrlKey || event.metaKey) return;
    const index = Number(row.dataset.index);
    if (event.key === "Enter" && onOpen) {
      onOpen(items[index]);
      return;
    }
    const next = rowAfter(event.key, index, items.length, Math.max(1, Math.floor(view.height / rowHeight) - 1));
    if (next === null) return;
    event.preventDefault();
    goal.current = next;
    setActive(keyOf(items[next]));
    box.current.scrollTop = scrollFor({ index: next, rowHeight, top: box.current.scrollTop, height: view.height });
    setView({ top: box.current.scrollTop, height: view.height });
  };

  const indexes = [];
  for (let index = from; index < to; index += 1) indexes.push(index);
  if (at >= 0 && (at < from || at >= to)) indexes.push(at); // the row with the focus stays, wherever one scrolls
  const reached = at >= 0 ? at : 0;
  return html`<div class="virtual scroll ${name}" ref=${box} onKeyDown=${keys}>
    <div class="virtual-rows" role="list" aria-label=${label} style=${{ height: `${items.length * rowHeight}px` }}>
      ${indexes.map((index) => {
        const item = items[index];
        const key = keyOf(item);
        return html`<div class="virtual-row" role="listitem" key=${key} data-index=${index}
          tabIndex=${index === reached || (at < 0 && index === from) ? 0 : -1} aria-setsize=${items.length} aria-posinset=${index + 1}
          onFocus=${() => { if (active !== key) setActive(key); }}
          style=${{ height: `${rowHeight}px`, transform: `translateY(${index * rowHeight}px)` }}>${render(item, index)}</div>`;
      })}
    </div>
  </div>`;
}
