/** The chat with one session: what was said, what runs, what waits, and a place to write. */
import { plural, shown } from "../core/format.js";
import { link, useStream } from "../core/live.js";
import { go, href } from "../core/router.js";
import { confirm, Dialog } from "../ui/dialogs.js";
import { useKeys } from "../ui/keys.js";
import { Labels } from "../ui/labels.js";
import {
  Badge, Button, Empty, ErrorBox, html, Loading, Page, stateTone, Text, toast, useEffect, useMemo, useRef, useSignal, useState,
} from "../ui/parts.js";
import { statusOf } from "./chat_blocks.js";
import { Log } from "./chat_log.js";
import { isWaiting } from "./chat_model.js";
import { ChatStore } from "./chat_store.js";
import { Composer } from "./composer.js";
import { COMMANDS } from "./composer_model.js";
import { NewSession } from "./new_session.js";

/** A part of another view that is loaded when it is wanted first; without it the chat still works. */
function Elsewhere({ load, name, ...props }) {
  const [Part, setPart] = useState(null);
  useEffect(() => {
    let isThere = true;
    load().then((module) => isThere && setPart(() => module[name] ?? null), () => {});
    return () => { isThere = false; };
  }, []);
  return Part ? html`<${Part} ...${props} />` : null;
}

const queue = () => import("./queue.js");
const approvals = () => import("./approvals.js");

function Help({ onClose }) {
  return html`<${Dialog} title="Commands and keys" onClose=${onClose}>
    <dl class="chat-help">
      ${COMMANDS.map((each) => html`<div key=${each.name}><dt class="mono">${each.name}</dt><dd>${each.says}</dd></div>`)}
    </dl>
    <dl class="chat-help">
      <div><dt><kbd>Enter</kbd></dt><dd>send</dd></div>
      <div><dt><kbd>Shift</kbd> <kbd>Enter</kbd></dt><dd>a new line</dd></div>
      <div><dt><kbd>Ctrl</kbd> <kbd>Enter</kbd></dt><dd>send it into the run</dd></div>
      <div><dt><kbd>↑</kbd></dt><dd>change the last message that waits, in an empty field</dd></div>
      <div><dt><kbd>Esc</kbd></dt><dd>to the conversation; there, <kbd>i</kbd> leads back</dd></div>
    </dl>
  </${Dialog}>`;
}

function Actions({ store, onNew }) {
  store.version.value;
  const run = store.live();
  const isBusy = Boolean(run) || store.waitingCount.value > 0;
  const stopAll = async () => {
    const text = "The run, its sub-agents and everything that waits are ended.";
    if (!(await confirm({ title: "Stop everything in this session?", text, yes: "Stop everything", danger: true }))) return;
    const ended = await store.stopAll();
    const count = ended.turns + ended.waiting + ended.debounced + ended.children + ended.calls;
    toast(count ? `Stopped: ${plural(ended.turns, "run")}, ${plural(ended.waiting, "waiting message")}.` : "Nothing was running.");
  };
  const reset = async () => {
    const text = "The agent forgets what was said so far. It stays readable here.";
    if (await confirm({ title: "Begin a new conversation?", text, yes: "Begin anew" })) store.send("/new");
  };
  return html`
    ${run
      ? html`<${Button} kind="danger" icon="stop" onClick=${() => store.cancelRun(run)} title="End this run; what waits stays">
          Stop run</${Button}>`
      : null}
    <${Button} icon="stop" onClick=${stopAll} disabled=${!isBusy} title="End the run and all that waits">Stop all</${Button}>
    <${Button} icon="refresh" onClick=${reset} title="Begin a new conversation in this session" aria-label="New conversation">
      <span class="chat-label">New conversation</span></${Button}>
    <${Button} icon="plus" onClick=${onNew} aria-label="New session"><span class="chat-label">New session</span></${Button}>`;
}

function Lead({ store }) {
  store.version.value;
  const run = store.live();
  const status = run ? statusOf(run) : null;
  const waiting = store.waitingCount.value;
  const state = status?.text ?? (waiting ? "waiting" : store.exists() ? "idle" : "no message yet");
  const mode = store.settings.value?.mode;
  const { identity, resting, rests } = store.about.value;
  const words = resting ? "rests" : shown(state);
  const title = resting ? `It has left memory: ${rests}.` : undefined;
  return html`<span class="row"><${Badge} tone=${resting ? "wait" : status?.tone ?? stateTone(state)} title=${title}>${words}</${Badge}>
    ${!resting && status?.reason && run ? html`<span><${Text}>${status.reason}</${Text}></span>` : null}
    ${waiting ? html`<span>${plural(waiting, "message")} waiting</span>` : null}
    ${mode ? html`<span class="chat-mode">mode ${mode.value} <span class="dim">(${mode.origin})</span></span>` : null}
    <a href=${href("sessions", store.key)}>Session</a>
    <${Labels} identity=${identity} /></span>`;
}

