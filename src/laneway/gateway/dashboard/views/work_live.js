/** What tasks, workers and letters share: read again when something was told, and now and then for what nobody tells. */
import { useEffect, useMemo } from "../ui/parts.js";
import { pacer } from "./overview_model.js";

/** Reads again every `everyMs` while the page is seen, and soon after `told()`; never twice at once. Returns `told`. */
export function useRefresh(read, everyMs) {
  const pace = useMemo(() => pacer(read), [read]);
  useEffect(() => () => pace.stop(), [pace]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || pace.told(), everyMs);
    return () => clearInterval(timer);
  }, [pace, everyMs]);
  return pace.told;
}
