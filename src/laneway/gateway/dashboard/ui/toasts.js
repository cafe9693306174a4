/** Short notes at the edge of the page: what was done, or why it was not. */
import { h } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { signal } from "@preact/signals";
import { shown } from "../core/format.js";
import { Icon } from "./icons.js";

const SHOWN_MS = { ok: 5000, bad: 12000 };
const MAX = 4;
let last = 0;
const toasts = signal([]);

/** Say something for some seconds. `tone`: "ok", "warn" or "bad"; `action`: `{ text, run }`; `hint`: a second line. */
export function toast(text, { tone = "ok", action = null, hint = "" } = {}) {
  const id = (last += 1);
  const same = toasts.value.filter((each) => each.text !== text || each.hint !== hint);
  toasts.value = [...same.slice(1 - MAX), { id, text, tone, action, hint }];
  setTimeout(() => dismiss(id), SHOWN_MS[tone] ?? SHOWN_MS.bad);
}

/** Say what went wrong. Whoever was not waiting any more is told nothing. */
export function tell(error) {
  if (error?.name === "AbortError") return;
  const isOurs = error?.name === "Refused" || error?.name === "Offline";
  toast(sentence(error?.message || String(error)), { tone: "bad", hint: error?.hint || "" });
  if (!isOurs) reportError(error); // a mistake of the page has to be seen in the console
}

/** A text that begins like a sentence. */
export function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : text;
}

function dismiss(id) {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

/** Where notes appear; the shell has one. */
export function Toasts() {
  const box = useRef(null);
  const list = toasts.value;
  useLayoutEffect(() => {
    box.current.hidePopover();
    if (list.length) box.current.showPopover(); // shown last: above a dialog that is open
  }, [list]);
  const notes = list.map((each) => h(Toast, { key: each.id, ...each }));
  return h("div", { ref: box, class: "toasts", popover: "manual", role: "status", "aria-live": "polite" }, notes);
}

function Toast({ id, text, tone, hint, action }) {
  const act = () => {
    dismiss(id);
    action.run();
  };
  const close = { type: "button", class: "button button-quiet button-icon", "aria-label": "Dismiss", onClick: () => dismiss(id) };
  return h("div", { class: `toast toast-${tone}` }, [
    h("div", { class: "toast-words" }, [h("div", null, shown(text)), hint ? h("div", { class: "dim" }, shown(hint)) : null]),
    action ? h("button", { type: "button", class: "button button-quiet", onClick: act }, action.text) : null,
    h("button", close, h(Icon, { name: "x" })),
  ]);
}
