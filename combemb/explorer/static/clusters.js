// The list of all classes: sizes, confidence, pictures; one of them is open.

import { classAddress, openedClass } from "./addresses.js";
import { mark } from "./colours.js";
import { showCluster } from "./cluster.js";
import { byId, make, show } from "./dom.js";
import { emptyState } from "./empty.js";
import { listen, state } from "./state.js";
import { pictures } from "./tiles.js";
import { counted } from "./words.js";

const WIDE = matchMedia("(min-width: 901px)"); // as in page.css
let isShown = false;
const filter = byId("filter-clusters");

/** Show the list and a class: null opens the first one where both have room, "" the rejected items. */
export function showClusters(name) {
  isShown = true;
  const [first] = state.clusters.clusters;
  const opensFirst = name === null && first && WIDE.matches;
  if (opensFirst) history.replaceState(null, "", classAddress(first.name));
  fill();
  showCluster(opensFirst ? first.name : name);
}

export function hideClusters() {
  isShown = false;
}

function fill() {
  byId("clusters").classList.toggle("one", openedClass() !== null);
  const { clusters, n_rejected: nRejected } = state.clusters;
  const word = filter.value.trim().toLowerCase();
  const found = clusters.filter((cluster) => cluster.name.toLowerCase().includes(word));
  const list = byId("cluster-list");
  const scrolled = list.scrollTop;
  show(
    list,
    clusters.length === 0 && emptyState("No classes", "The discovery has put no item into a class."),
    clusters.length > 0 && found.length === 0 && make("p", { class: "faint" }, "No class has this in its name."),
    !clusters.some((cluster) => !cluster.is_seen) &&
      clusters.length > 0 &&
      make("p", { class: "note" }, "Nothing novel was found: every item is in a class of the labels."),
    make("ul", { class: "classes" }, found.map(card)),
    nRejected > 0 && make("ul", { class: "classes" }, rejectedCard(nRejected)),
  );
  list.scrollTop = scrolled;
  list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function card(cluster) {
  return make(
    "li",
    {},
    make(
      "a",
      {
        class: "card",
        href: classAddress(cluster.name),
        "aria-current": cluster.name === openedClass() ? "true" : null,
      },
      make("span", { class: "heading" }, mark(cluster), make("span", { class: "name" }, cluster.name)),
      make(
        "span",
        { class: "facts faint" },
        counted(cluster.n_items, "item"),
        cluster.n_left > 0 && ` · ${cluster.n_left} to decide`,
        meter(cluster),
      ),
      make("span", { class: "strip" }, pictures(cluster.exemplars, "tiny", 64)),
    ),
  );
}

/** The mean confidence as a bar and a number. */
export function meter(cluster) {
  if (cluster.confidence === null) return null;
  const text = cluster.confidence.toFixed(2);
  return make(
    "span",
    { class: "meter", title: `mean confidence ${text}` },
    make("span", { class: "track" }, make("span", { class: "fill", style: { width: `${100 * cluster.confidence}%` } })),
    text,
  );
}

const rejectedCard = (n) =>
  make(
    "li",
    {},
    make(
      "a",
      { class: "card", href: "#clusters/", "aria-current": openedClass() === "" ? "true" : null },
      make("span", { class: "heading" }, make("span", { class: "name" }, "Rejected")),
      make("span", { class: "facts faint" }, `${counted(n, "item")} in no class`),
    ),
  );

/** The name of the class before or after the one that is open. */
export function neighbour(step) {
  const names = state.clusters.clusters.map((cluster) => cluster.name);
  return names[Math.min(Math.max(names.indexOf(openedClass()) + step, 0), names.length - 1)];
}

filter.addEventListener("input", fill);
listen("clusters", () => isShown && fill());
