/** Asking the server: `ask`, and what can come back instead of an answer. */
import { signal } from "@preact/signals";
import { includes, token, wantToken } from "./access.js";
import { learnClock } from "./format.js";

const WORKSPACE = "laneway.workspace";
const TIMEOUT_MS = 60000;
const SLOW_MS = 1000; // what an answer says of the time is old by then
const PAGE = (/\/page\/([0-9a-f]+)\//.exec(import.meta.url) || [])[1] ?? "";
const HERE = typeof location === "undefined" ? "http://localhost/" : location.href;

/** The server understood, and said no. */
export class Refused extends Error {
  constructor(status, body = {}, retryAfterMs = null) {
    super(body.detail || `the server answered with status ${status}`);
    this.name = "Refused";
    this.status = status;
    this.code = body.code || "";
    this.hint = body.hint || "";
    this.facts = body;
    this.retryAfterMs = retryAfterMs;
  }
}

/** Nobody answered. */
export class Offline extends Error {
  constructor(message = "the server does not answer", options = {}) {
    super(message, options);
    this.name = "Offline";
    this.hint = "It is tried again by itself. Is laneway serve still running?";
  }
}

/** The answer of `/v1/about`, or null as long as there is none. */
export const about = signal(null);

/** Whose things the page is about. */
export const place = signal({ workspace: keptWorkspace(), tenant: "" });

/** Whether the server has another version of the page than this one: it was updated meanwhile. */
export const isOutdated = signal(false);

/** Whether the server answered the last time: `{ ok, since, error }`. */
export const reach = signal({ ok: true, since: 0, error: null });

/** Grows when everything has to be read anew: another token, another workspace, the server is there again. */
export const generation = signal(0);

function keptWorkspace() {
  try {
    return sessionStorage.getItem(WORKSPACE) || "";
  } catch {
    return "";
  }
}

/** Look at another workspace or tenant. */
export function choosePlace(change) {
  place.value = { ...place.value, ...change };
  try {
    sessionStorage.setItem(WORKSPACE, place.value.workspace);
  } catch {
    // then it is chosen for this page only
  }
  generation.value += 1;
}

/** Read `/v1/about`; tells who we are, and which workspaces there are. */
export async function readAbout(abort) {
  const found = await ask("/about", { reads: "", signal: abort });
  const names = found.workspaces.map((each) => each.name);
  if (place.value.workspace && !names.includes(place.value.workspace)) choosePlace({ workspace: "" });
  about.value = found;
  isOutdated.value = found.page !== PAGE && PAGE !== "";
  return found;
}

/** Whether the caller has a scope: "chat", "operate", "admin", "worker". False as long as it is not known. */
export function can(scope) {
  return includes(about.value?.scopes, scope);
}

/** A random key: a request that is sent twice with the same one is done once. */
export function newKey() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (each) => each.toString(16).padStart(2, "0")).join("");
}

/** The address of something below `/v1`. A browser would make another one of a part that is "." or "..": it is refused. */
export function addressOf(path, query) {
  if (path.split("/").some((part) => part === "." || part === "..")) {
    const hint = "The command line and programs can reach it.";
    throw new Refused(400, { detail: "what is named . or .. cannot stand in an address", code: "bad_path", hint });
  }
  const url = new URL(`v1${path}`, HERE);
  url.hash = "";
  for (const [name, value] of Object.entries(query || {})) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") url.searchParams.append(name, each);
    }
  }
  return url;
}

/**
 * Headers that say who asks, and where. `reads`: a workspace other than the chosen one; "*" all, "" none in particular.
 * `as`: another token than that of the page.
 */
export function headersOf({ headers = {}, reads, key, as } = {}) {
  const all = { ...headers };
  const workspace = reads ?? place.value.workspace;
  const secret = as ?? token.value;
  if (/[^\x21-\x7e]/.test(secret)) {
    const hint = "Copy it once more: a token has only plain letters, digits and signs.";
    throw new Refused(401, { detail: "this is no token", hint }); // no browser sends it, and that looks as if nobody answered
  }
  if (secret) all.Authorization = `Bearer ${secret}`;
  if (workspace) all["Laneway-Workspace"] = workspace;
  if (place.value.tenant) all["Laneway-Tenant"] = place.value.tenant;
  if (key) all["Idempotency-Key"] = key;
  return all;
}

/** What a refusal says. */
export async function refusalOf(response) {
  let body = {};
  try {
    body = (await response.json()) ?? {};
  } catch {
    // a proxy in between may answer with anything
  }
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  return new Refused(response.status, body, Number.isFinite(seconds) ? seconds * 1000 : null);
}

/**
 * Ask the server for something below `/v1`. The answer is JSON, null without content, or throws `Refused` or `Offline`.
 * A change (anything but GET) that is refused for want of a token asks the person for one and is sent once more.
 */
export async function ask(path, options = {}) {
  const method = options.method || (options.body === undefined ? "GET" : "POST");
  try {
    return await askOnce(path, method, options);
  } catch (error) {
    const isUnknown = error instanceof Refused && (error.status === 401 || (error.status === 403 && needsScope(error)));
    if (method === "GET" || !isUnknown) throw error;
    const isGiven = await wantToken({ scope: needsScope(error), detail: error.message, hint: error.hint });
    if (!isGiven) throw error;
    return askOnce(path, method, options);
  }
}

function needsScope(error) {
  const named = error.facts.right || (/scope '(\w+)'/.exec(error.message) || [])[1] || "";
  return ["chat", "operate", "admin", "worker"].includes(named) ? named : "";
}

async function askOnce(path, method, { body, query, headers, signal: abort, key, reads, as }) {
  const given = { method, cache: "no-store", headers: headersOf({ headers, reads, key, as }) };
  if (body !== undefined) {
    given.headers["Content-Type"] = "application/json";
    given.body = JSON.stringify(body);
  }
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  given.signal = abort ? AbortSignal.any([abort, limit]) : limit;
  try {
    const asked = performance.now();
    const response = await fetch(addressOf(path, query), given);
    answered(response, performance.now() - asked);
    if (!response.ok) throw await refusalOf(response);
    const text = await response.text();
    return text ? JSON.parse(text) : null;
  } catch (error) {
    if (error instanceof Refused || abort?.aborted) throw error;
    throw unreachable(error);
  }
}

/** Somebody answered: the server is there, and its clock can be learned, unless the answer was long on its way. */
export function answered(response, tookMs = 0) {
  const date = Date.parse(response.headers.get("Date") ?? "");
  if (Number.isFinite(date) && tookMs < SLOW_MS) learnClock(date);
  if (!reach.value.ok) {
    reach.value = { ok: true, since: Date.now(), error: null };
    generation.value += 1; // whatever was told meanwhile has to be read
  }
}

/** Nobody answered; the shell says so. */
export function unreachable(cause) {
  const error = new Offline(cause?.name === "TimeoutError" ? "the server took too long to answer" : undefined, { cause });
  if (reach.value.ok) reach.value = { ok: false, since: Date.now(), error };
  return error;
}
