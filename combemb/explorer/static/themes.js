// The switch between the system's theme, light and dark.

import { byId } from "./dom.js";
import { emit } from "./state.js";

const THEMES = ["system", "light", "dark"];
const root = document.documentElement;
const button = byId("theme");

function name() {
  const text = `Theme: ${root.dataset.theme}`;
  button.setAttribute("aria-label", text);
  button.title = text;
}

button.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  root.dataset.theme = next;
  localStorage.setItem("combemb-theme", next);
  name();
  emit("theme", next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => emit("theme", "system"));
name();
