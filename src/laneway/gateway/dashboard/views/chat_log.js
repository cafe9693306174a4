/** The conversation on the screen: only the part that somebody looks at is in the page, however long it is. */
import { plural } from "../core/format.js";
import { Button, html, Loading, useEffect, useLayoutEffect, useRef, useState } from "../ui/parts.js";
import { blocksOf, returnedOf, versionOf, waitingOf } from "./chat_blocks.js";
import { Long, Message, Run, Still } from "./chat_parts.js";

const SHOWN = 24; // blocks in the page at first
const STEP = 16; // so many more when somebody comes near the edge
const SHOWN_MAX = 72;
const NEAR_PX = 500;
const END_PX = 80;
const WAITING_SHOWN = 6;

function Block({ block, chat, store }) {
  if (block.kind === "divider") return html`<div class="chat-divider" role="separator"><span>A new conversation</span></div>`;
  if (block.kind === "message") return html`<${Message} message=${block.message} store=${store} />`;
  return html`<${Run} run=${block.run} chat=${chat} store=${store} />`;
}

/** Blocks in their order; put in order anew only when that has changed. */
function useBlocks(chat) {
  const kept = useRef({ chat: null, shape: -1, blocks: [] });
  if (kept.current.chat !== chat || kept.current.shape !== chat.shape) {
    kept.current = { chat, shape: chat.shape, blocks: blocksOf(chat) };
  }
  return kept.current.blocks;
}

function Waiting({ chat, store }) {
  store.version.value;
  const all = waitingOf(chat);
  const own = all.filter((each) => store.own.has(each.id));
  const shown = [...new Set([...all.slice(0, WAITING_SHOWN), ...own.slice(-WAITING_SHOWN)])];
  const more = Math.max(store.waitingCount.value - returnedOf(chat).size, all.length) - shown.length;
  if (!shown.length) return null;
  return html`<section class="chat-waiting" aria-label="Waiting messages">
    ${shown.map((each) => html`<${Message} key=${each.id} message=${each} store=${store} />`)}
    ${more > 0 ? html`<p class="chat-more dim">and ${plural(more, "more message")} in the queue</p>` : null}
  </section>`;
}

function Outbox({ store, onEdit }) {
  store.version.value;
  return store.unseen().map((send) => html`<div class="chat-message chat-user chat-sending" key=${send.key}>
    <${Long} text=${send.text} />
    <div class="chat-became">
      ${send.state === "refused"
        ? html`<span class="chat-bad" role="alert">Not sent: ${send.error}</span>
          <${Button} kind="quiet" icon="refresh" onClick=${() => store.sendAgain(send.key)}>Try again</${Button}>
          <${Button} kind="quiet" icon="edit" onClick=${() => onEdit(send)}>Change it</${Button}>
          <${Button} kind="quiet" icon="trash" onClick=${() => store.dropSend(send.key)}>Forget it</${Button}>`
        : html`<span class="dim">${send.state === "again" ? "no answer yet: it is sent again by itself" : "sending …"}</span>`}
    </div>
  </div>`);
}

/** The conversation. `empty` is shown when there is none. */
export function Log({ store, empty, onEdit, onFocusBack }) {
  const { chat } = store;
  const version = store.version.value;
  const blocks = useBlocks(chat);
  const node = useRef(null);
  const [range, setRange] = useState({ end: null, count: SHOWN }); // end null: up to the newest
  const follows = useRef(true);
  const anchor = useRef(null);
  const [isAway, setAway] = useState(false);
  const end = range.end === null ? blocks.length : Math.min(range.end, blocks.length);
  const start = Math.max(0, end - range.count);
  const isBusy = useRef(false);

  // What somebody reads stays where it is when something comes in above it.
  const holdStill = () => {
    const box = node.current.getBoundingClientRect();
    const first = [...node.current.querySelectorAll("[data-block]")].find((each) => each.getBoundingClientRect().bottom > box.top);
    anchor.current = first ? { key: first.dataset.block, top: first.getBoundingClientRect().top } : null;
  };

  useLayoutEffect(() => {
    const view = node.current;
    if (follows.current) {
      view.scrollTop = view.scrollHeight;
    } else if (anchor.current) {
      const same = [...view.querySelectorAll("[data-block]")].find((each) => each.dataset.block === anchor.current.key);
      if (same) view.scrollTop += same.getBoundingClientRect().top - anchor.current.top;
    }
    anchor.current = null;
  });

  // A window that becomes lower (a keyboard on a phone, a longer message) still shows the end.
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (follows.current && node.current) node.current.scrollTop = node.current.scrollHeight;
    });
    observer.observe(node.current);
    return () => observer.disconnect();
  }, []);

  const grow = async () => {
    if (isBusy.current) return;
    isBusy.current = true;
    try {
      if (start === 0 && !(await store.readOlder())) return;
      const now = blocksOf(store.chat).length;
      const added = start === 0 ? now - blocks.length : 0;
      holdStill();
      const count = range.count + STEP;
      const last = end + added;
      if (count > SHOWN_MAX) setRange({ end: last - (count - SHOWN_MAX), count: SHOWN_MAX });
      else setRange({ end: range.end === null ? null : last, count });
    } catch {
      // the shell says that nobody answers; scrolling tries again
    } finally {
      isBusy.current = false;
    }
  };

  const goDown = () => {
    if (range.end === null) return;
    holdStill();
    const next = end + STEP;
    setRange(next >= blocks.length ? { end: null, count: Math.min(range.count, SHOWN_MAX) } : { end: next, count: range.count });
  };

  const onScroll = () => {
    const view = node.current;
    if (!view) return; // the browser tells of it a moment later: somebody may have left the chat meanwhile
    const left = view.scrollHeight - view.scrollTop - view.clientHeight;
    follows.current = range.end === null && left < END_PX;
    if (isAway === follows.current) setAway(!follows.current);
    if (view.scrollTop < NEAR_PX && !follows.current && (start > 0 || chat.before)) grow();
    if (left < NEAR_PX && range.end !== null) goDown();
  };

  const toEnd = () => {
    follows.current = true;
    setRange({ end: null, count: SHOWN });
    setAway(false);
  };

  const isEmpty = store.isRead.value && !blocks.length && !store.outbox.value.length && !waitingOf(chat).length;
  return html`<div class="chat-view">
    <div class="chat-log" ref=${node} onScroll=${onScroll} tabIndex=${0} role="log" aria-live="off" aria-label="Conversation"
      data-version=${version} data-blocks=${blocks.length} onKeyDown=${onFocusBack}>
      ${store.isReadingOlder.value ? html`<${Loading} text="Reading what was said before …" />` : null}
      ${start > 0 || chat.before
        ? html`<div class="more"><${Button} kind="quiet" icon="up" onClick=${grow}>Show what was said before</${Button}></div>`
        : null}
      ${isEmpty ? empty : null}
      ${blocks.slice(start, end).map((block) => html`<div key=${block.key} data-block=${block.key} class="chat-block">
        <${Still} v=${`${chat.number} ${versionOf(chat, block)}`}
          draw=${() => html`<${Block} block=${block} chat=${chat} store=${store} />`} /></div>`)}
      ${range.end === null ? html`<${Waiting} chat=${chat} store=${store} /><${Outbox} store=${store} onEdit=${onEdit} />` : null}
    </div>
    ${isAway ? html`<${Button} class="chat-down" icon="down" onClick=${toEnd}>To the newest</${Button}>` : null}
  </div>`;
}
