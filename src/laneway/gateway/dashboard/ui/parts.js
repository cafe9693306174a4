/** Building stones of every view, and the few names of the libraries that views use. */
import { cloneElement, Component, Fragment, h, render } from "preact";
import { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { batch, computed, effect, signal, useComputed, useSignal, useSignalEffect } from "@preact/signals";
import htm from "htm";
import { wantToken } from "../core/access.js";
import { ago, clock, duration, moment, now, shown } from "../core/format.js";
import { Icon } from "./icons.js";
import { sentence, tell, toast } from "./toasts.js";

export const html = htm.bind(h);
export { Component, Fragment, h, render };
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState };
export { batch, computed, effect, signal, useComputed, useSignal, useSignalEffect };
export { Icon, tell, toast };

const JSON_FOLDED = 600;
const COPIED_MS = 1500;

const TONES = {
  ok: [
    "succeeded", "ok", "done", "completed", "valid", "open", "delivered", "answered", "approved", "healthy", "active", "settled",
    "merged", "steered",
  ],
  run: ["running", "started", "working", "claimed", "taken", "sending", "cancelling", "out", "in_flight", "model", "tool"],
  wait: ["queued", "waiting", "parked", "pending", "scheduled", "collecting", "asked", "retrying", "delayed", "available", "wanted"],
  warn: ["held", "paused", "closed", "unknown", "draining", "quiet", "interrupted", "expired", "timed_out", "timeout", "retry", "stale"],
  bad: ["failed", "dead", "dead_lettered", "rejected", "lost", "denied", "error", "dropped", "revoked"],
  off: ["idle", "cancelled", "withdrawn", "disabled", "skipped", "none", "gone", "superseded"],
};
const TONE_OF = new Map(Object.entries(TONES).flatMap(([tone, states]) => states.map((state) => [state, tone])));

/** The tone of a state, in words of the API: "queued" → "wait". What is not known is "off". */
export function stateTone(state) {
  return TONE_OF.get(String(state ?? "").toLowerCase().replace(/[- ]/g, "_")) ?? "off";
}

/** A button. An async `onClick` shows that it is busy and cannot be pressed twice; a refusal becomes a note. */
export function Button({ onClick, kind = "plain", busy, disabled, title, icon, type = "button", children, ...more }) {
  const [isBusy, setBusy] = useState(false);
  const isThere = useRef(true);
  useEffect(() => () => { isThere.current = false; }, []);
  const isOff = disabled || busy || isBusy;
  const press = async (event) => {
    if (isOff) return;
    try {
      const result = onClick?.(event);
      if (typeof result?.then !== "function") return;
      setBusy(true);
      await result;
    } catch (error) {
      tell(error);
    } finally {
      if (isThere.current) setBusy(false);
    }
  };
  const isBare = icon && (children === undefined || children === null || children.length === 0);
  const name = `button button-${kind}${isBare ? " button-icon" : ""}${more.class ? ` ${more.class}` : ""}`;
  return html`<button ...${more} type=${type} class=${name} onClick=${press} title=${title} disabled=${Boolean(disabled)}
    aria-disabled=${isOff ? "true" : undefined} aria-busy=${busy || isBusy ? "true" : undefined}
    aria-label=${more["aria-label"] ?? (isBare ? title : undefined)}>
    ${icon ? html`<${Icon} name=${icon} />` : null}${children}</button>`;
}

/** A form whose async `onSubmit` runs once at a time; a refusal becomes a note. */
export function Form({ onSubmit, children, ...more }) {
  const isBusy = useRef(false);
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy.current) return;
    isBusy.current = true;
    try {
      await onSubmit(event);
    } catch (error) {
      tell(error);
    } finally {
      isBusy.current = false;
    }
  };
  return html`<form ...${more} onSubmit=${submit} noValidate>${children}</form>`;
}

/** A state in a word. */
export function Badge({ tone = "off", title, children }) {
  return html`<span class="badge badge-${tone}" title=${title}>${children}</span>`;
}

function Ticking({ ms, text, class: name }) {
  const words = useMemo(() => computed(() => text(ms, now.value)), [ms, text]);
  if (ms === null || ms === undefined) return html`<span class="dim">–</span>`;
  return html`<time class=${name} dateTime=${new Date(ms).toISOString()} title=${moment(ms)}>${words}</time>`;
}

const since = (ms, at) => duration(Math.max(0, Math.round((at - ms) / 1000) * 1000));
const left = (ms, at) => (ms > at ? duration(Math.ceil((ms - at) / 1000) * 1000) : "now");

/** When it was: "5 min ago"; the exact time is its title. */
export function Time({ ms }) {
  return html`<${Ticking} ms=${ms} text=${ago} class="num" />`;
}

