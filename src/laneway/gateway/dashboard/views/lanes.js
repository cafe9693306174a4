/** Live lanes: what runs, what waits, and why; pause, resize and cancel in place. */
import { ask } from "../core/api.js";
import { link, useStream } from "../core/live.js";
import { number, plural, shown } from "../core/format.js";
import { useKeys } from "../ui/keys.js";
import { useLoad } from "../ui/load.js";
import { Badge, Button, Empty, ErrorBox, html, Loading, Page, Since, tell, Text } from "../ui/parts.js";
import { useEffect, useMemo, useRef, useState } from "../ui/parts.js";
import { resize, turn } from "./lanes_acts.js";
import { JobDialog, LaneDialog, Plots } from "./lanes_details.js";
import { Rows } from "./lanes_list.js";
import { filled, fold, longestWait, noTraffic, rowsOf, seriesOf, shortName, UNLIMITED, whyText, withStep } from "./lanes_model.js";
import { Head, LaneRow, SessionRow } from "./lanes_parts.js";

const WIDE = matchMedia("(min-width: 861px)");
const HEIGHTS = { wide: { head: 40, session: 40, lane: 58 }, narrow: { head: 44, session: 48, lane: 122 } };

function useWide() {
  const [isWide, setWide] = useState(WIDE.matches);
  useEffect(() => {
    const turned = () => setWide(WIDE.matches);
    WIDE.addEventListener("change", turned);
    return () => WIDE.removeEventListener("change", turned);
  }, []);
  return isWide;
}

/** The traffic as it moves: `{ traffic, version, step, isThere }`. */
function useTraffic(onStep) {
  const traffic = useRef(noTraffic());
  const [version, setVersion] = useState(0);
  const frame = useRef(0);
  useStream("/traffic/events", (type, facts) => {
    if (type === "step") {
      onStep(facts);
      return;
    }
    fold(traffic.current, type, facts);
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      setVersion(traffic.current.version);
    });
  });
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  return { traffic: traffic.current, version, isThere: version > 0 };
}

/** The view. `#/lanes/<name>` shows one lane from near. */
export default function Lanes({ params, query }) {
  const [step, setStep] = useState(null);
  const { traffic, version, isThere } = useTraffic(setStep);
  const [filter, setFilter] = useState(query?.filter ?? "");
  const [onlyBusy, setOnlyBusy] = useState(false);
  const [opened, setOpened] = useState(new Map());
  const [active, setActive] = useState("");
  const [drafts, setDrafts] = useState(new Map());
  const [job, setJob] = useState(null);
  const [near, setNear] = useState(params[0]); // in the address only when somebody came with it: another one is another view
  const search = useRef(null);
  const isWide = useWide();
  const heights = isWide ? HEIGHTS.wide : HEIGHTS.narrow;
  const rows = useMemo(() => rowsOf(traffic, { filter, onlyBusy, opened }), [version, filter, onlyBusy, opened]);

  const fold_ = (row) => setOpened((before) => new Map(before).set(row.id, !row.open));
  const draft = (track, wanted) => setDrafts((before) => {
    const next = new Map(before);
    if (wanted === null || wanted === track.concurrency) next.delete(track.name);
    else next.set(track.name, wanted);
    return next;
  });
  const show = (track) => setNear(track.name);
  const chosen = rows.find((row) => row.type === "lane" && row.id === active)?.track;
  useLaneKeys({ rows, active, setActive, chosen, drafts, draft, show, search });

  const isCut = Boolean(filter) || onlyBusy;
  const showAll = () => {
    setFilter("");
    setOnlyBusy(false);
  };
  const track = near === undefined ? null : traffic.lanes.get(near) ?? null;
  const lost = link.value.state === "refused" ? link.value.error : null;
  return html`<${Page} title="Lanes" lead=${html`<${Lead} traffic=${traffic} isThere=${isThere} show=${show} />`} class="lanes">
    ${lost ? html`<${ErrorBox} error=${lost} />` : null}
    <${Totals} step=${step} />
    <div class="toolbar lane-tools">
      <input type="search" class="lane-filter" placeholder="Filter by lane, session or tool" aria-label="Filter lanes" value=${filter}
        ref=${search} onInput=${(event) => setFilter(event.target.value)} />
      <label class="lane-check"><input type="checkbox" checked=${onlyBusy}
        onChange=${(event) => setOnlyBusy(event.target.checked)} /> Only busy</label>
      <span class="dim num lane-shown">${isThere ? plural(traffic.lanes.size, "lane") : ""}</span>
    </div>
    ${!isThere ? (lost ? null : html`<${Loading} text="Looking at the lanes …" />`)
      : rows.length ? html`<${Rows} rows=${rows} label="Lanes" active=${active} heightOf=${(row) => heights[row.type]} render=${(row) => {
        if (row.type === "head") return html`<${Head} row=${row} onFold=${fold_} />`;
        if (row.type === "session") return html`<${SessionRow} row=${row} onFold=${fold_} onJob=${setJob} />`;
        return html`<${LaneRow} row=${row} isActive=${row.id === active} draft=${drafts.get(row.id)} onDraft=${draft}
          onActive=${(each) => setActive(each.id)} onLane=${show} onJob=${setJob} />`;
      }} />`
      : html`<${Empty} title=${isCut ? "No lane fits" : "There are no lanes"}>
          ${isCut ? html`<${Button} onClick=${showAll}>Show all lanes</${Button}>` : "Send a message, and its session has lanes."}
        </${Empty}>`}
    ${isThere && near !== undefined ? html`<${LaneDialog} key=${near} track=${track ?? filled({ name: near, kind: "session" })} step=${step}
      onClose=${() => setNear(undefined)} onJob=${setJob} />` : null}
    ${job ? html`<${JobDialog} key=${job.id} job=${job} onClose=${() => setJob(null)} />` : null}
  </${Page}>`;
}

