/** Keys of a view: single ones and sequences. They never act while somebody types, or while a dialog is open. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

const SEQUENCE_MS = 1200;
const FIELDS = "input, textarea, select, [contenteditable]:not([contenteditable=false])";

/** What can be pressed at this moment: `[{ scope, keys, text }]`; the help shows it. */
export const bindings = signal([]);

let stack = [];
let before = { key: "", at: 0 };

/**
 * Bind keys as long as a component is there: `{ "g l": fn, "/": { run: fn, text: "Search" } }`.
 * A function has the event; the one that was bound last wins. Only what has a text is listed by "?".
 */
export function useKeys(map, scope = "Here") {
  const latest = useRef(map);
  latest.current = map;
  const names = Object.keys(map).join(" ");
  useEffect(() => {
    const entry = { scope, map: () => latest.current };
    stack = [...stack, entry];
    list();
    return () => {
      stack = stack.filter((each) => each !== entry);
      list();
    };
  }, [names, scope]);
}

function list() {
  bindings.value = stack.flatMap(({ scope, map }) =>
    Object.entries(map())
      .filter(([, what]) => what?.text)
      .map(([keys, what]) => ({ scope, keys, text: what.text })),
  );
}

/** Whether a key belongs to what has the focus, and not to the page. */
export function isTyping(target) {
  return Boolean(target?.closest?.(FIELDS));
}

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const isPress = event.key === "Enter" || event.key === " ";
  if (isPress && event.target.closest?.("button, a, summary, [role=button]")) return;
  const sequence = event.timeStamp - before.at < SEQUENCE_MS ? `${before.key} ${event.key}` : "";
  before = { key: event.key, at: event.timeStamp };
  for (const wanted of [sequence, event.key]) {
    const entry = wanted && stack.findLast(({ map }) => map()[wanted]);
    if (!entry) continue;
    const what = entry.map()[wanted];
    before = { key: "", at: 0 };
    event.preventDefault();
    (what.run ?? what)(event);
    return;
  }
}

if (typeof document !== "undefined") document.addEventListener("keydown", onKey);
