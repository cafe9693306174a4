/** Reading server-sent events from text that comes in pieces. Pure. */

/**
 * A reader of events. `push(text)` takes the next piece, and calls `onEvent(type, data, id)` for each event that is whole.
 * An event without data (a sign of life, or where the stream begins) has the data "".
 */
export function eventReader(onEvent) {
  let rest = "";
  let type = "";
  let data = [];
  let id = null;
  let isHeard = false;
  const line = (text) => {
    if (text === "") {
      if (isHeard || id !== null) onEvent(type || "message", data.join("\n"), id);
      type = "";
      data = [];
      id = null;
      isHeard = false;
      return;
    }
    if (text.startsWith(":")) return;
    const colon = text.indexOf(":");
    const name = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(text[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "event") type = value;
    else if (name === "id" && !value.includes("\0")) id = value;
    else if (name === "data") {
      data.push(value);
      isHeard = true;
    }
  };
  return {
    push(text) {
      rest += text;
      let from = 0;
      for (;;) {
        const found = lineEnd(rest, from);
        if (!found) break;
        line(rest.slice(from, found.at));
        from = found.next;
      }
      if (from) rest = rest.slice(from);
    },
  };
}

function lineEnd(text, from) {
  for (let at = from; at < text.length; at += 1) {
    const sign = text.charCodeAt(at);
    if (sign === 10) return { at, next: at + 1 };
    if (sign === 13) {
      if (at + 1 === text.length) return null; // perhaps a line feed follows in the next piece
      return { at, next: text.charCodeAt(at + 1) === 10 ? at + 2 : at + 1 };
    }
  }
  return null;
}

/** How long to wait before the next try: doubles up to 15 s, and is never the same for two pages. `draw`: 0 to 1. */
export function backoff(tries, draw) {
  const full = Math.min(15000, 500 * 2 ** Math.min(tries, 10));
  return Math.round(full * (0.5 + draw / 2));
}
