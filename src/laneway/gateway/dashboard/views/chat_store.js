/** One open chat: reads the past, takes the events in once a frame, sends what is written. The page shows what it has. */
import { signal } from "@preact/signals";
import { ask, newKey } from "../core/api.js";
import { follow } from "../core/streams.js";
import { gathered, keep } from "./chat_keep.js";
import { isWaiting, liveRun, messageOf, newChat, reopened, takeEvent, takeMessage, takePast, takePending, takeText } from "./chat_model.js";
import { foldRun, newRun } from "./chat_run.js";
import { isWorthAgain, outboxOf, pauseOf } from "./composer_model.js";

const PENDING_SHOWN = 50;
const IDS_MAX = 100;

/** The chat of one session. `version` changes when there is something new to show. */
export class ChatStore {
  constructor(key) {
    this.key = key;
    this.home = `/sessions/${encodeURIComponent(key)}`;
    this.chat = newChat(key);
    this.version = signal(0);
    this.trouble = signal(null); // why the past cannot be read
    this.isRead = signal(false);
    this.settings = signal(null); // those of its queue
    this.lanes = signal(new Map()); // those of its tools, by their names, while it is in memory
    this.about = signal({ identity: {}, resting: false, rests: "" }); // the session itself
    this.waitingCount = signal(0);
    this.own = new Set(); // what was sent from here
    this.replies = new Map(); // answers to commands, by their message
    this.isReadingOlder = signal(false);
    this.events = [];
    this.frame = 0;
    this.visit = 0;
    this.isEnded = false;
    this.outboxPlace = keep("outbox", key);
    this.outbox = signal(outboxOf(this.outboxPlace.read()));
    this.isPumping = false;
    this.wake = null;
    this.readPendingSoon = gathered(() => this.quietly(() => this.readPending()), 250);
    this.readSessionSoon = gathered(() => this.quietly(() => this.readSession()), 200);
    this.readUnreadSoon = gathered(() => this.quietly(() => this.readUnread()), 30);
    this.known = { queue: 0, settings: 0, calls: 0, run: "" };
  }

  /** The view has gone. */
  end() {
    this.isEnded = true;
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    for (const each of [this.readPendingSoon, this.readSessionSoon, this.readUnreadSoon]) each.end();
    this.wake?.();
  }

  changed() {
    if (!this.isEnded) this.version.value += 1;
  }

  async quietly(fn) {
    if (this.isEnded) return;
    try {
      await fn();
    } catch {
      // the next event asks again, and the shell says that nobody answers
    }
  }

  // ---- the stream ----

  /** The stream is open. The first time, the past is read; later ones go on behind the last event. */
  opened(isAgain) {
    if (isAgain) reopened(this.chat);
    if (!isAgain || !this.isRead.value) this.readPast(!isAgain);
    else this.readSessionSoon();
    this.pump();
    this.wake?.();
  }

  /** One event; it is taken in with the others of this frame. */
  heard(type, facts) {
    this.events.push([type, facts]);
    if (this.frame || this.timer) return;
    // A hidden page draws no frames, and still has to keep up.
    if (document.hidden) this.timer = setTimeout(() => this.fold(), 250);
    else this.frame = requestAnimationFrame(() => this.fold());
  }

  fold() {
    clearTimeout(this.timer);
    this.frame = this.timer = 0;
    const events = this.events;
    this.events = [];
    if (this.isEnded) return;
    for (const [type, facts] of events) takeEvent(this.chat, type, facts);
    if (this.chat.gap) {
      this.chat.gap = false;
      this.readPast(true);
    }
    this.lookAround();
    this.changed();
  }

  /** Ask for what the events have not told. */
  lookAround() {
    const { chat, known } = this;
    const run = liveRun(chat);
    const now = run ? `${run.id} ${run.state}` : "";
    if (chat.queue !== known.queue) this.readPendingSoon();
    const isOther = chat.settings !== known.settings || chat.calls !== known.calls || chat.queue !== known.queue;
    if (isOther || now !== known.run) this.readSessionSoon();
    if (this.wanted().length) this.readUnreadSoon();
    this.known = { queue: chat.queue, settings: chat.settings, calls: chat.calls, run: now };
  }

