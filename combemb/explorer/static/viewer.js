// One item, large, with what can be done about it; arrows show the next one.

import { classAddress, searchAddress } from "./addresses.js";
import * as api from "./api.js";
import * as changes from "./changes.js";
import { chooseClass } from "./chooser.js";
import { mark } from "./colours.js";
import { make, show } from "./dom.js";
import { clusterNamed, hasPictures, state } from "./state.js";

let shown = []; // items of the list that was opened
let at = 0;

const box = make("dialog", { class: "viewer", "aria-labelledby": "viewer-title", onkeydown: onKey });
document.body.append(box);
box.addEventListener("click", (event) => event.target === box && box.close());

/** Show item `index` of a list of items. */
export function openViewer(items, index) {
  shown = [...items];
  at = index;
  draw();
  if (!box.open) box.showModal();
}

function draw() {
  const item = shown[at];
  const cluster = item.cluster && clusterNamed(item.cluster);
  const isFixed = item.is_labelled || item.row === null;
  show(
    box,
    make("div", { class: "viewer-picture" }, large(item)),
    make(
      "div",
      { class: "viewer-facts" },
      make("h2", { id: "viewer-title" }, item.name),
      make("p", { class: "path faint" }, item.id),
      make(
        "p",
        {},
        cluster
          ? [mark(cluster), make("a", { href: classAddress(item.cluster), onclick: () => box.close() }, item.cluster)]
          : "in no class",
        certainty(item),
      ),
      make(
        "div",
        { class: "actions" },
        make("button", { onclick: similar, disabled: item.row === null }, "Find similar"),
        make("button", { onclick: move, disabled: isFixed, title: "m" }, "Move to…"),
        make("button", { onclick: reject, disabled: isFixed || !cluster, title: "x" }, "Reject"),
      ),
      item.is_labelled && make("p", { class: "faint" }, "Labelled items keep their label; change it in the data."),
    ),
    make(
      "div",
      { class: "viewer-steps" },
      make("button", { onclick: () => step(-1), disabled: at === 0, "aria-label": "Previous item" }, "←"),
      make("span", { class: "faint" }, `${at + 1} of ${shown.length}`),
      make("button", { onclick: () => step(1), disabled: at === shown.length - 1, "aria-label": "Next item" }, "→"),
      make("button", { onclick: () => box.close() }, "Close"),
    ),
  );
}

const certainty = (item) =>
  make(
    "span",
    { class: "faint" },
    item.is_labelled ? " labelled" : item.confidence === undefined ? "" : ` confidence ${item.confidence.toFixed(2)}`,
  );

function large(item) {
  const nothing = () => make("span", { class: "no-picture" }, "no picture");
  if (!hasPictures() && !item.picture) return nothing();
  const image = make("img", { src: item.picture ?? api.picture(item.row, state.run.state), alt: item.name });
  image.addEventListener("error", () => image.replaceWith(nothing()), { once: true });
  return image;
}

function step(by) {
  at = Math.min(Math.max(at + by, 0), shown.length - 1);
  draw();
}

function similar() {
  box.close();
  location.hash = searchAddress(shown[at].row);
}

async function move() {
  const item = shown[at];
  const cluster = await chooseClass(`Move ${item.name} to`, [item.cluster]);
  if (cluster && (await changes.move(cluster.name, [item.row]))) done({ cluster: cluster.name });
}

async function reject() {
  if (await changes.reject([shown[at].row])) done({ cluster: null });
}

/** After a change the next item is shown. */
function done(changed) {
  shown[at] = { ...shown[at], ...changed };
  if (at < shown.length - 1) at += 1;
  draw();
}

function onKey(event) {
  const acts = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), m: move, x: reject };
  const item = shown[at];
  const isAllowed = event.key.startsWith("Arrow") || !(item.is_labelled || item.row === null);
  if (!acts[event.key] || !isAllowed || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation();
  acts[event.key]();
}
