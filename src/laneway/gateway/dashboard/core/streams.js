/** Server-sent events over fetch, since an EventSource cannot send a token. Comes back by itself and misses nothing. */
import { addressOf, answered, headersOf, refusalOf, unreachable } from "./api.js";
import { backoff, eventReader } from "./sse.js";

const QUIET_MS = 45000; // not even a sign of life for so long: the connection is dead
const HIDDEN_MS = 60000; // a page that nobody sees gives its stream back after this
const STEADY_MS = 5000; // a stream that lasted so long had no trouble: begin again with short waits

/**
 * Follow a stream below `/v1`. `onEvent(type, facts, id)`; `onState("connecting" | "open" | "lost" | "refused", { error, retryMs })`.
 * Returns `{ close(), lastId }`.
 */
export function follow(path, { query, lastId = "", onEvent, onState = () => {}, reads } = {}) {
  const self = { lastId, isClosed: false, tries: 0, abort: null, wake: null, close };
  const watchHidden = hiddenWatch(self);
  run();
  return self;

  function close() {
    self.isClosed = true;
    watchHidden.end();
    self.abort?.abort();
    self.wake?.();
  }

  async function run() {
    while (!self.isClosed) {
      await watchHidden.shown();
      if (self.isClosed) return;
      const began = Date.now();
      onState("connecting", { error: null, retryMs: null });
      const error = await connect(self, { path, query, reads, onEvent, onState });
      if (self.isClosed) return;
      if (error?.status >= 400 && error.status < 500 && ![408, 425, 429].includes(error.status)) {
        onState("refused", { error, retryMs: null }); // another try needs another token, or another address
        return;
      }
      self.tries = Date.now() - began > STEADY_MS ? 0 : self.tries + 1;
      const retryMs = Math.max(error?.retryAfterMs ?? 0, watchHidden.isAway() ? 0 : backoff(self.tries, Math.random()));
      if (!watchHidden.isAway()) onState("lost", { error, retryMs });
      await pause(self, retryMs);
    }
  }
}

async function connect(self, { path, query, reads, onEvent, onState }) {
  const abort = new AbortController();
  self.abort = abort;
  let timer = setTimeout(() => abort.abort(), QUIET_MS);
  let ended = null;
  const reader = eventReader((type, data, id) => {
    if (id !== null) self.lastId = id;
    if (!data || self.isClosed || abort.signal.aborted) return;
    const facts = JSON.parse(data);
    if (type === "close") ended = new Error(facts.detail || facts.reason || "the stream has ended");
    else deliver(onEvent, type, facts, id);
  });
  try {
    const headers = { Accept: "text/event-stream" };
    if (self.lastId) headers["Last-Event-ID"] = self.lastId;
    const response = await fetch(addressOf(path, query), {
      cache: "no-store",
      headers: headersOf({ headers, reads }),
      signal: abort.signal,
    });
    answered(response);
    if (!response.ok) return await refusalOf(response);
    onState("open", { error: null, retryMs: null });
    const body = response.body.pipeThrough(new TextDecoderStream()).getReader();
    while (!ended && !self.isClosed) {
      const { value, done } = await body.read();
      if (done) break;
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), QUIET_MS);
      reader.push(value);
    }
    return ended;
  } catch (error) {
    return error instanceof TypeError && !abort.signal.aborted ? unreachable(error) : error;
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

/** A mistake in what takes the events is seen in the console, and does not end the stream: the next event may be fine. */
function deliver(onEvent, type, facts, id) {
  try {
    onEvent(type, facts, id);
  } catch (error) {
    reportError(error);
  }
}

function pause(self, ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    self.wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}

/** While the page is hidden for long, its stream is given back: a browser has few connections, and the server counts them. */
function hiddenWatch(self) {
  let timer = 0;
  let away = false;
  let waiting = null;
  const turn = () => {
    clearTimeout(timer);
    if (document.hidden) {
      timer = setTimeout(() => {
        away = true;
        self.abort?.abort();
      }, HIDDEN_MS);
      return;
    }
    away = false;
    waiting?.();
    self.wake?.();
  };
  const online = () => self.wake?.();
  document.addEventListener("visibilitychange", turn);
  addEventListener("online", online);
  return {
    isAway: () => away,
    shown: () => (away ? new Promise((resolve) => { waiting = resolve; }) : Promise.resolve()),
    end: () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", turn);
      removeEventListener("online", online);
      waiting?.();
    },
  };
}
