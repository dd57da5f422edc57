// The bar of the selected items, and what can be done with all of them.

import { classAddress, searchAddress } from "./addresses.js";
import * as changes from "./changes.js";
import { chooseClass } from "./chooser.js";
import { byId, make, show } from "./dom.js";
import { listen, select, state } from "./state.js";
import { counted } from "./words.js";

const selected = () => [...state.selected];

export async function moveSelected() {
  const cluster = await chooseClass(`Move ${counted(state.selected.size, "item")} to`);
  if (cluster) await changes.move(cluster.name, selected());
}

export async function splitSelected() {
  const answer = await changes.split(selected());
  if (answer) location.hash = classAddress(answer.groups[0].to);
}

export const rejectSelected = () => changes.reject(selected());

listen("selection", (rows) => {
  const bar = byId("selection");
  bar.hidden = rows.size === 0;
  document.body.classList.toggle("selecting", rows.size > 0);
  show(
    bar,
    make("span", { class: "words", "aria-live": "polite" }, `${counted(rows.size, "item")} selected`),
    make("button", { onclick: moveSelected, title: "m" }, "Move to…"),
    make("button", { onclick: splitSelected, title: "Make a new class of them" }, "New class"),
    make("button", { onclick: rejectSelected, title: "x" }, "Reject"),
    rows.size === 1 && make("a", { class: "button", href: searchAddress(selected()[0]) }, "Find similar"),
    make("button", { class: "quiet", onclick: () => select([]), title: "Escape" }, "Clear"),
  );
});
