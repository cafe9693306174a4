/** The labels that the host of a session gave it: whose it is, and what it belongs to. */
import { labelsOf } from "../core/format.js";
import { html, Text } from "./parts.js";

/** Each label that is set, as a chip; nothing if there is none. */
export function Labels({ identity }) {
  const found = labelsOf(identity);
  if (!found.length) return null;
  return html`<span class="labels">${found.map(([name, value]) => html`<span key=${name} class="chip" title=${`${name}: ${value}`}>
    <span class="dim">${name}</span> <${Text}>${value}</${Text}></span>`)}</span>`;
}
