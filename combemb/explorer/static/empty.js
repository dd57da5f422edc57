// What a view shows when it has no content: what is so, and what helps.

import { make } from "./dom.js";

export function emptyState(title, text, ...actions) {
  return make(
    "div",
    { class: "empty" },
    make("h3", {}, title),
    text && make("p", {}, text),
    make("div", { class: "actions" }, actions),
  );
}

/** An error, with a button that tries again if there is something to try. */
export const problem = (error, again) =>
  emptyState(error.message, error.todo, again && make("button", { onclick: again }, "Try again"));
