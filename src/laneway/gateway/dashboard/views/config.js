/** The configuration in force: every value, where it came from, what it would be by default, and what was changed since. */
import { about, ask, place } from "../core/api.js";
import { plural } from "../core/format.js";
import { go, href } from "../core/router.js";
import { useKeys } from "../ui/keys.js";
import { Loaded, useLoad } from "../ui/load.js";
import { Badge, Button, Copy, Empty, html, Page, Text, useEffect, useMemo, useRef, useState } from "../ui/parts.js";
import {
  countLayers, fileName, findSettings, groupSettings, originText, originTitle, originTone, plain, valueText, wordsOf,
} from "./config_model.js";

const WORDS = { file: "File", workspace: "Workspace", environment: "Environment", "command line": "Command line", default: "Default" };

/** The view of the configuration. `query.q` and `query.only` are the search. */
export default function Config({ query }) {
  const load = useLoad((signal) => ask("/config", { signal }), []);
  const [text, setText] = useState(query?.q ?? "");
  const [only, setOnly] = useState(query?.only ?? "all");
  const field = useRef(null);
  useKeys({ "/": { run: () => field.current?.focus(), text: "Search" } }, "Configuration");
  useEffect(() => {
    go(href("config", { q: text || undefined, only: only === "all" ? undefined : only }), { replace: true });
  }, [text, only]);
  const name = load.data?.workspace ?? place.value.workspace;
  const isMany = (about.value?.workspaces.length ?? 0) > 1;
  const lead = html`What ${isMany ? html`workspace <${Text}>${name}</${Text}>` : "this server"} goes by, and where each value came from.
    Secrets are never shown.`;
  return html`<${Page} title="Configuration" lead=${lead} class="config"
    actions=${html`<${Button} kind="quiet" icon="refresh" title="Read again" onClick=${load.reload} />`}>
    <${Loaded} load=${load}>${(data) => html`
      <${Changes} changes=${data.changes} />
      <${Files} files=${data.files} />
      <div class="toolbar config-search">
        <label class="visually-hidden" for="config-search">Search settings</label>
        <input id="config-search" ref=${field} type="search" placeholder="Search: name, value, file, variable" value=${text}
          onInput=${(event) => setText(event.target.value)} />
        <${Filter} settings=${data.settings} only=${only} setOnly=${setOnly} />
      </div>
      <${Settings} settings=${data.settings} text=${text} only=${only} clear=${() => { setText(""); setOnly("all"); }} />`}</${Loaded}>
  </${Page}>`;
}

function Changes({ changes }) {
  if (!changes.length) return null;
  return html`<section class="card stack config-changes" aria-labelledby="config-changes">
    <div><h2 id="config-changes">Changed since the start</h2>
      <p class="dim">By operators, until the server ends. <a href=${href("audit", { action: "lane" })}>Who, and why</a></p></div>
    <ul>${changes.map((each) => html`<li key=${`${each.lane} ${each.name}`}><strong><${Text}>${each.lane}</${Text}></strong>${" "}
      ${each.name.replaceAll("_", " ")}: <strong class="mono">${plain(each.value)}</strong>
      ${each.configured === null ? null : html`<span class="dim"> instead of ${plain(each.configured)}</span>`}</li>`)}</ul>
    <p><a href=${href("lanes")}>To the lanes</a></p>
  </section>`;
}

function Files({ files }) {
  if (!files.length) return html`<p class="dim">No file was read: everything is by default, or was said at the start.</p>`;
  return html`<ul class="row config-files" aria-label="Files that were read, the weakest first">${files.map((each) => html`
    <li class="chip" key=${each} title=${each}><${Text}>${fileName(each)}</${Text}>
      <${Copy} text=${each} label="Copy the path" /></li>`)}</ul>`;
}

function Filter({ settings, only, setOnly }) {
  const changed = settings.filter((each) => !each.is_default).length;
  const options = [["all", `All ${settings.length}`], ["changed", `Not default ${changed}`]];
  const said = countLayers(settings).filter(([layer]) => layer !== "default");
  const layers = said.map(([layer, count]) => [layer, `${WORDS[layer] ?? layer} ${count}`]);
  return html`<div class="row" role="group" aria-label="Origin">${[...options, ...layers].map(([name, text]) => html`
    <${Button} key=${name} kind="quiet" class="chip config-filter" aria-pressed=${String(only === name)}
      onClick=${() => setOnly(name)}>${text}</${Button}>`)}</div>`;
}

function Settings({ settings, text, only, clear }) {
  const found = useMemo(() => findSettings(settings, text, only), [settings, text, only]);
  if (!settings.length) {
    return html`<${Empty} title="Where its settings came from is not known">
      <p>This workspace was made by a program, not from files.</p></${Empty}>`;
  }
  if (!found.length) {
    return html`<${Empty} title="No setting fits"><${Button} onClick=${clear}>Show all</${Button}></${Empty}>`;
  }
  return html`<p class="dim" role="status">${plural(found.length, "setting")}</p>
    ${groupSettings(found).map(({ name, items }) => html`<section key=${name} class="config-group" aria-label=${name}>
      <h2><${Text}>${name}</${Text}></h2>
      <table class="table config-table"><thead><tr><th>Setting</th><th>Value</th><th>From</th></tr></thead>
        <tbody>${items.map((each) => html`<${Row} key=${each.setting} setting=${each} />`)}</tbody></table>
    </section>`)}`;
}

function Row({ setting }) {
  const value = valueText(setting);
  return html`<tr>
    <td data-label="Setting"><div><code><${Text}>${setting.setting}</${Text}></code>
      ${setting.says ? html`<div class="dim config-says">${wordsOf(setting.says).map(([part, isName]) =>
        (isName ? html`<code>${part}</code>` : part))}</div>` : null}
      ${setting.used ? null : html`<${Badge} tone="warn" title="Nothing here goes by it">not used</${Badge}>`}</div></td>
    <td data-label="Value"><div>${setting.hidden
      ? html`<${Badge} tone="off" title="A secret: it is never shown">hidden</${Badge}>`
      : html`<span class=${setting.value === null ? "dim" : "mono"}><${Text}>${value}</${Text}></span>`}
      ${!setting.is_default && setting.default !== null
        ? html`<div class="dim">default <${Text}>${plain(setting.default)}</${Text}></div>` : null}
    </div></td>
    <td data-label="From"><${Badge} tone=${originTone(setting.origin)} title=${originTitle(setting.origin)}>
      <${Text}>${originText(setting.origin)}</${Text}></${Badge}></td>
  </tr>`;
}
