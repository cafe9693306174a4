/** The stream of a view as a hook, and the state of the page's link to the server. */
import { computed, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { token } from "./access.js";
import { ask, place, reach } from "./api.js";
import { backoff } from "./sse.js";
import { follow } from "./streams.js";

const NONE = { state: "none", since: 0, error: null, retryMs: null };
const stream = signal(NONE);

/**
 * How the page stands with the server: `{ state, since, error, retryMs }`.
 * States: "open", "connecting", "lost" (comes back by itself), "refused" (needs another token or address).
 */
export const link = computed(() => {
  if (!reach.value.ok && stream.value.state !== "open") {
    return { state: "lost", since: reach.value.since, error: reach.value.error, retryMs: stream.value.retryMs };
  }
  return stream.value.state === "none" ? { ...NONE, state: "open" } : stream.value;
});

/**
 * Follow a stream as long as a view is there. `handler(type, facts, id)` for each event; `onOpen(isAgain)` after each
 * connect: read again what is not told by events. A view has one stream.
 */
export function useStream(path, handler, { query, onOpen, enabled = true, reads } = {}) {
  const latest = useRef({});
  latest.current = { handler, onOpen };
  const asked = JSON.stringify([query ?? null, reads ?? null]);
  const who = `${token.value} ${place.value.workspace} ${place.value.tenant}`;
  useEffect(() => {
    if (!enabled) return undefined;
    let isAgain = false;
    const set = (state, { error, retryMs }) => {
      const before = stream.value;
      const isStill = before.state === state || (before.state === "lost" && state === "connecting");
      // A stream that is lost stays so until it is open again: every try in between is no news.
      if (isStill) stream.value = { ...before, error: error ?? before.error, retryMs };
      else stream.value = { state, since: Date.now(), error, retryMs };
    };
    const followed = follow(path, {
      query: JSON.parse(asked)[0] ?? undefined,
      reads,
      onEvent: (type, facts, id) => latest.current.handler?.(type, facts, id),
      onState: (state, facts) => {
        set(state, facts);
        if (state !== "open") return;
        latest.current.onOpen?.(isAgain);
        isAgain = true;
      },
    });
    return () => {
      followed.close();
      stream.value = NONE;
    };
  }, [path, asked, who, enabled]);
}

/** While nobody answers and no stream tries, ask now and then: the page comes back without anybody doing anything. */
export function watchReach() {
  let timer = 0;
  let tries = 0;
  return reach.subscribe(({ ok }) => {
    clearTimeout(timer);
    if (ok) {
      tries = 0;
      return;
    }
    const again = () => {
      timer = setTimeout(() => {
        tries += 1;
        ask("/about", { reads: "" }).catch(() => {}).finally(() => {
          if (!reach.value.ok) again();
        });
      }, backoff(tries, Math.random()));
    };
    again();
  });
}