/** In one line: what goes on, and what waits longest and why. */
function Lead({ traffic, isThere, show }) {
  if (!isThere) return null;
  const { running, waiting, lent, max_concurrent: cap, draining } = traffic.totals;
  const longest = longestWait(traffic);
  const first = longest?.queue[0];
  const lends = lent ? html`, <b class="num">${number(lent)}</b> lent` : null;
  const most = cap ? html` <span class="num">(at most ${number(cap)} at once)</span>` : null;
  const why = first?.why ? html`, <${Text}>${whyText(first)}</${Text}>` : null;
  return html`<span class="lane-lead">
    <b class="num">${number(running)}</b> running, <b class="num">${number(waiting)}</b> waiting${lends}${most}.
    ${longest ? html` Longest wait: <${Since} ms=${longest.oldest_since_ms} /> in${" "}
      <button type="button" class="lane-link" onClick=${() => show(longest)}>${shown(shortName(longest))}</button>${why}.`
      : waiting ? null : " Nothing waits."}
    ${draining ? html` <${Badge} tone="warn">draining</${Badge}>` : null}</span>`;
}

/** All lanes together over the last quarter of an hour. */
function Totals({ step }) {
  const load = useLoad((signal) => ask("/traffic/history", { reads: "", signal }), []);
  const [series, setSeries] = useState(null);
  useEffect(() => setSeries(load.data ? seriesOf(load.data) : null), [load.data]);
  useEffect(() => {
    if (step) setSeries((before) => before && withStep(before, step));
  }, [step]);
  if (!series) {
    return html`<div class="card lane-totals">${load.error ? html`<${ErrorBox} error=${load.error} retry=${load.reload} />` : null}</div>`;
  }
  return html`<div class="card lane-totals"><${Plots} series=${series} what="all lanes" height=${84} /></div>`;
}

function useLaneKeys({ rows, active, setActive, chosen, drafts, draft, show, search }) {
  const lanes = rows.filter((row) => row.type === "lane");
  const move = (by) => {
    const at = lanes.findIndex((row) => row.id === active);
    const next = lanes[at < 0 ? (by > 0 ? 0 : lanes.length - 1) : Math.min(lanes.length - 1, Math.max(0, at + by))];
    if (next) setActive(next.id);
  };
  const widen = (by) => {
    if (!chosen || chosen.exclusive || chosen.concurrency >= UNLIMITED) return;
    draft(chosen, Math.max(1, (drafts.get(chosen.name) ?? chosen.concurrency) + by));
  };
  const enter = () => {
    if (!chosen) return;
    const wanted = drafts.get(chosen.name);
    if (wanted === undefined) show(chosen);
    else resize(chosen, wanted).then(() => draft(chosen, null)).catch(tell);
  };
  useKeys({
    "/": { run: () => search.current?.focus(), text: "Filter" },
    j: { run: () => move(1), text: "Next lane" },
    k: { run: () => move(-1), text: "Lane before" },
    p: { run: () => chosen && turn(chosen).catch(tell), text: "Pause or resume" },
    "+": { run: () => widen(1), text: "One slot more" },
    "=": { run: () => widen(1) },
    "-": { run: () => widen(-1), text: "One slot less" },
    Enter: { run: enter, text: "Apply, or details" },
    Escape: { run: () => (chosen && drafts.has(chosen.name) ? draft(chosen, null) : setActive("")) },
  }, "Lanes");
}
