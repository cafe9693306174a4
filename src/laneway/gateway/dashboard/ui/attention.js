/** How many things need somebody, for the navigation. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ask, generation, Refused } from "../core/api.js";
import { VIEWS } from "../routes.js";

const EVERY_MS = 10000;

/** Counts by view, as they were told last. A view that knows better may set its own: `attention.value = { … }`. */
export const attention = signal({});

/** Counts by view. Asked now and then while the page is seen; a server that does not tell is not asked again. */
export function useAttention(isReady) {
  useEffect(() => {
    if (!isReady) return undefined;
    let timer = 0;
    let isOver = false;
    const abort = new AbortController();
    const read = async () => {
      clearTimeout(timer);
      if (document.hidden || isOver) return;
      try {
        attention.value = countsOf(await ask("/attention", { signal: abort.signal }));
      } catch (error) {
        if (error instanceof Refused) {
          attention.value = {};
          isOver = error.status === 404;
        }
      }
      if (!isOver && !abort.signal.aborted) timer = setTimeout(read, EVERY_MS);
    };
    read();
    document.addEventListener("visibilitychange", read);
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", read);
    };
  }, [isReady, generation.value]);
  return attention.value;
}

function countsOf(answer) {
  return Object.fromEntries(
    VIEWS.filter((each) => each.attention).map((each) => [each.name, answer?.[each.attention]?.count ?? 0]),
  );
}
