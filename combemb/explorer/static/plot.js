// The map as plotly draws it: one WebGL trace for each colour and shape, which is what 100,000 points need to be quick.

import { N_COLOURS, colourOf, shownColours } from "./colours.js";

const MAX_NAMES = 30; // written on the map
const MAX_LETTERS = 22;
const LETTER = 7.5,
  LINE = 20; // pixels that a name needs
const MARGIN = 0.04; // around all points
const REJECTED = 0; // trace of the items in no class; then those of seen classes, and novel ones on top of them
export const CONFIG = { scrollZoom: true, displayModeBar: false, responsive: true, doubleClick: "reset" };

/** Return the rows of each trace. */
export function rowsOfTraces(numbers, clusters) {
  const traceOf = new Map(
    clusters.map((cluster) => [cluster.number, 1 + colourOf(cluster.name) + (cluster.is_seen ? 0 : N_COLOURS)]),
  );
  const sizes = new Array(1 + 2 * N_COLOURS).fill(0);
  const trace = Uint8Array.from(numbers, (k) => traceOf.get(k) ?? REJECTED);
  for (const t of trace) sizes[t] += 1;
  const rows = sizes.map((n) => new Uint32Array(n));
  const filled = new Array(sizes.length).fill(0);
  trace.forEach((t, row) => {
    rows[t][filled[t]++] = row;
  });
  return rows;
}

export function tracesOf(map, rows, { clientWidth, clientHeight }) {
  const colours = shownColours();
  const size = Math.min(Math.max(0.3 * Math.sqrt((clientWidth * clientHeight) / map.x.length), 2), 9);
  return rows.map((some, t) => ({
    type: "scattergl",
    mode: "markers",
    x: Float32Array.from(some, (row) => map.x[row]),
    y: Float32Array.from(some, (row) => map.y[row]),
    hoverinfo: "none",
    marker: markerOf(t, size, colours),
    selected: { marker: { opacity: 1 } },
    unselected: { marker: { opacity: 0.08 } },
  }));
}

function markerOf(t, size, colours) {
  if (t === REJECTED) return { color: colours.faint, symbol: "x", size: 0.8 * size, opacity: 0.5 };
  const isNovel = t > N_COLOURS;
  return {
    color: colours.classes[(t - 1) % N_COLOURS],
    symbol: isNovel ? "diamond" : "circle",
    size: isNovel ? 1.35 * size : size,
    opacity: isNovel ? 0.95 : 0.6,
  };
}

/** The middle of each class by its number: the median of at most 500 of its items. */
export function middles(map, numbers, clusters) {
  const rows = new Map(clusters.map((cluster) => [cluster.number, []]));
  const steps = new Map(clusters.map((cluster) => [cluster.number, Math.ceil(cluster.n_items / 500)]));
  const seen = new Map();
  numbers.forEach((k, row) => {
    if (!rows.has(k) || Number.isNaN(map.x[row])) return; // an image that cannot be read has no place
    const n = seen.get(k) ?? 0;
    seen.set(k, n + 1);
    if (n % steps.get(k) === 0) rows.get(k).push(row);
  });
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  const found = {};
  for (const [k, some] of rows)
    if (some.length) found[k] = [median(some.map((row) => map.x[row])), median(some.map((row) => map.y[row]))];
  return found;
}

/** The ranges of x and y in which all points are. */
export function rangesOf({ x, y }) {
  return [x, y].map((values) => {
    let low = Infinity,
      high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    const margin = MARGIN * (high - low) || 0.1;
    return [low - margin, high + margin];
  });
}

/**
 * Names of classes at their middles, those first that nobody has named; none that would hide another where a pixel is
 * as wide as `pixel`, and none that would leave the map, which shows x from `low` to `high`.
 */
function annotations(clusters, places, pixel, [low, high], colours) {
  const written = [];
  for (const cluster of clusters) {
    const place = places[cluster.number];
    if (!place || written.length === MAX_NAMES) continue;
    const text = shortened(cluster.name);
    const half = (text.length / 2) * LETTER * pixel;
    const x = Math.max(low + half, Math.min(place[0], high - half));
    const isFree = written.every((other) => {
      const width = half + (other.length / 2) * LETTER * pixel;
      return Math.abs(x - other.x) > width || Math.abs(place[1] - other.y) > LINE * pixel;
    });
    if (isFree)
      written.push({
        x,
        y: place[1],
        length: text.length,
        text: cluster.is_seen ? escaped(text) : `<b>${escaped(text)}</b>`,
      });
  }
  return written.map(({ x, y, text }) => ({
    x,
    y,
    text,
    showarrow: false,
    font: { size: 12, color: colours.text },
    captureevents: false,
  }));
}

const shortened = (name) => (name.length <= MAX_LETTERS ? name : `${name.slice(0, MAX_LETTERS - 1)}…`);

/** plotly reads texts as markup, and knows these three entities. */
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** The layout of a map with these ranges in an element of this size. */
export function layoutOf(clusters, places, [xRange, yRange], { clientWidth, clientHeight }, drag) {
  const axis = { visible: false, zeroline: false };
  const pixel = Math.max((xRange[1] - xRange[0]) / clientWidth, (yRange[1] - yRange[0]) / clientHeight);
  const [middle, half] = [(xRange[0] + xRange[1]) / 2, (pixel * clientWidth) / 2];
  return {
    annotations: annotations(clusters, places, pixel, [middle - half, middle + half], shownColours()),
    margin: { l: 0, r: 0, t: 0, b: 0 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    hoverdistance: 12,
    dragmode: drag,
    uirevision: "same", // zoom and place stay when classes change
    xaxis: { ...axis, range: [...xRange] },
    yaxis: { ...axis, range: [...yRange], scaleanchor: "x" },
    font: { family: getComputedStyle(document.body).fontFamily },
  };
}
