/** The page: takes a token from its address, and begins. */
import { takeFromAddress, token } from "./core/access.js";
import { about, generation, place, readAbout } from "./core/api.js";
import { watchReach } from "./core/live.js";
import { parseRoute, route } from "./core/router.js";
import { effect, html, render } from "./ui/parts.js";
import { watchTheme } from "./ui/theme.js";
import { Shell } from "./ui/shell.js";

takeFromAddress();
addEventListener("hashchange", () => {
  takeFromAddress();
  route.value = parseRoute(location.hash);
});
route.value = parseRoute(location.hash);

watchTheme();
watchReach();

let isFirst = true;
let before = token.value;
effect(() => {
  const now = token.value;
  if (now === before && !isFirst) return;
  before = now;
  if (!isFirst) {
    about.value = null;
    place.value = { ...place.peek(), tenant: "" };
    generation.value = generation.peek() + 1;
  }
  isFirst = false;
});

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${Shell} readAbout=${readAbout} />`, root);
