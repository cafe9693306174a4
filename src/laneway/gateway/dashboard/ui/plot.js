/** Plots over time, drawn by uPlot, in the colours of the page, with the same in words beside them. */
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { number, tickTime } from "../core/format.js";
import { html } from "./parts.js";
import { isDark } from "./theme.js";

/**
 * `x`: times in milliseconds. `series`: `[{ label, values, color, fill, points }]`, `color` being a CSS variable like "--run";
 * `points`: single values among nulls are seen, too.
 * `format(value)` writes a value. `label` says what is shown. `days`: each time is a day, drawn as bars side by side.
 * `least`: how high the scale goes at least.
 */
export function Plot({ series, x, height = 120, label, format = number, days = false, least = 1 }) {
  const box = useRef(null);
  const plot = useRef(null);
  const shape = JSON.stringify([series.map((each) => [each.label, each.color, each.fill, each.width]), height, days, least]);
  const writes = useRef(format);
  writes.current = format;
  const data = [x.map((ms) => ms / 1000), ...series.map((each) => each.values)];
  const latest = useRef(data);
  latest.current = data;

  useLayoutEffect(() => {
    const node = box.current;
    const options = optionsOf(node, series, { height, days, least, format: (value) => writes.current(value) });
    const made = new uPlot(options, latest.current, node);
    plot.current = made;
    const watcher = new ResizeObserver(() => {
      if (node.clientWidth > 0 && node.clientWidth !== made.width) made.setSize({ width: node.clientWidth, height });
    });
    watcher.observe(node);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, isDark.value]);

  useEffect(() => {
    plot.current?.setData(latest.current);
  }, [x, ...series.map((each) => each.values)]);

  return html`<figure class="plot" role="group" aria-label=${label}>
    <div class="plot-canvas" ref=${box} aria-hidden="true" style=${{ minHeight: `${height}px` }}></div>
    <figcaption class="plot-key">${series.map((each) => html`<span class="plot-name" key=${each.label}>
      <span class="plot-dot" style=${{ background: `var(${each.color || "--accent"})` }}></span>
      ${each.label} <span class="num">${lastOf(each.values, format)}</span></span>`)}</figcaption>
    <p class="visually-hidden">${label}: ${series.map((each) => wordsOf(each, format)).join("; ")}</p>
  </figure>`;
}

function lastOf(values, format) {
  const found = values.findLast((each) => each !== null && each !== undefined);
  return found === undefined ? "–" : format(found);
}

function wordsOf({ label, values }, format) {
  const known = values.filter((each) => each !== null && each !== undefined);
  if (!known.length) return `${label}: nothing yet`;
  return `${label}: now ${format(known.at(-1))}, least ${format(Math.min(...known))}, most ${format(Math.max(...known))}`;
}

const DAY_S = 86400;
const DAYS_APART = [1, 2, 3, 7, 14, 30, 90, 365].map((each) => each * DAY_S);
const dayText = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** Days as bars: each series has its part of the day, and the first and the last day are seen whole. */
function dayOptions(count) {
  const size = Math.min(0.4, 0.7 / count);
  return {
    x: { range: (self, low, high) => [low - DAY_S / 2, high + DAY_S / 2] },
    axis: { incrs: DAYS_APART, values: (self, ticks) => ticks.map((each) => dayText.format(each * 1000)) },
    paths: (index) => uPlot.paths.bars({ size: [size, 40], align: count === 1 ? 0 : index === 0 ? -1 : 1 }),
  };
}

/** Times of an axis, as fine as its steps are. */
function timesOf(self, ticks, axis, space, step) {
  return ticks.map((each) => tickTime(each * 1000, step * 1000));
}

function optionsOf(node, series, { height, format, days, least }) {
  const daily = days ? dayOptions(series.length) : null;
  const style = getComputedStyle(node);
  const color = (name) => style.getPropertyValue(name).trim() || "#888";
  const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: Math.max(1, node.clientWidth),
    height,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: {
      ...(daily ? { x: daily.x } : {}),
      y: { range: (self, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 0, least)] },
    },
    axes: [
      { ...axis, size: 22, space: 60, values: timesOf, ...daily?.axis },
      { ...axis, size: widthOf, values: (self, ticks) => ticks.map((each) => format(each)) },
    ],
    series: [
      {},
      ...series.map((each, index) => ({
        label: each.label,
        ...(daily ? { paths: daily.paths(index) } : {}),
        stroke: color(each.color || "--accent"),
        fill: each.fill ? color(`${each.color || "--accent"}-soft`) : undefined,
        width: each.width ?? 1.5,
        points: { show: each.points ?? false, size: 4 },
        spanGaps: each.points ?? false,
      })),
    ],
  };
}

/** How wide the axis of values is: as its longest label, so that none is cut. */
function widthOf(self, labels) {
  return Math.max(44, 12 + 7 * Math.max(0, ...(labels ?? []).map((each) => `${each}`.length)));
}
