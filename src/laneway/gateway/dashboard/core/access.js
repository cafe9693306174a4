/** The token of this tab: it comes from the address or from a dialog, and lives until the tab is closed. */
import { signal } from "@preact/signals";

const NAME = "laneway.token";
const IMPLIED = { chat: ["chat"], operate: ["chat", "operate"], worker: ["worker"], admin: ["chat", "operate", "admin"] };

/** The token that is sent with every request; empty: none. */
export const token = signal(stored());

/** What the page asks a token for, or null: `{ scope, detail, hint, done(given) }`. The shell shows the dialog. */
export const wanted = signal(null);

function stored() {
  try {
    return sessionStorage.getItem(NAME) || "";
  } catch {
    return ""; // a browser that keeps nothing
  }
}

/** Use another token from now on; empty: none. */
export function useToken(secret) {
  const clean = String(secret || "").trim();
  try {
    if (clean) sessionStorage.setItem(NAME, clean);
    else sessionStorage.removeItem(NAME);
  } catch {
    // then it lives in this page only
  }
  token.value = clean;
}

/** The token in an address like `#token=…&to=/lanes`, and the address without it. */
export function tokenInHash(hash) {
  const text = String(hash || "").replace(/^#/, "");
  if (!/(^|&)token=/.test(text) || text.startsWith("/")) return null;
  const given = new URLSearchParams(text);
  const to = given.get("to") || "";
  return { token: given.get("token") || "", hash: to.startsWith("/") ? `#${to}` : "#/" };
}

/** Take a token out of the address of the page, before anybody sees or stores it. */
export function takeFromAddress() {
  const found = tokenInHash(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname + location.search + found.hash);
  if (found.token) useToken(found.token);
}

/** Whether somebody with these scopes may do what needs `scope`. */
export function includes(scopes, scope) {
  return (scopes || []).some((each) => (IMPLIED[each] || []).includes(scope));
}

let asking = null;

/** Ask the person for a token. Resolves with whether there is a new one; whoever asks meanwhile gets the same answer. */
export function wantToken({ scope = "", detail = "", hint = "" } = {}) {
  if (!asking) {
    asking = new Promise((resolve) => {
      wanted.value = {
        scope,
        detail,
        hint,
        done: (given) => {
          asking = null;
          wanted.value = null;
          resolve(given);
        },
      };
    });
  }
  return asking;
}
