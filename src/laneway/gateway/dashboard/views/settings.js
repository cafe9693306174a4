/** Settings of this browser: how the page looks, what it is about, and with which rights. */
import { token, useToken, wantToken } from "../core/access.js";
import { about, ask, can, choosePlace, place } from "../core/api.js";
import { shown } from "../core/format.js";
import { link } from "../core/live.js";
import { href } from "../core/router.js";
import { useLoad } from "../ui/load.js";
import { Badge, Button, Field, html, Page, Text, toast } from "../ui/parts.js";
import { chooseTheme, theme } from "../ui/theme.js";

const THEMES = [["auto", "As the system says"], ["light", "Light"], ["dark", "Dark"]];
const SCOPES = {
  chat: "talk to sessions and see them",
  operate: "approve, pause, resize, cancel and retry",
  admin: "make and revoke tokens, too",
  worker: "take external tasks",
};
const LINKS = {
  open: ["ok", "connected"],
  connecting: ["wait", "connecting"],
  lost: ["bad", "away"],
  refused: ["warn", "no live updates"],
};

/** The view. */
export default function Settings() {
  return html`<${Page} title="Settings" lead="They hold for this browser; those of the server are in the configuration."
    class="settings">
    <div class="settings-cards"><${Look} /><${Where} /><${Rights} /><${About} /></div>
  </${Page}>`;
}

function Look() {
  return html`<section class="card"><h2>Look</h2>
    <fieldset class="settings-choices"><legend class="visually-hidden">Colours</legend>
      ${THEMES.map(([name, words]) => html`<label key=${name} class="settings-choice">
        <input type="radio" name="theme" value=${name} checked=${theme.value === name} onChange=${() => chooseTheme(name)} />
        ${words}</label>`)}
    </fieldset>
    <p class="dim">Kept in this browser.</p>
  </section>`;
}

function Where() {
  const spaces = about.value?.workspaces ?? [];
  const chosen = place.value.workspace || spaces[0]?.name || "";
  const model = spaces.find((each) => each.name === chosen);
  return html`<section class="card"><h2>Workspace</h2>
    <${Field} label="Shown on this page" hint=${spaces.length > 1 ? "" : "This server has one."}>
      <select value=${chosen} disabled=${spaces.length < 2} onChange=${(event) => choosePlace({ workspace: event.target.value })}>
        ${spaces.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
      </select>
    </${Field}>
    ${model ? html`<p>Model: <${Text}>${model.model}</${Text}>
      ${model.scripted ? html` <${Badge} tone="warn">plays a script</${Badge}>` : null}</p>` : null}
    ${can("operate") && about.value?.all_tenants ? html`<${Tenant} />` : null}
  </section>`;
}

function Tenant() {
  const load = useLoad((abort) => ask("/tenants", { reads: "", signal: abort }), []);
  if (!load.data) return null;
  const mine = place.value.tenant || about.value?.tenant || "default";
  const names = [...new Set(["default", mine, ...load.data.items.map((each) => each.tenant)])].sort();
  if (names.length < 2) return null;
  return html`<${Field} label="Tenant" hint="Those with something to do.">
    <select value=${mine} onChange=${(event) => choosePlace({ tenant: event.target.value })}>
      ${names.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
    </select></${Field}>`;
}

function Rights() {
  const facts = about.value;
  const forget = () => {
    useToken("");
    toast("The token is forgotten.");
  };
  return html`<section class="card"><h2>What you may do here</h2>
    <ul class="settings-scopes">${(facts?.scopes ?? []).map((each) => html`<li key=${each}>
      <${Badge} tone="ok">${each}</${Badge}> ${SCOPES[each] ?? ""}</li>`)}</ul>
    <p class="dim">${token.value
      ? `With the token of this tab, as tenant "${shown(facts?.tenant)}". Closing the tab forgets it.`
      : "Without a token: this server lets whoever is on its machine talk and look."}</p>
    <div class="row">
      <${Button} icon="key" onClick=${() => { wantToken(); }}>Use another token</${Button}>
      ${token.value ? html`<${Button} onClick=${forget}>Forget it</${Button}>` : null}
      ${can("admin") ? html`<a class="button" href=${href("tokens")}>All tokens</a>` : null}
    </div>
  </section>`;
}

function About() {
  const [tone, words] = LINKS[link.value.state] ?? LINKS.connecting;
  return html`<section class="card"><h2>This server</h2>
    <dl class="settings-facts">
      <div><dt>Laneway</dt><dd>${about.value?.version ?? "–"}</dd></div>
      <div><dt>Address</dt><dd><${Text}>${location.origin}</${Text}></dd></div>
      <div><dt>Link</dt><dd><${Badge} tone=${tone}>${words}</${Badge}></dd></div>
      <div><dt>Interface</dt><dd><a href="openapi.json">/openapi.json</a></dd></div>
    </dl>
    <p class="dim">Press <kbd>?</kbd> anywhere for the keys.</p>
  </section>`;
}