  /** Messages whose text is needed: of thousands that wait the queue shows what is wanted. */
  wanted() {
    const { chat } = this;
    const isNear = (message) => !isWaiting(message.state) || this.own.has(message.id) || this.waitingCount.peek() <= PENDING_SHOWN;
    return [...chat.unread].filter((id) => isNear(chat.messages.get(id))).slice(0, IDS_MAX);
  }

  // ---- reading ----

  /** Read the newest part of the conversation. `isNew`: forget what was known. */
  async readPast(isNew) {
    const visit = (this.visit += 1);
    const isLate = () => visit !== this.visit || this.isEnded;
    try {
      const page = await ask(`${this.home}/conversation`, { query: { limit: 20 } });
      if (isLate()) return;
      if (isNew && this.isRead.value) this.chat = newChat(this.key);
      takePast(this.chat, page);
      this.settings.value = page.settings;
      this.waitingCount.value = page.waiting;
      this.trouble.value = null;
    } catch (error) {
      if (!isLate()) this.trouble.value = error;
      return;
    }
    this.isRead.value = true;
    this.readPendingSoon();
    this.readSessionSoon();
    this.lookAround();
    this.changed();
  }

  /** Whether there is such a session: one begins with its first message. */
  exists() {
    return this.chat.messages.size > 0 || this.waitingCount.peek() > 0;
  }

  /** Read older runs; true if there were some. */
  async readOlder() {
    const { before } = this.chat;
    if (!before || this.isReadingOlder.value) return false;
    this.isReadingOlder.value = true;
    try {
      const page = await ask(`${this.home}/conversation`, { query: { limit: 40, before } });
      if (this.isEnded || this.chat.before !== before) return false;
      takePast(this.chat, page, { isOlder: true });
      this.changed();
      return true;
    } finally {
      this.isReadingOlder.value = false;
    }
  }

  async readPending() {
    const own = [...this.own].filter((id) => isWaiting(this.chat.messages.get(id)?.state));
    if (!this.isRead.value || !this.exists()) return;
    const found = await ask(`${this.home}/pending`, { query: { limit: PENDING_SHOWN } });
    const told = takePending(this.chat, found.items.slice(0, PENDING_SHOWN));
    const rest = own.filter((id) => !told.has(id)).slice(0, 20);
    if (rest.length) await this.readMessages(rest);
    this.changed();
  }

  async readSession() {
    if (!this.exists()) return;
    const found = await ask(this.home);
    this.settings.value = found.settings;
    this.about.value = { identity: found.identity ?? {}, resting: Boolean(found.resting), rests: found.resting_reason ?? "" };
    this.waitingCount.value = found.waiting;
    this.lanes.value = new Map(found.lanes.map((each) => [each.name, each]));
    this.changed();
  }

  async readUnread() {
    const ids = this.wanted();
    if (!ids.length) return;
    await this.readMessages(ids);
    for (const id of ids) this.chat.unread.delete(id); // what is not there cannot be read another time
    if (this.wanted().length) this.readUnreadSoon();
    this.changed();
  }

  async readMessages(ids) {
    const asOf = this.chat.seq;
    const found = await ask(`${this.home}/messages`, { query: { id: ids } });
    for (const facts of found.items) takeMessage(this.chat, facts, asOf);
  }

  /** Read what a run of the past did, round by round. */
  readWork(run) {
    return new Promise((resolve, reject) => {
      const whole = newRun(run.id);
      const done = (error) => {
        followed.close();
        if (error?.status) {
          reject(error);
          return;
        }
        Object.assign(run, {
          rounds: whole.rounds, plan: whole.plan, children: whole.children, notes: whole.notes, isWhole: true, v: run.v + 1,
          tokens: whole.tokens || run.tokens, cost: whole.cost ?? run.cost, toolCalls: whole.toolCalls,
        });
        this.changed();
        resolve();
      };
      const followed = follow(`/runs/${encodeURIComponent(run.id)}/events`, {
        query: { follow: "false" },
        onEvent: (type, facts) => {
          if (facts.payload && facts.metadata) foldRun(whole, type, facts.payload, { ...facts.metadata, seq: 0 });
        },
        onState: (state, { error }) => {
          if (state === "lost" || state === "refused") done(error);
        },
      });
    });
  }

  // ---- sending ----

