/** A dialog for a new session: its name and its first message. */
import { ask, newKey } from "../core/api.js";
import { go, href } from "../core/router.js";
import { Dialog } from "../ui/dialogs.js";
import { Button, Field, Form, html, useEffect, useMemo, useRef, useState } from "../ui/parts.js";

const NAME_MAX = 200;

/** What is wrong with a name; empty if nothing is. */
export function nameTrouble(name) {
  if (!name.trim()) return "A session needs a name.";
  if (name.trim().length > NAME_MAX) return `A name has at most ${NAME_MAX} characters.`;
  if (/^\.{1,2}$/.test(name.trim())) return "A name is not only dots: it stands in addresses.";
  if (name.includes("/")) return "A name has no slash: it stands in addresses.";
  if (/[\u0000-\u001f\u007f]/.test(name)) return "A name has no line breaks and no control characters.";
  return "";
}

/** Asks for a name and a first message, sends it, and opens the chat. */
export function NewSession({ onClose }) {
  const [name, setName] = useState("");
  const [text, setText] = useState("");
  const [error, setError] = useState("");
  const field = useRef(null);
  const key = useMemo(newKey, [name, text]); // the same message is sent once, however often it is tried
  useEffect(() => field.current.focus(), []);
  const submit = async () => {
    const wrong = nameTrouble(name);
    setError(wrong);
    if (wrong) return;
    const session = name.trim();
    if (text.trim()) await ask(`/sessions/${encodeURIComponent(session)}/messages`, { body: { text: text.trim() }, key });
    onClose();
    go(href("chat", session));
  };
  return html`<${Dialog} title="New session" onClose=${onClose}>
    <${Form} onSubmit=${submit}>
      <${Field} label="Name" error=${error} hint="One that exists is opened; the message is added to it.">
        <input type="text" ref=${field} value=${name} autocomplete="off" onInput=${(event) => setName(event.target.value)} />
      </${Field}>
      <${Field} label="First message" hint="May be left empty: the session begins with the first one.">
        <textarea rows="4" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      </${Field}>
      <div class="dialog-foot">
        <${Button} onClick=${onClose}>Cancel</${Button}>
        <${Button} kind="primary" type="submit">Open</${Button}>
      </div>
    </${Form}>
  </${Dialog}>`;
}
