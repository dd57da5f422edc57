// A dialog that asks for a class.

import { mark } from "./colours.js";
import { byId, make, show } from "./dom.js";
import { state } from "./state.js";
import { pictures } from "./tiles.js";
import { counted } from "./words.js";

const SHOWN = 60; // classes; the filter finds the others

/** Ask for a class other than those to `leave` out; resolves to the cluster, or to null if nothing was chosen. */
export function chooseClass(title, leave = []) {
  const box = byId("dialog");
  const left = new Set(leave);
  const all = state.clusters.clusters.filter((cluster) => !left.has(cluster.name));
  let chosen = null;

  const list = make("div", { class: "choices" });
  const filter = make("input", {
    type: "search",
    placeholder: "Filter",
    "aria-label": "Filter classes by name",
    oninput: fill,
    onkeydown: takeFirst,
  });
  const matching = () =>
    all.filter((cluster) => cluster.name.toLowerCase().includes(filter.value.trim().toLowerCase()));

  function fill() {
    const found = matching();
    show(
      list,
      found.slice(0, SHOWN).map(choice),
      found.length === 0 &&
        make("p", { class: "faint" }, all.length ? "No class has this in its name." : "There is no other class."),
      found.length > SHOWN &&
        make(
          "p",
          { class: "faint" },
          `and ${counted(found.length - SHOWN, "more class", "more classes")}: type a part of the name`,
        ),
    );
  }
  function choice(cluster) {
    return make(
      "button",
      { class: "choice", onclick: () => take(cluster) },
      mark(cluster),
      make("span", { class: "name" }, cluster.name, make("span", { class: "faint" }, counted(cluster.n_items, "item"))),
      pictures(cluster.exemplars.slice(0, 3), "tiny", 64),
    );
  }
  function take(cluster) {
    chosen = cluster;
    box.close();
  }
  function takeFirst(event) {
    const [first] = matching();
    if (event.key !== "Enter" || !first) return;
    event.preventDefault(); // the key would also press what gets the focus when the dialog closes
    take(first);
  }

  fill();
  show(
    box,
    make("h2", { id: "dialog-title" }, title),
    filter,
    list,
    make("div", { class: "actions" }, make("button", { onclick: () => box.close() }, "Cancel")),
  );
  box.showModal();
  filter.focus();
  return new Promise((resolve) => box.addEventListener("close", () => resolve(chosen), { once: true }));
}

/** Ask for a number; resolves to null if nothing was chosen. */
export function chooseNumber(title, text, action, { min, max, value }) {
  const box = byId("dialog");
  let chosen = null;
  const field = make("input", { type: "number", min, max, value, id: "dialog-number", required: true });
  const form = make(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        chosen = field.valueAsNumber;
        box.close();
      },
    },
    make("label", { for: "dialog-number" }, text),
    field,
    make(
      "div",
      { class: "actions" },
      make("button", { class: "main" }, action),
      make("button", { type: "button", onclick: () => box.close() }, "Cancel"),
    ),
  );
  show(box, make("h2", { id: "dialog-title" }, title), form);
  box.showModal();
  field.select();
  return new Promise((resolve) => box.addEventListener("close", () => resolve(chosen), { once: true }));
}
