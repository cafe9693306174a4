/** Where messages are written: mode, commands, drafts, and a way to change what still waits. */
import { Button, html, tell, useEffect, useId, useLayoutEffect, useRef, useState } from "../ui/parts.js";
import { keep } from "./chat_keep.js";
import { completions, effectOf, modeName, MODES } from "./composer_model.js";

const ROWS_MAX_PX = 220;

/** A list of commands under what is typed. */
function Completion({ id, list, at, onPick }) {
  if (!list.length) return null;
  return html`<ul class="composer-list" role="listbox" id=${id} aria-label="Commands">
    ${list.map((each, index) => html`<li key=${each.name} role="option" id="${id}-${index}" aria-selected=${index === at ? "true" : "false"}
      onMouseDown=${(event) => { event.preventDefault(); onPick(each); }}>
      <strong class="mono">${each.name}</strong> <span class="dim">${each.says}</span></li>`)}
  </ul>`;
}

/** What a message does now, and what is written about the queue. */
function Effect({ mode, store, editing }) {
  if (editing) return html`<span>Changes a message that waits. Esc leaves it as it is.</span>`;
  store.version.value; // a component that reads a signal is drawn again only when one of its own has changed
  const run = store.live();
  const waiting = store.waitingCount.value;
  return html`<span>${effectOf(mode, run ? { state: run.state, isEnding: run.isEnding, waiting } : { waiting })}</span>`;
}

/** The composer. `given` is a text that is put into it, with a number that grows. */
export function Composer({ store, given, onHelp }) {
  store.version.value; // what a message would do changes with what happens
  const draft = useRef(keep("draft", store.key));
  const [text, setText] = useState(() => draft.current.read());
  const [mode, setMode] = useState("");
  const [editing, setEditing] = useState(null);
  const [at, setAt] = useState(0);
  const [isShut, setShut] = useState(false);
  const field = useRef(null);
  const isBusy = useRef(false);
  const id = useId();
  const list = isShut || editing ? [] : completions(text);
  const own = store.settings.value?.mode?.value ?? "";

  const write = (next) => {
    setText(next);
    setShut(false);
    setAt(0);
    if (!editing) draft.current.write(next);
  };

  useEffect(() => {
    if (!given?.turn) return;
    write(given.text);
    field.current.focus();
  }, [given?.turn]);

  useLayoutEffect(() => {
    const node = field.current;
    node.style.setProperty("height", "auto");
    node.style.setProperty("height", `${Math.min(ROWS_MAX_PX, node.scrollHeight + 2)}px`);
  }, [text]);

  const leaveEditing = () => {
    setEditing(null);
    write("");
    setText(draft.current.read());
  };

  const send = async (asMode) => {
    const words = text.trim();
    if (!words) return;
    if (editing) {
      if (isBusy.current) return;
      isBusy.current = true;
      try {
        await store.edit(editing, text);
        leaveEditing();
      } finally {
        isBusy.current = false;
      }
      return;
    }
    if (words.toLowerCase() === "/help") onHelp();
    else store.send(words, words.startsWith("/") ? "" : asMode);
    write("");
    draft.current.write("");
    setMode("");
  };

  const pick = (each) => {
    write(each.isWhole ? each.name : `${each.name} `);
    setShut(each.isWhole);
    field.current.focus();
  };

  const editLast = () => {
    const message = store.lastWaiting();
    if (!message) return false;
    setEditing(message);
    setText(message.text);
    return true;
  };

  const onList = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) setAt((at + step + list.length) % list.length);
    else if (event.key === "Tab" || (event.key === "Enter" && text.trimEnd() !== list[at].name)) pick(list[at]);
    else if (event.key === "Escape") setShut(true);
    else return false;
    return true;
  };

  const onKey = (event) => {
    if (event.isComposing) return;
    if (list.length && !event.ctrlKey && !event.shiftKey && onList(event)) {
      event.preventDefault();
      return;
    }
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send(event.ctrlKey || event.metaKey ? "steer" : mode).catch(tell);
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (editing) leaveEditing();
      else document.querySelector(".chat-log")?.focus();
    } else if (event.key === "ArrowUp" && !text && editLast()) event.preventDefault();
  };

  const box = list.length ? { "aria-controls": `${id}-list`, "aria-activedescendant": `${id}-list-${at}` } : {};
  return html`<form class="composer" onSubmit=${(event) => event.preventDefault()} aria-label="Write a message">
    <${Completion} id="${id}-list" list=${list} at=${at} onPick=${pick} />
    <div class="composer-row">
      <textarea ref=${field} rows="1" value=${text} onInput=${(event) => write(event.target.value)} onKeyDown=${onKey} aria-label="Message"
        placeholder=${editing ? "" : "Write a message, or / for commands"}
        aria-autocomplete="list" aria-haspopup="listbox" aria-describedby="${id}-effect" ...${box}></textarea>
      <${Button} kind="primary" icon="send" onClick=${() => send(mode)} disabled=${!text.trim()}>
        ${editing ? "Change" : "Send"}</${Button}>
    </div>
    <div class="composer-foot">
      <select class="composer-mode" aria-label="Mode" value=${mode} disabled=${Boolean(editing)}
        onChange=${(event) => setMode(event.target.value)}>
        ${MODES.map((each) => html`<option key=${each} value=${each}>${modeName(each, own || "queue's own")}</option>`)}
      </select>
      <span class="composer-effect dim" id="${id}-effect">
        <${Effect} mode=${mode || own || "collect"} store=${store} editing=${editing} /></span>
      ${editing ? html`<${Button} kind="quiet" onClick=${leaveEditing}>Leave it</${Button}>` : null}
    </div>
  </form>`;
}
