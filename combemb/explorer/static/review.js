// Review: one item after the other, those first that the model is least sure of.

import * as api from "./api.js";
import { classAddress, searchAddress } from "./addresses.js";
import * as changes from "./changes.js";
import { chooseClass } from "./chooser.js";
import { mark } from "./colours.js";
import { byId, make, show } from "./dom.js";
import { emptyState, problem } from "./empty.js";
import { clusterNamed, hasPictures, listen, state } from "./state.js";
import { pictures, thumbnail } from "./tiles.js";
import { openViewer } from "./viewer.js";
import { counted, percent } from "./words.js";

const AHEAD = 40; // items that are asked for at a time
const NEXT = 8; // pictures of those that follow
let queue = []; // undecided items
let at = 0; // of the one that is shown; those before it were skipped
let isShown = false;
let isSaving = false;

export async function showReview() {
  isShown = true;
  try {
    queue = (await api.items({ order: "doubt", n: AHEAD })).items;
    at = 0;
    draw();
  } catch (error) {
    show(byId("review-item"), problem(error, showReview));
  }
}

export function hideReview() {
  isShown = false;
}

function count() {
  const { n_left: left, n_items: all } = state.clusters;
  byId("review-left").textContent = left
    ? `${counted(left, "item")} left of ${all.toLocaleString("en")}; the least certain first`
    : "";
  byId("review-progress").value = 1 - left / Math.max(all, 1);
  byId("review-progress").title = `${percent(1 - left / Math.max(all, 1))} decided`;
}

function draw() {
  count();
  const item = queue[at];
  const box = byId("review-item");
  if (!item) {
    const isAll = state.clusters.n_left === 0;
    show(
      box,
      isAll
        ? emptyState(
            "All items are decided",
            "Export the labels, or fit again with them.",
            make("a", { class: "button main", href: "#export" }, "Export and fit again"),
          )
        : emptyState(
            "You have skipped what is left",
            `${counted(state.clusters.n_left, "item")} left.`,
            make("button", { class: "main", onclick: showReview }, "Start over"),
          ),
    );
    return;
  }
  const cluster = clusterNamed(item.cluster);
  const large = make(
    "button",
    { class: "large", "aria-label": `Show ${item.name} large`, onclick: () => openViewer(queue, at) },
    thumbnail(item, 384),
  );
  show(
    box,
    make(
      "div",
      { class: "asked" },
      make("div", { class: "picture" }, large),
      hasPictures() && make("p", { class: "path faint" }, item.name),
    ),
    make(
      "div",
      { class: "answers" },
      make("h3", {}, "Is this ", mark(cluster), make("span", { class: "name" }, item.cluster), "?"),
      make(
        "p",
        { class: "faint" },
        `Confidence ${item.confidence.toFixed(2)}. `,
        cluster.is_named ? "" : "This class has no name yet. ",
        hasPictures() && "Typical items of it:",
      ),
      make("div", { class: "strip" }, pictures(cluster.exemplars, "small-picture", 128)),
      make(
        "div",
        { class: "actions" },
        cluster.is_named
          ? make("button", { class: "main", onclick: accept }, "Yes", key("Enter"))
          : make("a", { class: "button main", href: classAddress(item.cluster) }, "Name the class", key("n")),
        make("button", { onclick: other }, "Another class…", key("m")),
        make("button", { onclick: refuse }, "No class", key("x")),
        make("button", { class: "quiet", onclick: () => step(1) }, "Skip", key("→")),
        make("a", { class: "button quiet", href: searchAddress(item.row) }, "Find similar"),
      ),
      make("p", { class: "faint next-title" }, "Next"),
      make(
        "div",
        { class: "strip" },
        queue.slice(at + 1, at + 1 + NEXT).map((next) => make("span", { class: "tiny" }, thumbnail(next, 64))),
      ),
    ),
  );
}

const key = (text) => make("kbd", {}, text);

export async function step(by) {
  if (by > 0 && at >= queue.length - 1) await more();
  at = Math.min(Math.max(at + by, 0), queue.length);
  draw();
}

/** Ask for more; what was skipped comes first in the answer, since it is not decided. */
async function more() {
  const { items } = await api.items({ order: "doubt", n: AHEAD, start: queue.length });
  const known = new Set(queue.map((item) => item.row));
  queue.push(...items.filter((item) => !known.has(item.row)));
}

/** Save what was said about the item that is shown, and go on to the next. */
async function decide(save) {
  if (isSaving || !queue[at]) return;
  isSaving = true;
  const item = queue[at];
  try {
    if (!(await save(item))) return;
    queue.splice(queue.indexOf(item), 1);
    if (at >= queue.length) await more();
    draw();
  } finally {
    isSaving = false;
  }
}

export const accept = () =>
  decide((item) => (clusterNamed(item.cluster).is_named ? changes.move(item.cluster, [item.row]) : null));
export const refuse = () => decide((item) => changes.reject([item.row]));
export const other = () =>
  decide(async (item) => {
    const cluster = await chooseClass(`Put ${item.name} into`, [item.cluster]);
    return cluster && changes.move(cluster.name, [item.row]);
  });
export const reviewed = () => queue[at];

/** After undo, or a change elsewhere, the classes of the items may be others. */
listen("clusters", () => isShown && !isSaving && showReview());
