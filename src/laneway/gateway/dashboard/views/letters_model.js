/** Dead letters without a page: which are chosen, what is asked for, what came of it. */

/** At most so many letters in one request. */
export const MANY = 500;

const HOUR = 3600000;
const AGES = { hour: HOUR, day: 24 * HOUR, week: 7 * 24 * HOUR };

/** Nothing is chosen. */
export const NOBODY = { ids: new Set(), anchor: null };

/**
 * Choose a letter, or not any more. With `shift` everything between it and the one before becomes what it becomes,
 * as in a list of files. `order` are the ids as they are shown.
 */
export function toggled(choice, order, id, shift = false) {
  const ids = new Set(choice.ids);
  const isOn = !ids.has(id);
  const from = shift && choice.anchor !== null ? order.indexOf(choice.anchor) : -1;
  const to = order.indexOf(id);
  const range = from >= 0 && to >= 0 ? order.slice(Math.min(from, to), Math.max(from, to) + 1) : [id];
  for (const each of range) {
    if (isOn) ids.add(each);
    else ids.delete(each);
  }
  return { ids, anchor: id };
}

/** Choose all that are shown; if they all are already, none. */
export function toggledAll(choice, order) {
  const isAll = order.length > 0 && order.every((id) => choice.ids.has(id));
  return isAll ? NOBODY : { ids: new Set(order), anchor: null };
}

/** What is chosen, without letters that are not there any more. */
export function kept(choice, order) {
  const there = new Set(order);
  const ids = new Set([...choice.ids].filter((id) => there.has(id)));
  if (ids.size === choice.ids.size) return choice;
  return { ids, anchor: there.has(choice.anchor) ? choice.anchor : null };
}

/** Pieces of a list, each of at most `size`. */
export function pieces(ids, size = MANY) {
  const list = [...ids];
  return Array.from({ length: Math.ceil(list.length / size) }, (_, at) => list.slice(at * size, (at + 1) * size));
}

/** What a filter of the page asks the server for; `now` is its clock. */
export function queryOf(filter, now) {
  const query = {};
  for (const name of ["kind", "session", "lane", "tool", "text", "error"]) {
    const value = String(filter[name] ?? "").trim();
    if (value) query[name] = value;
  }
  if (AGES[filter.age]) query.since_ms = Math.floor(now - AGES[filter.age]);
  if (filter.age === "older") query.until_ms = Math.floor(now - AGES.week);
  return query;
}

/** Whether a filter leaves anything out. */
export function isNarrow(filter) {
  return Object.keys(queryOf(filter, 0)).length > 0;
}

/** The filter of an address, and nothing else. */
export function filterOf(query) {
  const names = ["kind", "session", "lane", "tool", "text", "error", "age"];
  return Object.fromEntries(names.filter((name) => query?.[name]).map((name) => [name, String(query[name])]));
}

/** What became of many letters, in numbers and by letter: those first that need another look. */
export function summed(items) {
  const counts = { sent: 0, purged: 0, gone: 0, refused: 0 };
  for (const each of items) counts[each.outcome] = (counts[each.outcome] ?? 0) + 1;
  const rank = { refused: 0, gone: 1, sent: 2, purged: 3 };
  const rows = [...items].sort((a, b) => (rank[a.outcome] ?? 0) - (rank[b.outcome] ?? 0));
  return { counts, rows };
}

/** The same in a sentence. */
export function sentenceOf({ counts }) {
  const parts = [];
  if (counts.sent) parts.push(`${counts.sent} sent again`);
  if (counts.purged) parts.push(`${counts.purged} forgotten`);
  if (counts.refused) parts.push(`${counts.refused} refused`);
  if (counts.gone) parts.push(`${counts.gone} gone already`);
  return parts.length ? `${parts.join(", ")}.` : "Nothing was left to do.";
}

/** What can be changed of a letter: "text" of a message, "args" of a job, nothing of a call. */
export function editable(letter) {
  if (letter.status !== "open") return "";
  return letter.kind === "message" ? "text" : letter.kind === "job" ? "args" : "";
}

/** What is wrong with a text that somebody typed for a letter; "" if nothing is. */
export function flawOf(what, text) {
  if (what === "text") return text.trim() ? "" : "A message has to say something.";
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
  return Array.isArray(value) ? "" : "This has to be a list, as [\"first\", 2].";
}

/** The change that the server is asked for. */
export function changeOf(what, text) {
  return what === "text" ? { text } : { args: JSON.parse(text) };
}

/** What a letter says, in a text. */
export function contentOf(letter) {
  if (letter.kind === "message") return letter.text ?? "";
  return JSON.stringify(letter.arguments ?? null, null, 2);
}
