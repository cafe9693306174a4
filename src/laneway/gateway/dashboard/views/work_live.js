/** What tasks, workers and letters share: read again when something was told, and now and then for what nobody tells. */
import { html, useEffect, useMemo, useState } from "../ui/parts.js";
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

/** A filter: it is there where there is room, and folded on a phone unless it leaves something out. */
export function Folded({ isNarrow, children }) {
  const [isOpen] = useState(() => isNarrow || matchMedia("(min-width: 641px)").matches);
  return html`<details class="work-filter" open=${isOpen}><summary>Filter</summary>${children}</details>`;
}

/** A long id, cut in the middle; the whole is its title. */
export function shortId(id) {
  return id.length > 20 ? `${id.slice(0, 11)}…${id.slice(-5)}` : id;
}
