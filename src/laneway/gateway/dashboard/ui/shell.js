/** The frame around every view: header, navigation, the state of the link, dialogs and notes. */
import { about, ask, can, choosePlace, generation, place } from "../core/api.js";
import { wanted, wantToken } from "../core/access.js";
import { shown } from "../core/format.js";
import { go, href, route } from "../core/router.js";
import { GROUPS, loadView, VIEWS, viewOf } from "../routes.js";
import { Dialogs } from "./dialogs.js";
import { Help, LinkState, TokenDialog } from "./shell_parts.js";
import { bindings, useKeys } from "./keys.js";
import { useLoad } from "./load.js";
import { Button, Component, Empty, ErrorBox, html, Loading, Page, useEffect, useRef, useState } from "./parts.js";
import { useAttention } from "./attention.js";
import { Toasts } from "./toasts.js";

const NAMED = VIEWS.filter((each) => !each.hidden);

/** The whole page. */
export function Shell({ readAbout }) {
  const [isMenu, setMenu] = useState(false);
  const [isHelp, setHelp] = useState(false);
  const load = useLoad((abort) => readAbout(abort), []);
  const counts = useAttention(about.value !== null);
  const at = route.value;
  useEffect(() => setMenu(false), [at]);
  useEffect(() => {
    const nav = document.getElementById("shell-nav");
    if (isMenu) (nav.querySelector("a[aria-current]") ?? nav.querySelector("a")).focus();
  }, [isMenu]);
  useEffect(() => {
    if (load.error?.status === 401 || load.error?.status === 403) {
      wantToken({ scope: "chat", detail: load.error.message, hint: load.error.hint });
    }
  }, [load.error]);
  const keys = { "?": { run: () => setHelp(true), text: "What can be pressed" } };
  for (const each of NAMED) keys[`g ${each.key}`] = { run: () => go(href(each.name)), text: each.title };
  useKeys(keys, "Everywhere");
  const closeMenu = () => {
    setMenu(false);
    document.querySelector(".shell-menu").focus();
  };
  useKeys(isMenu ? { Escape: closeMenu } : {}, "Menu");
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Header} isMenu=${isMenu} setMenu=${setMenu} openHelp=${() => setHelp(true)} />
    <${LinkState} />
    <div class="shell-body">
      <${Navigation} isMenu=${isMenu} counts=${counts} close=${() => setMenu(false)} />
      <main id="main" tabIndex=${-1}>
        ${about.value || load.data ? html`<${Place} at=${at} />` : html`<${Start} load=${load} />`}
      </main>
    </div>
    ${wanted.value ? html`<${TokenDialog} want=${wanted.value} />` : null}
    ${isHelp ? html`<${Help} list=${bindings.value} close=${() => setHelp(false)} />` : null}
    <${Dialogs} /><${Toasts} />`;
}

function skip(event) {
  event.preventDefault(); // the address belongs to the views
  document.getElementById("main").focus();
}

function Start({ load }) {
  if (!load.error) return html`<${Loading} text="Asking the server what it is …" />`;
  return html`<div class="page"><${ErrorBox} error=${load.error} retry=${load.reload} /></div>`;
}

function Header({ isMenu, setMenu, openHelp }) {
  const facts = about.value;
  const chosen = facts?.workspaces.find((each) => each.name === place.value.workspace) ?? facts?.workspaces[0];
  return html`<header class="shell-head">
    <${Button} kind="quiet" icon="menu" title="Menu" class="shell-menu" aria-expanded=${String(isMenu)} aria-controls="shell-nav"
      onClick=${() => setMenu(!isMenu)} />
    <a class="shell-name" href=${href("overview")}><span class="shell-mark" aria-hidden="true"></span>Laneway</a>
    ${facts && facts.workspaces.length > 1
      ? html`<label class="shell-place"><span class="visually-hidden">Workspace</span>
          <select value=${chosen.name} onChange=${(event) => choosePlace({ workspace: event.target.value })}>
            ${facts.workspaces.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
          </select></label>`
      : null}
    ${place.value.tenant ? html`<span class="chip shell-tenant" title="Whose things you see">${shown(place.value.tenant)}</span>` : null}
    ${chosen ? html`<${Model} workspace=${chosen} />` : null}
    <span class="shell-space"></span>
    ${facts ? html`<${Rights} facts=${facts} />` : null}
    <${Button} kind="quiet" icon="help" title="Keys and help" onClick=${openHelp} />
  </header>`;
}

function Model({ workspace }) {
  if (workspace.scripted) {
    const words = "This model plays a script and understands nothing. Start the server with --model for a real one.";
    return html`<span class="chip shell-model shell-scripted" title=${words}>Scripted<span class="shell-model-more"> model</span></span>`;
  }
  return html`<span class="chip shell-model" title="The model of this workspace">${workspace.model}</span>`;
}

function Rights({ facts }) {
  const right = ["admin", "operate", "chat"].find((each) => can(each)) ?? "none";
  const words = { admin: "administrator", operate: "operator", chat: "chat only", none: "no rights" }[right];
  const use = () => wantToken({ detail: `You are here with: ${facts.scopes.join(", ") || "nothing"}.` });
  const title = "What you may do here. Press to use another token.";
  return html`<${Button} kind="quiet" icon="key" class="shell-rights" title=${title} onClick=${() => { use(); }}>
    <span class="shell-rights-words">${words}</span></${Button}>`;
}

function Navigation({ isMenu, counts, close }) {
  const name = route.value.name === "chat" ? "sessions" : route.value.name;
  return html`
    ${isMenu ? html`<div class="shell-shade" onClick=${close}></div>` : null}
    <nav id="shell-nav" class=${isMenu ? "shell-nav shell-nav-open" : "shell-nav"} aria-label="Views">
      ${GROUPS.map((group) => html`<div class="shell-group" key=${group}>
        <h2>${group}</h2>
        <ul>${NAMED.filter((each) => each.group === group).map((each) => html`<li key=${each.name}>
          <a href=${href(each.name)} aria-current=${name === each.name ? "page" : undefined}>${each.title}
            <${Count} value=${counts[each.name]} /></a></li>`)}</ul>
      </div>`)}
    </nav>`;
}

function Count({ value }) {
  if (!value) return null;
  return html`<span class="shell-count" title="needs somebody">${value > 999 ? "999+" : value}
    <span class="visually-hidden"> need somebody</span></span>`;
}

/** The view of a route. A route or a module that is not there is said, and breaks nothing. */
function Place({ at }) {
  const view = viewOf(at.name);
  const [loaded, setLoaded] = useState({ name: "", Body: null, error: null });
  const [tries, setTries] = useState(0);
  const focus = useRef("");
  useEffect(() => {
    if (loaded.error) setTries(tries + 1); // the server is back, or another token counts: perhaps it is there now
  }, [generation.value]);
  useEffect(() => {
    if (!view) return undefined;
    let isLatest = true;
    loadView(at.name, tries).then(
      (module) => isLatest && setLoaded({ name: at.name, Body: module.default, error: null }),
      (error) => {
        if (isLatest) setLoaded({ name: at.name, Body: null, error });
        ask("/about", { reads: "" }).catch(() => {}); // is the server away? Then the page says so, and watches for it
      },
    );
    return () => { isLatest = false; };
  }, [at.name, tries]);
  useEffect(() => {
    if (focus.current && focus.current !== at.name && loaded.name === at.name && document.activeElement === document.body) {
      document.querySelector("#main h1")?.focus({ preventScroll: true }); // who reads by ear hears where they are
    }
    if (loaded.name === at.name) focus.current = at.name;
  }, [loaded, at.name]);
  if (!view) return html`<${Nowhere} name=${at.name} />`;
  if (loaded.name !== at.name) return html`<${Loading} text=${`Opening ${view.title} …`} />`;
  if (loaded.error) {
    const hint = "The server may have been updated, or is away. Try again, or reload the page.";
    const error = { message: `${view.title} could not be loaded`, hint };
    return html`<${Page} title=${view.title}><${ErrorBox} error=${error} retry=${() => setTries(tries + 1)} /></${Page}>`;
  }
  const key = `${at.name}/${at.params.join("/")}/${place.value.workspace}/${place.value.tenant}`;
  return html`<${Guard} key=${key} title=${view.title}><${loaded.Body} params=${at.params} query=${at.query} /></${Guard}>`;
}

function Nowhere({ name }) {
  return html`<${Page} title="Nothing is here"><${Empty} title=${`There is no view "${name}"`}>
    <a href=${href("overview")}>Go to the overview</a></${Empty}></${Page}>`;
}

/** A view that breaks takes nothing else with it. */
class Guard extends Component {
  constructor() {
    super();
    this.state = { error: null };
  }

  componentDidCatch(error) {
    reportError(error);
    this.setState({ error });
  }

  render({ title, children }, { error }) {
    if (!error) return children;
    const hint = "Please report it, with what the console of the browser says.";
    const words = { message: `${title} has a mistake: ${error.message}`, hint };
    return html`<${Page} title=${title}><${ErrorBox} error=${words} retry=${() => this.setState({ error: null })} /></${Page}>`;
  }
}
