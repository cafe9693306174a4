/** Which rows of different heights are to be seen. Pure. */

/** Where each row begins, and at the end where the last one ends. */
export function offsetsOf(rows, heightOf) {
  const offsets = new Array(rows.length + 1);
  let at = 0;
  for (let index = 0; index < rows.length; index += 1) {
    offsets[index] = at;
    at += heightOf(rows[index]);
  }
  offsets[rows.length] = at;
  return offsets;
}

/** The rows `[from, to)` between `top` and `top + height`, and some more on both sides. */
export function windowOf(offsets, top, height, spare = 400) {
  const count = offsets.length - 1;
  const from = Math.max(0, firstAfter(offsets, top - spare) - 1);
  const to = Math.min(count, firstAfter(offsets, top + height + spare));
  return { from: Math.min(from, count), to };
}

function firstAfter(offsets, at) {
  let low = 0;
  let high = offsets.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (offsets[middle] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}
