/** The third step of the guide: several sessions at once, until the lane that runs turns is full and some wait. */
import { about, ask, newKey, place } from "../core/api.js";
import { plural } from "../core/format.js";
import { href } from "../core/router.js";
import { useLoad } from "../ui/load.js";
import { Button, ErrorBox, html, Json, Text, toast, useEffect, useRef } from "../ui/parts.js";

const EVERY_MS = 1000;
const LANE = "main";

function workspaceName() {
  return place.value.workspace || about.value?.workspaces[0]?.name || "";
}

async function readLane(signal) {
  if (!about.value?.shared) return null; // lanes belong to all tenants: not everybody may see them
  const { items } = await ask("/lanes", { signal, query: { limit: 1000 } });
  return items.find((each) => each.name === `${workspaceName()}/${LANE}`) ?? items.find((each) => each.name === LANE) ?? null;
}

/** Send as many messages as the lane has slots and two more, each in its own session, and show who runs and who waits. */
export function Filling({ course, change, text, countOf }) {
  const lane = useLoad(readLane, []);
  const now = useLoad((signal) => ask("/now", { signal }), []);
  const own = (now.data?.at_work ?? []).filter((each) => each.session_key.startsWith(`${course.key}-`));
  const waiting = (now.data?.groups ?? []).find((each) => each.why === "slot" && each.examples.some((key) => key.startsWith(course.key)));
  const isBusy = own.length > 0 || Boolean(waiting);
  const sent = useRef("");
  useEffect(() => {
    if (!course.many) return undefined;
    const timer = setInterval(() => document.hidden || (now.reload(), lane.reload()), EVERY_MS);
    return () => clearInterval(timer);
  }, [course.many]);
  const count = countOf(lane.data?.concurrency);
  const send = async () => {
    sent.current = sent.current || newKey();
    const posts = Array.from({ length: count }, (_, at) =>
      ask(`/sessions/${encodeURIComponent(`${course.key}-${at + 1}`)}/messages`, { body: { text }, key: `${sent.current}-${at}` }));
    await Promise.all(posts);
    sent.current = "";
    change({ ...course, many: course.many + 1 });
    toast(`${plural(count, "message was", "messages were")} sent.`);
    now.reload();
  };
  const width = lane.data ? plural(lane.data.concurrency, "slot") : "a few slots";
  return html`<p>Every run needs a slot of lane <code>${lane.data?.name ?? LANE}</code>, which has ${width}.${" "}
      ${count} messages are sent to as many sessions: what finds no slot waits, and says why.</p>
    <${Json} value=${text} />
    <div class="row"><${Button} kind=${course.many ? "plain" : "primary"} icon="send" onClick=${send} disabled=${isBusy}>
      Send ${count} messages</${Button}> <a href=${href("lanes")}>Watch the lanes</a></div>
    ${now.error ? html`<${ErrorBox} error=${now.error} retry=${now.reload} />` : null}
    ${course.many ? html`<div class="stack" role="group" aria-label="The lane">
      <${Slots} width=${lane.data?.concurrency ?? own.length} running=${own} others=${(lane.data?.running ?? 0) - own.length} />
      <p class="dim" role="status">${wordsOf(own, waiting)}</p></div>` : null}`;
}

function wordsOf(own, waiting) {
  if (!own.length && !waiting) return "All of them have ended.";
  const runs = plural(own.length, "runs", "run");
  return waiting ? `${runs}, ${plural(waiting.count, "waits", "wait")}: ${waiting.words}.` : `${runs}, nobody waits.`;
}

/** Slots of the lane; `others` of them are taken by runs that were not sent here, such as that of the first step. */
function Slots({ width, running, others }) {
  const isTaken = (at) => at < running.length + others;
  const nameOf = (at) => running[at]?.session_key.split("-").at(-1) ?? (isTaken(at) ? "other" : "");
  const cells = Array.from({ length: Math.min(width, 24) }, (_, at) => nameOf(at));
  return html`<ul class="guide-slots">${cells.map((name, at) => html`<li key=${at} class=${name ? "guide-slot guide-taken" : "guide-slot"}>
    ${name ? html`<${Text}>${name}</${Text}>` : html`<span class="visually-hidden">free</span>`}
  </li>`)}</ul>`;
}
