// The keys of the page, in one list that `?` shows.

import { classAddress, opened, openedClass, searchAddress } from "./addresses.js";
import { undo } from "./changes.js";
import { neighbour } from "./clusters.js";
import { byId, make, show } from "./dom.js";
import { setDrag } from "./map.js";
import * as review from "./review.js";
import { focusSearch } from "./search.js";
import { moveSelected, rejectSelected, splitSelected } from "./selection.js";
import { select, state } from "./state.js";

const isSelecting = () => state.selected.size > 0;
const inReview = () => opened().view === "review";
/** Go to an address; do something when it is shown. */
function goAndThen(address, act) {
  if (location.hash === address) return act();
  addEventListener("hashchange", act, { once: true }); // the listener of main.js comes first
  location.hash = address;
  return undefined;
}

function focusName() {
  const act = () => byId("name")?.focus();
  return inReview() && review.reviewed() ? goAndThen(classAddress(review.reviewed().cluster), act) : act();
}

const go = (view) => () => {
  location.hash = `#${view}`;
};

const KEYS = [
  { key: "ArrowLeft", shown: "← →", about: "previous or next image", run: () => arrow(-1) },
  { key: "ArrowRight", run: () => arrow(1) },
  { key: "ArrowUp", shown: "↑ ↓", about: "in the list of classes: previous or next class", run: () => nextClass(-1) },
  { key: "ArrowDown", run: () => nextClass(1) },
  { key: "space", shown: "space", about: "select the image that has the focus; Enter opens it" },
  { key: "n", shown: "n", about: "name the class that is open", run: focusName },
  {
    key: "m",
    shown: "m",
    about: "move what is selected, or the item under review, into a class",
    run: () => (inReview() ? review.other() : isSelecting() && moveSelected()),
  },
  {
    key: "x",
    shown: "x",
    about: "reject what is selected, or the item under review",
    run: () => (inReview() ? review.refuse() : isSelecting() && rejectSelected()),
  },
  { key: "c", shown: "c", about: "make a new class of what is selected", run: () => isSelecting() && splitSelected() },
  {
    key: "Enter",
    shown: "Enter",
    about: "in review: yes, it is in this class",
    run: () => inReview() && document.activeElement.matches("body, main, h2") && review.accept(),
  },
  { key: "s", shown: "s", about: "search for images like the selected one", run: similar },
  { key: "u", shown: "u", about: "undo the last change", run: () => !byId("undo").disabled && undo() },
  {
    key: "l",
    shown: "l",
    about: "on the map: lasso, or move again",
    run: () =>
      setDrag(document.querySelector("[data-drag='lasso']").getAttribute("aria-pressed") === "true" ? "pan" : "lasso"),
  },
  {
    key: "/",
    shown: "/",
    about: "search",
    run: () => goAndThen("#search", focusSearch),
  },
  { key: "1", shown: "1 to 6", about: "Map, Clusters, Review, Search, Model, Export", run: go("map") },
  { key: "2", run: go("clusters") },
  { key: "3", run: go("review") },
  { key: "4", run: go("search") },
  { key: "5", run: go("model") },
  { key: "6", run: go("export") },
  { key: "Escape", shown: "Esc", about: "clear the selection, close what is open", run: () => select([]) },
  { key: "?", shown: "?", about: "this list", run: showKeys },
];

function arrow(step) {
  if (inReview()) return review.step(step);
  const tile = document.querySelector(".view:not([hidden]) button.open[tabindex='0']");
  tile?.focus();
  return tile !== null;
}

function nextClass(step) {
  if (opened().view !== "clusters" || openedClass() === "" || !document.activeElement.matches("body, main, .card"))
    return false;
  goAndThen(classAddress(neighbour(step)), () => document.querySelector(".card[aria-current]")?.focus());
  return true;
}

function similar() {
  const tile = document.activeElement.closest?.(".tile");
  const row = tile?.dataset.row ?? (inReview() ? review.reviewed()?.row : [...state.selected][0]);
  if (row !== undefined) location.hash = searchAddress(row);
}

function showKeys() {
  const box = byId("dialog");
  const rows = KEYS.filter((entry) => entry.shown).map(({ shown, about }) => [
    make("dt", {}, make("kbd", {}, shown)),
    make("dd", {}, about),
  ]);
  show(
    box,
    make("h2", { id: "dialog-title" }, "Keys"),
    make("dl", { class: "keys" }, rows),
    make("div", { class: "actions" }, make("button", { onclick: () => box.close() }, "Close")),
  );
  box.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (
    document.querySelector("dialog[open]") ||
    event.target.closest?.("input:not([type='checkbox']), select, textarea")
  )
    return;
  const isScrolling =
    event.key.startsWith("Arrow") && event.target.closest?.("[role='region'], .detail:not(:has(.tile))");
  const entry = KEYS.find(({ key, run }) => key === event.key && run);
  if (!entry || !state.run || isScrolling) return;
  const answer = entry.run();
  if (entry.key.length === 1 || (entry.key.startsWith("Arrow") && answer)) event.preventDefault();
});
byId("show-keys").addEventListener("click", showKeys);
