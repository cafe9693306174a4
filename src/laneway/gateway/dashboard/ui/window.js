/** Which rows of a long list are to be seen. Pure. */

/** The rows `[from, to)` that are elements, for a scroll position; `spare` more on each side. */
export function rowsIn({ count, rowHeight, top, height, spare = 6 }) {
  if (count <= 0 || rowHeight <= 0) return { from: 0, to: 0 };
  const first = Math.min(count - 1, Math.max(0, Math.floor(top / rowHeight)));
  const shown = Math.ceil(Math.max(0, height) / rowHeight) + 1;
  return { from: Math.max(0, first - spare), to: Math.min(count, first + shown + spare) };
}

/** Where to scroll so that a row is whole; the position itself if it is already. */
export function scrollFor({ index, rowHeight, top, height }) {
  const above = index * rowHeight;
  if (above < top) return above;
  if (above + rowHeight > top + height) return Math.max(0, above + rowHeight - height);
  return top;
}

/** The row that a key leads to, or null. */
export function rowAfter(key, index, count, perPage = 10) {
  if (count <= 0) return null;
  const to = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: count - 1, PageDown: index + perPage, PageUp: index - perPage }[key];
  return to === undefined ? null : Math.min(count - 1, Math.max(0, to));
}
