/** What runs ask, and the answers of those who may give them. */
import { about, ask, generation } from "../core/api.js";
import { plural } from "../core/format.js";
import { useStream } from "../core/live.js";
import { attention } from "../ui/attention.js";
import { Loaded, Paged, useLoad, usePages } from "../ui/load.js";
import { Button, Empty, html, Page, toast, useEffect, useMemo, useRef, useState } from "../ui/parts.js";
import { settled } from "./approvals_model.js";
import { ApprovalCard, Decided, NeedsToken, told } from "./approvals_parts.js";
import { pacer } from "./overview_model.js";

const AGAIN_MS = 10000;

/** All requests that wait, of every session. */
export default function Approvals() {
  const [version, setVersion] = useState(0);
  const next = () => setVersion((count) => count + 1);
  const hear = (type) => {
    if (type === "gap" || type.startsWith("approval.") || type.startsWith("confirmation_")) next();
  };
  useStream("/events", hear, { query: { replay: "none" }, onOpen: next });
  const load = useApprovals({}, version);
  const waiting = load.data?.items.length ?? 0;
  useEffect(() => {
    if (load.data) attention.value = { ...attention.value, approvals: waiting };
  }, [load.data]);
  const empty = html`<${Empty} title="Nobody asks for anything">
    <p>When an agent wants to do something that its permissions say <code>ask</code> about, it waits here for your answer.</p></${Empty}>`;
  const words = waiting ? `${plural(waiting, "request waits", "requests wait")} for an answer.` : "Nothing waits for an answer.";
  const lead = load.data ? words : "";
  return html`<${Page} title="Approvals" class="approvals" lead=${html`<span aria-live="polite">${lead}</span>`}>
    ${about.value && waiting ? html`<${NeedsToken} />` : null}
    <${Loaded} load=${load} empty=${empty}>${(data) => html`<div class="stack">${data.items.map((each) => html`
      <${ApprovalCard} key=${each.approval_id} approval=${each} onDone=${load.reload} />`)}</div>`}</${Loaded}>
    <${History} version=${version} />
  </${Page}>`;
}

/** The requests of one session and its sub-agents, for its chat; nothing when there are none. */
export function ApprovalsOf({ sessionKey, version = 0 }) {
  const load = useApprovals({ session: sessionKey }, version);
  const items = load.data?.items ?? [];
  if (!items.length) return null;
  return html`<section class="stack approvals-of" aria-label="Requests for approval">
    <${NeedsToken} />
    ${items.map((each) => html`<${ApprovalCard} key=${each.approval_id} approval=${each} onDone=${load.reload} isInChat=${true} />`)}
  </section>`;
}

/** Requests that wait; whoever looks at one that somebody else decides, or that runs out of time, is told so. */
function useApprovals(query, version) {
  const load = useLoad((signal) => ask("/approvals", { query, signal }), [query.session ?? ""]);
  const pace = useMemo(() => pacer(load.reload), [load.reload]);
  useEffect(() => () => pace.stop(), [pace]);
  useEffect(() => {
    if (version) pace.told();
  }, [pace, version]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || pace.told(), AGAIN_MS);
    return () => clearInterval(timer);
  }, [pace]);
  const before = useRef({ items: [], place: generation.value });
  useEffect(() => {
    if (!load.data) return;
    const { items, place } = before.current;
    if (place === generation.value) settled(items, load.data.items).forEach(tellOf);
    before.current = { items: load.data.items, place: generation.value };
  }, [load.data]);
  return load;
}

async function tellOf(id) {
  if (told.has(id)) return;
  told.add(id);
  try {
    const now = await ask(`/approvals/${encodeURIComponent(id)}`);
    if (now.state === "pending") told.delete(id);
    else if (now.state === "expired") toast(`${now.action}: nobody answered in time.`, { tone: "warn" });
    else {
      const by = now.answered_by ? ` by ${now.answered_by}` : "";
      toast(`${now.action}: ${now.state}${by}.`, { tone: now.state === "approved" ? "ok" : "warn" });
    }
  } catch {
    // it belongs to a place that is not looked at any more
  }
}

function History({ version }) {
  const [isOpen, setOpen] = useState(false);
  return html`<section class="stack approvals-history">
    <div class="row"><${Button} kind="quiet" icon=${isOpen ? "down" : "right"} aria-expanded=${String(isOpen)}
      onClick=${() => setOpen(!isOpen)}>Decided earlier</${Button}></div>
    ${isOpen ? html`<${DecidedList} version=${version} />` : null}
  </section>`;
}

function DecidedList({ version }) {
  const read = (after, signal) => ask("/approvals", { query: { state: "decided", limit: 25, after }, signal });
  const pages = usePages(read, []);
  const pace = useMemo(() => pacer(pages.reload), [pages.reload]);
  useEffect(() => () => pace.stop(), [pace]);
  useEffect(() => {
    if (version) pace.told();
  }, [version]);
  const empty = html`<${Empty} title="Nothing was decided yet" />`;
  return html`<${Paged} pages=${pages} empty=${empty}>${(items) => html`<table class="table">
    <thead><tr><th scope="col">Asked</th><th scope="col">What</th><th scope="col">Session</th><th scope="col">Outcome</th></tr></thead>
    <tbody>${items.map((each) => html`<${Decided} key=${each.approval_id} approval=${each} />`)}</tbody>
  </table>`}</${Paged}>`;
}
