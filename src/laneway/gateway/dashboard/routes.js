/** What the page has: its views, in the groups of the navigation. `key` after "g" leads there. */

export const GROUPS = ["Now", "Work", "Insight", "Setup"];

/** One row per view. `attention`: the count of `/v1/attention` that is shown beside it. `hidden`: reached from others only. */
export const VIEWS = [
  { name: "overview", title: "Overview", group: "Now", key: "o" },
  { name: "lanes", title: "Lanes", group: "Now", key: "l", attention: "lanes" },
  { name: "sessions", title: "Sessions", group: "Now", key: "s" },
  { name: "approvals", title: "Approvals", group: "Now", key: "a", attention: "approvals" },
  { name: "chat", title: "Chat", group: "Now", hidden: true },
  { name: "story", title: "Story", group: "Now", hidden: true },
  { name: "replay", title: "Replay", group: "Now", hidden: true },
  { name: "tasks", title: "Tasks", group: "Work", key: "t", attention: "tasks" },
  { name: "workers", title: "Workers", group: "Work", key: "w" },
  { name: "letters", title: "Dead letters", group: "Work", key: "d", attention: "dead_letters" },
  { name: "ledger", title: "Ledger", group: "Work", key: "e", attention: "ledger" },
  { name: "schedules", title: "Schedules", group: "Work", key: "c" },
  { name: "usage", title: "Usage", group: "Insight", key: "u" },
  { name: "limits", title: "Limits", group: "Insight", key: "i", attention: "limits" },
  { name: "audit", title: "Audit", group: "Insight", key: "h" },
  { name: "config", title: "Configuration", group: "Setup", key: "f" },
  { name: "tokens", title: "Tokens", group: "Setup", key: "k" },
  { name: "guide", title: "Guide", group: "Setup", key: "b" },
  { name: "settings", title: "Settings", group: "Setup", key: "," },
];

/** The view of a route, or undefined. */
export function viewOf(name) {
  return VIEWS.find((each) => each.name === name);
}

/** The module of a view. `again`: how often it failed before; a browser remembers a failure under its address. */
export function loadView(name, again = 0) {
  return import(`./views/${name}.js${again ? `?again=${again}` : ""}`);
}
