/** Small helpers of a chat: what this tab keeps, and questions that are gathered. */
import { about, place } from "../core/api.js";

/** A place in the storage of this tab, for one session: sessions of other tenants may have the same name. */
export function keep(kind, key) {
  const { workspace, tenant } = place.peek();
  const name = ["laneway", kind, tenant || about.peek()?.tenant || "", workspace, key].map(encodeURIComponent).join("/");
  return {
    read: () => {
      try {
        return sessionStorage.getItem(name) || "";
      } catch {
        return "";
      }
    },
    write: (text) => {
      try {
        if (text) sessionStorage.setItem(name, text);
        else sessionStorage.removeItem(name);
      } catch {
        // a browser that keeps nothing loses it with the page
      }
    },
  };
}

/** Run `fn` soon, and at most once in `ms`: many events are one question. */
export function gathered(fn, ms) {
  let timer = 0;
  let isOn = false;
  const soon = () => {
    if (timer || isOn) {
      soon.isAsked = isOn;
      return;
    }
    timer = setTimeout(async () => {
      timer = 0;
      isOn = true;
      try {
        await fn();
      } finally {
        isOn = false;
        if (soon.isAsked) {
          soon.isAsked = false;
          soon();
        }
      }
    }, ms);
  };
  soon.end = () => clearTimeout(timer);
  return soon;
}
