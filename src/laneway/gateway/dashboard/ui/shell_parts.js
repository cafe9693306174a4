/** Smaller parts of the frame: the token dialog, the state of the link, the help. */
import { includes, token, useToken } from "../core/access.js";
import { ask, isOutdated, reach } from "../core/api.js";
import { link } from "../core/live.js";
import { duration, now, shown } from "../core/format.js";
import { Dialog } from "./dialogs.js";
import { sentence } from "./toasts.js";
import { Button, Field, Form, html, useEffect, useRef, useState } from "./parts.js";

const BRIEF_MS = 2500; // a stream that ends in good order is taken up again within that

/** Asks for a token, and tries it before it is used. */
export function TokenDialog({ want }) {
  const [words, setWords] = useState("");
  const [error, setError] = useState("");
  const field = useRef(null);
  useEffect(() => field.current?.focus(), []);
  const submit = async () => {
    const secret = words.trim();
    if (!secret) {
      setError("Enter a token.");
      return;
    }
    const wrong = await tryToken(secret, want.scope);
    setError(wrong);
    if (wrong) return;
    useToken(secret);
    want.done(true);
  };
  const forget = () => {
    useToken("");
    want.done(true);
  };
  const scope = want.scope || "chat";
  return html`<${Dialog} title="This needs a token" onClose=${() => want.done(false)}>
    <${Form} onSubmit=${submit}>
      ${want.detail ? html`<p>${shown(sentence(want.detail))}</p>` : null}
      <${Field} label="Token" error=${error} hint="It is kept in this tab only, and forgotten when you close it.">
        <input ref=${field} type="password" autocomplete="off" spellcheck=${false} value=${words}
          onInput=${(event) => setWords(event.target.value)} />
      </${Field}>
      <p class="dim">A server that is started in a terminal prints one. Else an administrator makes one, or you do, while the server
        is stopped: <code>laneway token create me --scope ${scope === "chat" ? "operate" : scope} --tenant '*'</code></p>
      <div class="dialog-foot">
        ${token.value ? html`<${Button} kind="quiet" onClick=${forget}>Forget the token in use</${Button}>` : null}
        <${Button} onClick=${() => want.done(false)}>Not now</${Button}>
        <${Button} kind="primary" type="submit">Use it</${Button}>
      </div>
    </${Form}>
  </${Dialog}>`;
}

/** What is wrong with a token, or "". A secret that cannot be in a header is none. */
async function tryToken(secret, scope) {
  if (!/^[\x21-\x7e]+$/.test(secret)) return "This is no token: a token has no spaces and only plain letters, digits and signs.";
  try {
    const facts = await ask("/about", { reads: "", as: secret });
    return !scope || includes(facts.scopes, scope) ? "" : `This token is not known here, or does not have the scope "${scope}".`;
  } catch (error) {
    return error.status === 401 ? "This token is not known here, or has ended." : error.message;
  }
}

/** Says when the server is away, and what happens next. Nothing while all is well. */
export function LinkState() {
  const { state, since, error, retryMs } = link.value;
  if (state === "open" || state === "connecting") {
    return html`<div class="shell-link" role="status">${isOutdated.value ? html`<div class="shell-away">
      <strong>The server was updated.</strong> This page is of the version before.
      <${Button} onClick=${() => location.reload()}>Reload the page</${Button}></div>` : null}</div>`;
  }
  if (state === "refused") {
    return html`<div class="shell-link" role="status"><div class="shell-away">
      <strong>No live updates.</strong> ${shown(error?.message ?? "")} ${shown(error?.hint ?? "")}</div></div>`;
  }
  const away = now.value && Math.max(0, Date.now() - since); // `since` is by the clock of this machine
  if (reach.value.ok && away < BRIEF_MS) return html`<div class="shell-link" role="status"></div>`; // it is back at once, mostly
  return html`<div class="shell-link" role="status"><div class="shell-away">
    <strong>The server does not answer.</strong> What you see may be old. The page tries again by itself and catches up.
    <span class="dim" aria-hidden="true"> ${away > 3000 ? `Away for ${duration(Math.round(away / 1000) * 1000)}.` : ""}
      ${retryMs > 2000 ? ` Next try within ${duration(retryMs)}.` : ""}</span></div></div>`;
}

/** What can be pressed. */
export function Help({ list, close }) {
  const scopes = [...new Set(list.map((each) => each.scope))].reverse();
  return html`<${Dialog} title="Keys" onClose=${close}>
    ${scopes.map((scope) => html`<section key=${scope}><h3>${scope}</h3><dl class="keys">
      ${list.filter((each) => each.scope === scope).map((each) => html`<div key=${each.keys}>
        <dt>${each.keys.split(" ").map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${each.text}</dd></div>`)}
    </dl></section>`)}
    <p class="dim">In dialogs Escape closes, Ctrl+Enter confirms. In lists the arrow keys, Home and End move.</p>
  </${Dialog}>`;
}
