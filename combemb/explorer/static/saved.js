// The messages that something was saved or went wrong, seen and heard.

import { byId, make, show } from "./dom.js";

const SHOWN_FOR = 7000;
let timer = null;

/** Show a message at the lower edge; `action` is {text, run}. */
export function say(text, action = null) {
  tell(text, action, "");
}

export function complain(error) {
  if (error.name === "AbortError") return;
  tell(error.todo ? `${error.message} ${error.todo}` : error.message, null, "bad");
}

function tell(text, action, kind) {
  const box = byId("saved");
  box.className = `saved shown ${kind}`;
  show(
    box,
    make("span", { class: "words" }, text),
    action && make("button", { class: "link", onclick: action.run }, action.text),
  );
  clearTimeout(timer);
  timer = setTimeout(() => box.classList.remove("shown"), SHOWN_FOR);
}
