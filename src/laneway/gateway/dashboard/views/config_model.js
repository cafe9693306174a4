/** The configuration: search, groups, and where each value came from. Pure: no page is needed. */

/** A value as one line of text. */
export function valueText(setting) {
  if (setting.hidden) return "hidden";
  const note = /^\((.*)\)$/.exec(setting.origin.note ?? "")?.[1];
  return setting.value === null && note ? note.replaceAll("`", "") : plain(setting.value);
}

/** A text with names between backticks as parts: `[[text, isName]]`. */
export function wordsOf(text) {
  return text.split("`").map((part, index) => [part, index % 2 === 1]).filter(([part]) => part);
}

/** Any value as one would write it. */
export function plain(value) {
  if (value === null || value === undefined) return "not set";
  if (typeof value === "string") return value === "" ? "empty" : value;
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** Where a value came from, in words: "agent.yaml:12", "LANEWAY_PORT", "default". */
export function originText({ layer, file, line, name, note }) {
  if (layer === "default") return note && !note.startsWith("(") ? `default ${note}` : "default";
  if (file) return line ? `${fileName(file)}:${line}` : fileName(file);
  if (name) return layer === "environment" ? `variable ${name}` : `option ${name}`;
  return layer;
}

/** The last part of a path. */
export function fileName(path) {
  return path.split(/[\\/]/).at(-1);
}

/** The same in full, for titles. */
export function originTitle({ layer, file, line, column, name, note }) {
  const place = file ? `${file}${line ? `:${line}` : ""}${column ? `:${column}` : ""}` : name;
  return [layer, place, note].filter(Boolean).join(" ");
}

/** The tone of an origin: what somebody has said stands out. */
export function originTone({ layer }) {
  return { default: "off", file: "run", workspace: "run", environment: "wait", "command line": "warn" }[layer] ?? "off";
}

/** What fits a search (every word somewhere) and a choice of origins; `only`: "all", "changed", or a layer. */
export function findSettings(settings, text, only) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return settings.filter((each) => {
    if (only === "changed" && each.is_default) return false;
    if (!["all", "changed"].includes(only) && each.origin.layer !== only) return false;
    const all = `${each.setting} ${valueText(each)} ${originTitle(each.origin)} ${each.says}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
}

/** Settings by their first word, in the order they came in. */
export function groupSettings(settings) {
  const groups = new Map();
  for (const each of settings) {
    const name = each.setting.includes(".") ? each.setting.split(".")[0] : "agent";
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(each);
  }
  return [...groups].map(([name, items]) => ({ name, items }));
}

/** How many there are of each origin: `[[layer, count]]`, without those that nothing came from. */
export function countLayers(settings) {
  const counts = new Map();
  for (const each of settings) counts.set(each.origin.layer, (counts.get(each.origin.layer) ?? 0) + 1);
  return [...counts];
}
