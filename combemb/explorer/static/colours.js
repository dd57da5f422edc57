// A colour for each class: of few, so that people can tell them apart, and different ones for classes that are near.

import { byId, make } from "./dom.js";
import { state } from "./state.js";

export const N_COLOURS = 8;
const chosen = new Map(); // name of a class -> its colour, which stays as long as the page
let run = null;

/** Give colours to classes that have none; `places` has the middle of each class by its number, if the map is there. */
export function assignColours(clusters, places = null) {
  if (run !== state.run?.name) chosen.clear();
  run = state.run?.name;
  const isFirst = places && clusters.every((cluster) => !chosen.get(cluster.name)?.isPlaced);
  if (isFirst) chosen.clear();
  const given = () => clusters.filter((cluster) => chosen.has(cluster.name));
  for (const cluster of clusters) {
    if (chosen.has(cluster.name)) continue;
    const colour = bestColour(cluster, given(), places);
    chosen.set(cluster.name, { colour, isPlaced: places !== null });
  }
}

/** The colour whose nearest class on the map is farthest away; without a map, the one that is used least. */
function bestColour(cluster, others, places) {
  const used = Array.from({ length: N_COLOURS }, () => ({ n: 0, distance: Infinity }));
  for (const other of others) {
    const mine = used[chosen.get(other.name).colour];
    mine.n += 1;
    if (places?.[cluster.number] && places[other.number]) {
      const [x, y] = places[cluster.number],
        [u, v] = places[other.number];
      mine.distance = Math.min(mine.distance, Math.hypot(x - u, y - v));
    }
  }
  const order = used.map((_, colour) => colour);
  order.sort((a, b) => compare(used[b].distance, used[a].distance) || used[a].n - used[b].n || a - b);
  return order[0];
}

const compare = (a, b) => (a === b ? 0 : a - b); // Infinity - Infinity is NaN

/** A class keeps its colour under a new name. */
export function renameColour(from, to) {
  if (chosen.has(from) && !chosen.has(to)) chosen.set(to, chosen.get(from));
}

export function colourOf(name) {
  if (!chosen.has(name)) assignColours(state.clusters?.clusters ?? []);
  return chosen.get(name)?.colour ?? 0;
}

/** The mark of a class: its colour, a circle for seen and a diamond for novel ones. */
export const mark = (cluster) =>
  make("span", {
    class: `mark ${cluster.is_seen ? "seen" : "novel"} colour-${colourOf(cluster.name)}`,
    "aria-hidden": "true",
  });

/** The colours as the browser shows them now; `var(--...)` means nothing to a canvas. */
export function shownColours() {
  const probe = byId("main").appendChild(make("span", { hidden: true }));
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const shown = {
    classes: Array.from({ length: N_COLOURS }, (_, k) => read(`class-${k}`)),
    text: read("text"),
    faint: read("faint"),
    card: read("card"),
    line: read("line"),
  };
  probe.remove();
  return shown;
}
