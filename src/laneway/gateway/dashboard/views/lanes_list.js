/** Rows of different heights in the page itself: only those that are seen are elements. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../ui/parts.js";
import { offsetsOf, windowOf } from "./lanes_window.js";

/** `rows` with `id`; `heightOf(row)` in pixels; `render(row)`; the row with the id `active` is brought into view when it changes. */
export function Rows({ rows, heightOf, render, active, label }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 1200 });
  const offsets = offsetsOf(rows, heightOf);
  const total = offsets.at(-1);
  const { from, to } = windowOf(offsets, view.top, view.height);

  useLayoutEffect(() => {
    const measure = () => {
      const top = Math.max(0, -Math.round(box.current.getBoundingClientRect().top));
      const height = window.innerHeight;
      setView((before) => (Math.abs(before.top - top) < 40 && before.height === height ? before : { top, height }));
    };
    measure();
    addEventListener("scroll", measure, { passive: true, capture: true });
    addEventListener("resize", measure);
    return () => {
      removeEventListener("scroll", measure, { capture: true });
      removeEventListener("resize", measure);
    };
  }, []);

  useEffect(() => {
    const at = rows.findIndex((row) => row.id === active);
    if (at < 0) return;
    const edge = box.current.getBoundingClientRect().top;
    const top = edge + offsets[at];
    const bottom = edge + offsets[at + 1];
    const head = 60; // what sticks to the top of the page
    if (top < head) window.scrollBy({ top: top - head - 8 });
    else if (bottom > window.innerHeight) window.scrollBy({ top: bottom - window.innerHeight + 16 });
  }, [active]);

  return html`<div class="lane-rows" role="list" aria-label=${label} ref=${box} style=${{ height: `${total}px` }}>
    ${rows.slice(from, to).map((row, index) => html`<div class="lane-row lane-row-${row.type}" role="listitem" key=${row.id}
      aria-setsize=${rows.length} aria-posinset=${from + index + 1}
      style=${{ transform: `translateY(${offsets[from + index]}px)`, height: `${offsets[from + index + 1] - offsets[from + index]}px` }}>
      ${render(row)}</div>`)}
  </div>`;
}
