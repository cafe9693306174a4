/** Dialogs: a native `<dialog>`, a yes or no, and a question for a text. */
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Button, Field, html, tell } from "./parts.js";

const open = signal([]);
let last = 0;

/** A dialog that is open as long as it is rendered. Escape and a click beside it call `onClose`; the focus goes back. */
export function Dialog({ title, onClose, children, class: name = "", wide = false }) {
  const node = useRef(null);
  const closing = useRef(onClose);
  closing.current = onClose;
  useLayoutEffect(() => {
    const before = document.activeElement;
    const dialog = node.current;
    dialog.showModal();
    return () => {
      dialog.close();
      if (before?.isConnected) before.focus();
    };
  }, []);
  const cancel = (event) => {
    event.preventDefault(); // it goes when it is rendered no more
    closing.current?.();
  };
  const beside = (event) => {
    if (event.target === node.current) closing.current?.();
  };
  return html`<dialog ref=${node} class="dialog ${wide ? "dialog-wide" : ""} ${name}" onCancel=${cancel} onMouseDown=${beside}
    aria-label=${title}>
    <div class="dialog-body">
      <div class="dialog-head"><h2>${title}</h2>
        <${Button} kind="quiet" icon="x" title="Close" onClick=${() => closing.current?.()} /></div>
      ${children}
    </div>
  </dialog>`;
}

function show(Body, props) {
  return new Promise((resolve) => {
    const id = (last += 1);
    const done = (answer) => {
      open.value = open.value.filter((each) => each.id !== id);
      resolve(answer);
    };
    open.value = [...open.value, { id, Body, props: { ...props, done } }];
  });
}

/** Ask for a yes. Resolves with true or false. */
export function confirm({ title, text = "", yes = "Yes", danger = false }) {
  return show(Confirm, { title, text, yes, danger });
}

function Confirm({ title, text, yes, danger, done }) {
  return html`<${Dialog} title=${title} onClose=${() => done(false)}>
    ${text ? html`<p>${text}</p>` : null}
    <div class="dialog-foot">
      <${Button} onClick=${() => done(false)}>Cancel</${Button}>
      <${Button} kind=${danger ? "danger" : "primary"} autofocus=${!danger} onClick=${() => done(true)}>${yes}</${Button}>
    </div>
  </${Dialog}>`;
}

/** Ask for a text. Resolves with it, or with null. `check(text)` returns what is wrong with it, or "". */
export function prompt({ title, label, value = "", multiline = false, yes = "OK", check = null, text = "", hint = "" }) {
  return show(Prompt, { title, label, value, multiline, yes, check, text, hint });
}

function Prompt({ title, label, value, multiline, yes, check, text, hint, done }) {
  const [words, setWords] = useState(value);
  const [error, setError] = useState("");
  const field = useRef(null);
  useEffect(() => {
    field.current.focus();
    field.current.select();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    try {
      const wrong = check?.(words) || "";
      setError(wrong);
      if (!wrong) done(words);
    } catch (problem) {
      tell(problem);
    }
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  const props = { ref: field, value: words, onInput: (event) => setWords(event.target.value), onKeyDown: keys };
  return html`<${Dialog} title=${title} onClose=${() => done(null)}>
    <form onSubmit=${submit}>
      ${text ? html`<p>${text}</p>` : null}
      <${Field} label=${label} error=${error} hint=${hint}>
        ${multiline ? html`<textarea rows="6" ...${props}></textarea>` : html`<input type="text" autocomplete="off" ...${props} />`}
      </${Field}>
      <div class="dialog-foot">
        <${Button} onClick=${() => done(null)}>Cancel</${Button}>
        <${Button} kind="primary" type="submit">${yes}</${Button}>
      </div>
    </form>
  </${Dialog}>`;
}

/** Where questions appear; the shell has one. */
export function Dialogs() {
  return open.value.map(({ id, Body, props }) => html`<${Body} key=${id} ...${props} />`);
}
