/** Reading from the server in a view: one value, or a list in pages. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { generation } from "../core/api.js";
import { Button, Empty, ErrorBox, html, Loading } from "./parts.js";

/**
 * Read a value: `fn(signal)` returns a promise. Returns `{ data, error, loading, reload, set }`.
 * An answer to an older question never wins; what is there stays while it is read again. It is read again by itself
 * when the workspace or the token is another, and when the server is back.
 */
export function useLoad(fn, deps = []) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const self = useRef({ turn: 0, abort: null, fn });
  self.current.fn = fn;
  const reload = useCallback(async () => {
    const turn = (self.current.turn += 1);
    self.current.abort?.abort();
    const abort = (self.current.abort = new AbortController());
    const isLatest = () => turn === self.current.turn;
    setState((before) => ({ ...before, loading: true }));
    try {
      const data = await self.current.fn(abort.signal);
      if (isLatest()) setState({ data, error: null, loading: false });
    } catch (error) {
      if (isLatest()) setState((before) => ({ ...before, error, loading: false }));
    }
  }, []);
  const set = useCallback((next) => {
    setState((before) => ({ ...before, data: typeof next === "function" ? next(before.data) : next }));
  }, []);
  const about = useRef(null);
  useEffect(() => {
    if (about.current) setState({ data: null, error: null, loading: true }); // another question: the old answer is not its
    about.current = true;
  }, deps);
  useEffect(() => {
    reload();
  }, [...deps, generation.value]);
  useEffect(() => () => {
    self.current.turn += 1;
    self.current.abort?.abort();
  }, []);
  return { ...state, reload, set };
}

/** Renders what a load says: loading, an error with a way out, nothing (`empty`), or `children(data)`. */
export function Loaded({ load, empty, children }) {
  const show = Array.isArray(children) ? children.find((each) => typeof each === "function") : children;
  if (load.data === null && load.error) return html`<${ErrorBox} error=${load.error} retry=${load.reload} />`;
  if (load.data === null && load.loading) return html`<${Loading} />`;
  const stale = load.error ? html`<${ErrorBox} error=${load.error} retry=${load.reload} />` : null;
  if (empty && isEmpty(load.data)) return html`${stale}${typeof empty === "string" ? html`<${Empty} title=${empty} />` : empty}`;
  return html`${stale}${show(load.data)}`;
}

function isEmpty(data) {
  if (data === null || data === undefined) return true;
  const items = Array.isArray(data) ? data : data.items;
  return Array.isArray(items) && items.length === 0;
}

/**
 * Read a list in pages: `fetchPage(after, signal)` resolves with `{ items, next }`.
 * Returns `{ items, more, loadMore, error, loading, reload, update }`; `items` is null until the first page is there;
 * `update(fn)` changes the items that are there; `reload()` reads as many as there were.
 */
export function usePages(fetchPage, deps = []) {
  const [state, setState] = useState({ items: null, next: null, error: null, loading: true });
  const self = useRef({ turn: 0, abort: null, fetchPage, state });
  Object.assign(self.current, { fetchPage, state });
  const read = useCallback(async (from, known) => {
    const turn = (self.current.turn += 1);
    self.current.abort?.abort();
    const abort = (self.current.abort = new AbortController());
    const wanted = from === null ? (known?.length ?? 0) : 0;
    setState((before) => ({ ...before, loading: true }));
    try {
      let items = from === null ? [] : known;
      let next = from;
      do {
        const page = await self.current.fetchPage(next, abort.signal);
        items = [...items, ...page.items];
        next = page.next ?? null;
      } while (next !== null && items.length < wanted);
      if (turn === self.current.turn) setState({ items, next, error: null, loading: false });
    } catch (error) {
      if (turn === self.current.turn) setState((before) => ({ ...before, error, loading: false }));
    }
  }, []);
  const reload = useCallback(() => read(null, self.current.state.items), []);
  const loadMore = useCallback(async () => {
    const { items, next, loading } = self.current.state;
    if (next !== null && !loading) await read(next, items);
  }, []);
  const update = useCallback((fn) => {
    setState((before) => (before.items === null ? before : { ...before, items: fn(before.items) }));
  }, []);
  const isBegun = useRef(false);
  useEffect(() => {
    if (isBegun.current) setState({ items: null, next: null, error: null, loading: true });
    isBegun.current = true;
    read(null, null);
  }, deps);
  const first = useRef(true);
  useEffect(() => {
    if (!first.current) reload();
    first.current = false;
  }, [generation.value]);
  useEffect(() => () => {
    self.current.turn += 1;
    self.current.abort?.abort();
  }, []);
  return { items: state.items, more: state.next !== null, loadMore, error: state.error, loading: state.loading, reload, update };
}

/** The end of a list in pages: a button for more, or why there is none. */
export function More({ pages }) {
  if (pages.error && pages.items) return html`<${ErrorBox} error=${pages.error} retry=${pages.loadMore} />`;
  if (!pages.more) return null;
  return html`<div class="more"><${Button} onClick=${pages.loadMore} busy=${pages.loading}>Show more</${Button}></div>`;
}

/** Renders a list in pages like `Loaded`; `children(items)`. */
export function Paged({ pages, empty, children }) {
  const load = { data: pages.items, error: pages.items ? null : pages.error, loading: pages.loading, reload: pages.reload };
  return html`<${Loaded} load=${load} empty=${empty}>${children}</${Loaded}><${More} pages=${pages} />`;
}
