/** Light or dark: as the system says, or as somebody chose. */
import { computed, signal } from "@preact/signals";

const NAME = "laneway.theme";
const CHOICES = ["auto", "light", "dark"];
const system = typeof matchMedia === "undefined" ? null : matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(Boolean(system?.matches));
system?.addEventListener("change", () => {
  systemDark.value = system.matches;
});

/** What was chosen: "auto", "light" or "dark". */
export const theme = signal(kept());

/** Whether the page is dark now. */
export const isDark = computed(() => (theme.value === "auto" ? systemDark.value : theme.value === "dark"));

function kept() {
  try {
    const found = localStorage.getItem(NAME);
    return CHOICES.includes(found) ? found : "auto";
  } catch {
    return "auto";
  }
}

/** Choose one; it is kept in this browser. */
export function chooseTheme(choice) {
  theme.value = CHOICES.includes(choice) ? choice : "auto";
  try {
    localStorage.setItem(NAME, theme.value);
  } catch {
    // then it is for this page only
  }
}

/** Keep the page as it was chosen. */
export function watchTheme() {
  return isDark.subscribe((dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  });
}
