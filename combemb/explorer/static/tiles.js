// Items as pictures in a grid: Enter opens, space selects, arrows move.

import * as api from "./api.js";
import { make } from "./dom.js";
import { hasPictures, listen, state, toggleSelected } from "./state.js";
import { openViewer } from "./viewer.js";

const SIDE = 192; // pixels of a thumbnail

/** Return the small picture of an item, or its name where there is none. */
export function thumbnail(item, side = SIDE, source = null) {
  const name = () => make("span", { class: "no-picture" }, item.name);
  if (!hasPictures() && !source) return name();
  const address = source ?? api.thumbnail(item.row, side, state.run.state);
  const image = make("img", { src: address, alt: "", loading: "lazy", decoding: "async", draggable: "false" });
  image.addEventListener("error", () => image.replaceWith(name()), { once: true });
  return image;
}

/** Return small pictures of some rows; nothing where items have none. */
export const pictures = (rows, kind, side) =>
  hasPictures() && rows.map((row) => make("span", { class: kind }, thumbnail({ row, name: "" }, side)));

const certainty = (item) => (item.is_labelled ? "labelled" : item.confidence.toFixed(2));

/** What an item is, for those who do not see it; hits have a score instead of a confidence. */
function spoken(item) {
  const known = [item.name, item.cluster ?? "in no class"];
  if (item.is_labelled) known.push("labelled");
  else if (item.confidence !== undefined) known.push(`confidence ${certainty(item)}`);
  if (item.score !== undefined) known.push(`score ${item.score.toFixed(2)}`);
  return known.join(", ");
}

/** Return a grid of items; `caption(item)` is what is below each, `label` what the grid is called. */
export function grid(items, label, caption = (item) => certainty(item)) {
  const list = make("ul", { class: "grid", "aria-label": label, onkeydown: moveFocus });
  append(list, items, caption);
  return list;
}

export function append(list, items, caption = (item) => certainty(item)) {
  list.items = [...(list.items ?? []), ...items];
  list.append(...items.map((item) => tile(item, list, caption)));
  const buttons = list.querySelectorAll("button.open");
  if (!list.querySelector("button.open[tabindex='0']")) buttons[0]?.setAttribute("tabindex", "0");
}

function tile(item, list, caption) {
  const isSelected = state.selected.has(item.row);
  const box = make("input", {
    type: "checkbox",
    tabindex: "-1",
    "aria-label": `Select ${item.name}`,
    onchange: () => toggleSelected(item.row),
  });
  box.checked = isSelected;
  const open = make(
    "button",
    {
      class: "open",
      tabindex: "-1",
      "aria-label": spoken(item),
      title: item.id,
      onclick: () => openViewer(list.items, list.items.indexOf(item)),
    },
    thumbnail(item),
  );
  return make(
    "li",
    { class: `tile${isSelected ? " selected" : ""}`, data: { row: item.row } },
    open,
    item.row !== null && box,
    make("div", { class: "caption" }, caption(item)),
  );
}

/** Arrows move the focus in a grid, space selects. */
function moveFocus(event) {
  const buttons = [...event.currentTarget.querySelectorAll("button.open")];
  const at = buttons.indexOf(event.target);
  if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === " ") {
    event.preventDefault();
    toggleSelected(event.currentTarget.items[at].row);
    return;
  }
  const perRow = buttons.findIndex((button) => button.offsetTop > buttons[0].offsetTop + 4);
  const columns = perRow > 0 ? perRow : buttons.length;
  const steps = {
    ArrowLeft: -1,
    ArrowRight: 1,
    ArrowUp: -columns,
    ArrowDown: columns,
    Home: -at,
    End: buttons.length - 1 - at,
  };
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  focusTile(buttons, Math.min(Math.max(at + step, 0), buttons.length - 1));
}

function focusTile(buttons, to) {
  buttons.forEach((button) => button.setAttribute("tabindex", "-1"));
  buttons[to].setAttribute("tabindex", "0");
  buttons[to].focus();
}

listen("selection", (rows) => {
  for (const tile of document.querySelectorAll(".tile")) {
    const isSelected = rows.has(Number(tile.dataset.row));
    tile.classList.toggle("selected", isSelected);
    const box = tile.querySelector("input");
    if (box) box.checked = isSelected;
  }
});
