// Beside the map: the classes, and what is selected.

import { classAddress } from "./addresses.js";
import { mark } from "./colours.js";
import { byId, make, show } from "./dom.js";
import { listen, state } from "./state.js";
import { pictures } from "./tiles.js";
import { counted, number } from "./words.js";

const SAMPLES = 12; // pictures of a selection
let marked = null; // name of the class that alone is bright
let showOnly = () => {};

/** Fill the side; `only(cluster)` dims all other classes on the map, `only(null)` none. */
export function showSide(only) {
  showOnly = only;
  marked = null;
  const { clusters, n_rejected: nRejected } = state.clusters;
  const novel = clusters.filter((cluster) => !cluster.is_seen);
  const seen = clusters.filter((cluster) => cluster.is_seen);
  show(
    byId("map-side"),
    make("div", { id: "selected-items" }),
    part("Novel", novel, "Nothing novel was found: every item is in a seen class."),
    part("Seen", seen, "There are no labels, so no class is a seen one."),
    nRejected > 0 && make("p", { class: "faint" }, `${counted(nRejected, "rejected item")}, grey crosses`),
  );
  showSelected(state.selected);
}

function part(title, clusters, nothing) {
  return [
    make("h3", {}, title, make("span", { class: "faint" }, clusters.length ? ` ${clusters.length}` : "")),
    clusters.length ? make("ul", { class: "legend" }, clusters.map(line)) : make("p", { class: "faint" }, nothing),
  ];
}

function line(cluster) {
  const toggle = make(
    "button",
    { class: "entry", "aria-pressed": "false", title: `Show only ${cluster.name}`, onclick: () => only(cluster) },
    mark(cluster),
    make("span", { class: "name" }, cluster.name),
    make("span", { class: "faint amount" }, number(cluster.n_items)),
  );
  return make(
    "li",
    { data: { name: cluster.name } },
    toggle,
    make("a", { class: "go", href: classAddress(cluster.name), "aria-label": `Open ${cluster.name}` }, "→"),
  );
}

function only(cluster) {
  marked = marked === cluster.name ? null : cluster.name;
  showOnly(marked ? cluster : null);
  for (const entry of document.querySelectorAll(".legend li")) {
    entry.querySelector(".entry").setAttribute("aria-pressed", String(entry.dataset.name === marked));
  }
}

/** Show of which classes the selected items are, and some of them. */
function showSelected(rows) {
  const box = byId("selected-items");
  if (!box) return;
  const { numbers } = state.assignment ?? {};
  if (rows.size === 0 || !numbers) return show(box);
  const counts = new Map();
  for (const row of rows) counts.set(numbers[row], (counts.get(numbers[row]) ?? 0) + 1);
  const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 6);
  const every = Math.max(1, Math.floor(rows.size / SAMPLES));
  const samples = [...rows].filter((_, place) => place % every === 0).slice(0, SAMPLES);
  const named = (k) => state.clusters.clusters.find((cluster) => cluster.number === k);
  return show(
    box,
    make("h3", {}, "Selected", make("span", { class: "faint" }, ` ${number(rows.size)}`)),
    make(
      "div",
      { class: "samples" },
      pictures(samples, "tiny", 64),
    ),
    make(
      "ul",
      { class: "legend" },
      most.map(([k, n]) =>
        make(
          "li",
          { class: "entry" },
          named(k) ? mark(named(k)) : "×",
          make("span", { class: "name" }, named(k)?.name ?? "in no class"),
          make("span", { class: "faint amount" }, number(n)),
        ),
      ),
    ),
  );
}

listen("selection", showSelected);