  /** Send a message. It is on its way until the server has taken it, also after a reload of the page. */
  send(text, mode = "") {
    this.setOutbox([...this.outbox.value, { key: newKey(), text, mode, state: "sending", error: "", tries: 0 }]);
    this.pump();
  }

  /** What is on its way and not among the messages yet: an event may be faster than the answer, which may be lost. */
  unseen() {
    return this.outbox.value.filter((each) => each.state === "refused" || !this.chat.keys.has(each.key));
  }

  setOutbox(list) {
    this.outbox.value = list;
    this.outboxPlace.write(list.length ? JSON.stringify(list) : "");
    this.changed();
  }

  setSend(key, change) {
    if (this.isEnded) return; // whoever opens the chat next tries it again, and keeps what was written since
    this.setOutbox(this.outbox.value.map((each) => (each.key === key ? { ...each, ...change } : each)));
  }

  /** Forget a send that was taken, or refused. */
  dropSend(key) {
    const list = this.isEnded ? outboxOf(this.outboxPlace.read()) : this.outbox.value;
    this.setOutbox(list.filter((each) => each.key !== key));
  }

  /** Try a refused send once more, with its key. */
  sendAgain(key) {
    this.setSend(key, { state: "sending", error: "" });
    this.pump();
  }

  /** Send what is on its way, one after the other, so that they arrive in their order. */
  async pump() {
    if (this.isPumping) return;
    this.isPumping = true;
    try {
      for (;;) {
        const next = this.outbox.value.find((each) => each.state !== "refused");
        if (!next || this.isEnded) return;
        await this.post(next);
      }
    } finally {
      this.isPumping = false;
    }
  }

  async post({ key, text, mode, tries = 0 }) {
    const body = { text, ...(mode ? { mode } : {}) }; // on no channel of its own: it may steer what came over the API
    try {
      const receipt = await ask(`${this.home}/messages`, { body, key });
      if (!this.isEnded) this.taken(receipt, text);
      this.dropSend(key);
    } catch (error) {
      if (!isWorthAgain(error)) {
        this.setSend(key, { state: "refused", error: error.hint ? `${error.message} (${error.hint})` : error.message });
        return;
      }
      this.setSend(key, { state: "again", error: error.message, tries: tries + 1 });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, pauseOf(tries, error.retryAfterMs));
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  taken(receipt, text) {
    const id = receipt.sent ?? receipt.message_id;
    this.own.add(id);
    const message = id === receipt.message_id ? takeText(this.chat, id, text) : messageOf(this.chat, id);
    if (!message.state) {
      Object.assign(message, { state: receipt.disposition, position: receipt.position, reason: receipt.reason });
      this.chat.shape += 1;
    }
    if (receipt.reply) {
      this.replies.set(receipt.message_id, receipt.reply);
      messageOf(this.chat, receipt.message_id).v += 1;
    }
    this.readUnreadSoon();
    this.readSessionSoon();
    this.changed();
  }

  // ---- doing ----

  /** The run that goes on, or null. */
  live() {
    return liveRun(this.chat);
  }

  /** End the run that goes on; what waits stays. */
  async cancelRun(run) {
    await ask(`/runs/${encodeURIComponent(run.id)}/cancel`, { body: {} });
  }

  /** End all that runs and waits. */
  async stopAll() {
    return ask(`${this.home}/stop`, { body: {} });
  }

  /** Send a message again that did not succeed. */
  async retry(message) {
    const receipt = await ask(`/messages/${encodeURIComponent(message.id)}/retry`, { method: "POST" });
    this.taken(receipt, message.text);
  }

  /** Go on with a run that was cut off. */
  async resume(run) {
    const receipt = await ask(`/runs/${encodeURIComponent(run.id)}/resume`, { method: "POST" });
    this.own.add(receipt.message_id);
  }

  /** Give a waiting message another text. */
  async edit(message, text) {
    const facts = await ask(`/messages/${encodeURIComponent(message.id)}`, { method: "PATCH", body: { text } });
    takeMessage(this.chat, facts, this.chat.seq);
    this.changed();
  }

  /** The newest message of one's own that waits, or the newest that waits at all. */
  lastWaiting() {
    const found = [...this.chat.messages.values()].filter((each) => isWaiting(each.state) && each.isKnown && each.kind === "user");
    const own = found.filter((each) => this.own.has(each.id));
    return (own.length ? own : found).at(-1) ?? null;
  }
}