/** How long it has been so: "2 min 5 s". */
export function Since({ ms }) {
  return html`<${Ticking} ms=${ms} text=${since} class="num" />`;
}

/** How long it still takes: "40 s", then "now". */
export function Countdown({ until }) {
  return html`<${Ticking} ms=${until} text=${left} class="num" />`;
}

/** The time of day of a moment. */
export function Clock({ ms }) {
  return html`<${Ticking} ms=${ms} text=${clock} class="num" />`;
}

/** There is nothing; `children` say what to do. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p><div class="dim">${children}</div></div>`;
}

/** It did not work: what was said, what helps, and a way to try again. */
export function ErrorBox({ error, retry }) {
  const isDenied = error?.status === 401 || error?.status === 403;
  const isOffline = error?.name === "Offline";
  const isForPrograms = isDenied && /Authorization: Bearer/.test(error.hint ?? "");
  const hint = isForPrograms ? "A server that is started in a terminal prints one; else: laneway token create NAME" : error?.hint;
  const useOther = async () => {
    if (await wantToken({ detail: error.message, hint: error.hint })) retry?.();
  };
  return html`<div class="error-box" role="alert">
    <p class="error-title">${isOffline ? "The server does not answer" : shown(sentence(error?.message || "something went wrong"))}</p>
    ${hint ? html`<p class="dim">${shown(sentence(hint))}</p>` : null}
    <div class="row">
      ${retry ? html`<${Button} onClick=${() => retry()} icon="refresh">Try again</${Button}>` : null}
      ${isDenied ? html`<${Button} kind="primary" icon="key" onClick=${useOther}>Use a token</${Button}>` : null}
    </div>
  </div>`;
}

/** It is being read. Shown only after a moment: what comes at once needs no sign. */
export function Loading({ text = "Loading …" }) {
  return html`<div class="loading" role="status"><span class="spinner" aria-hidden="true"></span> ${text}</div>`;
}

/** A labelled field; its one child is the input, which gets the id. */
export function Field({ label, hint, error, children, inline = false }) {
  const made = useId();
  const input = Array.isArray(children) ? children.find((each) => each?.type) : children;
  const rest = Array.isArray(children) ? children.filter((each) => each !== input) : null;
  const name = input?.props.id ?? made;
  const notes = [error ? `${name}-error` : "", hint ? `${name}-hint` : ""].filter(Boolean).join(" ");
  const more = { id: name, "aria-describedby": notes || undefined, "aria-invalid": error ? "true" : undefined };
  const child = input ? cloneElement(input, more) : null;
  return html`<div class=${inline ? "field field-inline" : "field"}>
    <label for=${name}>${label}</label>${child}${rest}
    ${error ? html`<p class="field-error" id="${name}-error" role="alert">${shown(error)}</p>` : null}
    ${hint ? html`<p class="field-hint" id="${name}-hint">${hint}</p>` : null}
  </div>`;
}

/** A text of somebody: as it is, with what cannot be seen made visible. */
export function Text({ children, block = false }) {
  const text = shown(Array.isArray(children) ? children.join("") : children);
  return html`<${block ? "div" : "span"} class="text" dir="auto">${text}</${block ? "div" : "span"}>`;
}

/** A value as indented JSON, or a text as it is; folded when it is long. */
export function Json({ value, open = false }) {
  const text = shown(typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");
  const [isOpen, setOpen] = useState(open || text.length <= JSON_FOLDED);
  return html`<div class="json">
    <pre tabIndex=${0}>${isOpen ? text : `${text.slice(0, JSON_FOLDED)} …`}</pre>
    ${text.length > JSON_FOLDED
      ? html`<${Button} kind="quiet" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}>
          ${isOpen ? "Fold" : `Show all (${text.length} characters)`}</${Button}>`
      : null}
  </div>`;
}

/** A button that copies a text. */
export function Copy({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    const timer = isDone ? setTimeout(() => setDone(false), COPIED_MS) : 0;
    return () => clearTimeout(timer);
  }, [isDone]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
    } catch {
      toast("This browser lets nobody copy here: select the text and copy it.", { tone: "warn" });
    }
  };
  return html`<${Button} kind="quiet" icon=${isDone ? "check" : "copy"} title=${isDone ? "Copied" : label} onClick=${copy} />`;
}

/** The frame of every view: a heading, a line that says what it is, actions at the right. */
export function Page({ title, lead, actions, children, class: name = "" }) {
  useEffect(() => {
    document.title = `${title} · Laneway`;
  }, [title]);
  return html`<div class="page ${name}">
    <div class="page-head">
      <div class="page-words"><h1 tabIndex=${-1}>${title}</h1>${lead ? html`<p class="page-lead">${lead}</p>` : null}</div>
      ${actions ? html`<div class="toolbar">${actions}</div>` : null}
    </div>
    ${children}
  </div>`;
}
