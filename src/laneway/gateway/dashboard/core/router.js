/** Routes of the page: what stands behind the `#` of its address. */
import { signal } from "@preact/signals";

/** What an address means: `{ name, params, query }`. */
export function parseRoute(hash) {
  const text = String(hash || "").replace(/^#/, "").replace(/^\//, "");
  const mark = text.indexOf("?");
  const parts = (mark < 0 ? text : text.slice(0, mark)).split("/").filter((each) => each !== "");
  const query = Object.fromEntries(new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1)));
  const [name = "overview", ...params] = parts.map(decoded);
  return { name, params, query };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // somebody wrote it by hand
  }
}

/** An address in the page: `href("chat", key)` is "#/chat/<key>". An object at the end is its query. */
export function href(name, ...params) {
  const last = params.at(-1);
  const query = last !== null && typeof last === "object" ? params.pop() : {};
  const parts = [name === "overview" && !params.length ? "" : name, ...params].map((each) => encodeURIComponent(each));
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const asked = new URLSearchParams(given).toString();
  return `#/${parts.join("/")}${asked ? `?${asked}` : ""}`;
}

/** Where the page is. */
export const route = signal(parseRoute(typeof location === "undefined" ? "" : location.hash));

/** Go somewhere: what `href` made, or a path like "/lanes". `replace`: the place before is not kept in the history. */
export function go(path, { replace = false } = {}) {
  const hash = path.startsWith("#") ? path : `#${path.startsWith("/") ? "" : "/"}${path}`;
  if (replace) {
    history.replaceState(null, "", location.pathname + location.search + hash);
    route.value = parseRoute(hash);
  } else if (location.hash !== hash) location.hash = hash;
}

if (typeof addEventListener !== "undefined" && typeof location !== "undefined") {
  addEventListener("hashchange", () => {
    route.value = parseRoute(location.hash);
  });
}