/** Says in words what has ended, for those who do not see it. */
function Announcer({ store }) {
  store.version.value;
  const last = useRef("");
  const [words, setWords] = useState("");
  const run = store.live();
  useEffect(() => {
    if (run) last.current = run.id;
    else if (last.current) {
      const ended = store.chat.runs.get(last.current);
      last.current = "";
      setWords(ended?.state === "succeeded" ? "The answer is there." : `The run has ended: ${ended?.state ?? ""}`);
    }
  }, [run?.id]);
  return html`<div class="visually-hidden" role="status">${words}</div>`;
}

function Typing({ store }) {
  store.version.value;
  const { typing, messages } = store.chat; // a message that waits says by itself why
  const isOn = typing && !store.live() && !isWaiting(messages.get(typing.messageId)?.state);
  return html`<div class="chat-typing dim" aria-hidden="true">${isOn ? "The message was taken, an answer is being prepared …" : ""}</div>`;
}

function Side({ store }) {
  store.version.value;
  const { chat } = store;
  const waiting = store.waitingCount.value;
  const isOpen = useSignal(matchMedia("(min-width: 1001px)").matches); // beside the conversation there is room for it
  return html`<${Elsewhere} load=${approvals} name="ApprovalsOf" sessionKey=${store.key} version=${chat.approvals} />
    <details class="chat-queue" open=${isOpen.value} onToggle=${(event) => { isOpen.value = event.target.open; }}>
      <summary>Queue ${waiting
        ? html`<${Badge} tone="wait">${plural(waiting, "waits", "wait")}</${Badge}>`
        : html`<span class="dim">nothing waits</span>`}</summary>
      ${isOpen.value && store.exists()
        ? html`<${Elsewhere} load=${queue} name="QueuePanel" sessionKey=${store.key} version=${chat.queue} />`
        : null}
    </details>`;
}

function Open({ sessionKey, onAgain }) {
  const store = useMemo(() => new ChatStore(sessionKey), [sessionKey]);
  useEffect(() => () => store.end(), [store]);
  const [isHelp, setHelp] = useState(false);
  const [isNew, setNew] = useState(false);
  const [given, setGiven] = useState({ turn: 0, text: "" });
  useStream(`${store.home}/events`, (type, facts) => store.heard(type, facts), { onOpen: (isAgain) => store.opened(isAgain) });
  const write = () => document.querySelector(".composer textarea")?.focus();
  useKeys({ i: { run: write, text: "Write a message" } }, "Chat");
  useEffect(write, [sessionKey]);
  const onEdit = (send) => {
    store.dropSend(send.key);
    setGiven({ turn: given.turn + 1, text: send.text });
  };
  const refused = link.value.state === "refused" ? link.value.error : null;
  const trouble = refused ?? store.trouble.value;
  const again = () => (refused ? onAgain() : store.readPast(false));
  const empty = html`<${Empty} title="Nothing has been said here yet">Write the first message below. It begins a run at once.</${Empty}>`;
  return html`<${Page} class="chat-page" title=${shown(sessionKey)} lead=${html`<${Lead} store=${store} />`}
    actions=${html`<${Actions} store=${store} onNew=${() => setNew(true)} />`}>
    ${trouble ? html`<${ErrorBox} error=${trouble} retry=${again} />` : null}
    ${!store.isRead.value && !trouble ? html`<${Loading} text="Reading the conversation …" />` : null}
    <div class="chat-columns">
      <div class="chat-main">
        <${Log} store=${store} empty=${empty} onEdit=${onEdit} />
        <${Typing} store=${store} />
        <${Composer} store=${store} given=${given} onHelp=${() => setHelp(true)} />
      </div>
      <div class="chat-side"><${Side} store=${store} /></div>
    </div>
    <${Announcer} store=${store} />
    ${isHelp ? html`<${Help} onClose=${() => setHelp(false)} />` : null}
    ${isNew ? html`<${NewSession} onClose=${() => setNew(false)} />` : null}
  </${Page}>`;
}

function Nowhere() {
  const [isNew, setNew] = useState(false);
  return html`<${Page} title="Chat" lead="A chat belongs to a session.">
    <${Empty} title="No session is chosen">
      <div class="row"><${Button} kind="primary" icon="plus" onClick=${() => setNew(true)}>New session</${Button}>
        <${Button} onClick=${() => go(href("sessions"))}>All sessions</${Button}></div>
    </${Empty}>
    ${isNew ? html`<${NewSession} onClose=${() => setNew(false)} />` : null}
  </${Page}>`;
}

/** `#/chat/<key>`. */
export default function Chat({ params }) {
  const key = params[0] ?? "";
  const [turn, setTurn] = useState(0); // a stream that was refused is asked for anew
  return key ? html`<${Open} key=${`${turn} ${key}`} sessionKey=${key} onAgain=${() => setTurn(turn + 1)} />` : html`<${Nowhere} />`;
}
