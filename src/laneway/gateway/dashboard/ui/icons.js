/** Small drawings, as paths on a grid of 16. They say nothing that words beside them do not say. */
import { h } from "preact";

const PATHS = {
  play: "M5 3.5v9l7-4.5z",
  pause: "M5 3.5v9M11 3.5v9",
  stop: "M4 4h8v8H4z",
  check: "M3 8.5l3.5 3.5L13 4.5",
  x: "M4 4l8 8M12 4l-8 8",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  refresh: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7L14 14",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  edit: "M3 13l.7-3L10.5 3.2l2.3 2.3L6 12.3z",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5",
  up: "M8 13V3M4 7l4-4 4 4",
  down: "M8 3v10M4 9l4 4 4-4",
  left: "M10 3L5 8l5 5",
  right: "M6 3l5 5-5 5",
  send: "M2.5 8L13.5 3 10 13.5 7.5 9z",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.2l2.2 1.3",
  warn: "M8 2.5L14.5 13.5h-13zM8 6.5v3.5M8 11.8v.2",
  menu: "M2.5 4h11M2.5 8h11M2.5 12h11",
  key: "M10 9.5A3.5 3.5 0 1 0 6.8 7.4L2.5 11.7V13.5h2v-1.7h1.7v-1.7h1.4zM10.8 5.2v.1",
  help: "M5.8 6a2.2 2.2 0 1 1 3.2 2c-.7.4-1 .8-1 1.6M8 12v.2",
  steer: "M2.5 12.5c5 0 4-8 10-8M9.5 1.8l3 2.7-3 2.7",
  hold: "M4 7.5V4.2M6.7 7V3M9.3 7V3.2M12 8V4.5M4 7.5l-1.3 1L5 13h6l1-5",
  link: "M6.5 9.5l3-3M7 4.8l1-1a2.8 2.8 0 0 1 4 4l-1 1M9 11.2l-1 1a2.8 2.8 0 0 1-4-4l1-1",
};

/** A drawing: `name` is one of `PATHS`. */
export function Icon({ name }) {
  if (!PATHS[name]) return null;
  return h("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" }, h("path", { d: PATHS[name] }));
}
