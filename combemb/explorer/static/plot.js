// The map as plotly draws it: one WebGL trace for each colour and shape, which is what 100,000 points need to be quick.

import { N_COLOURS, colourOf, shownColours } from "./colours.js";

const MAX_NAMES = 30; // written on the map
const MAX_LETTERS = 22;
const NAME_WIDTH = 0.016, NAME_HEIGHT = 0.05; // of a letter and a line, relative to the map's side
const REJECTED = 2 * N_COLOURS; // trace of the items in no class
export const CONFIG = { scrollZoom: true, displayModeBar: false, responsive: true, doubleClick: "reset" };

/** Return the rows of each trace: seen and novel classes of every colour, then the rejected items. */
export function rowsOfTraces(numbers, clusters) {
  const traceOf = new Map(clusters.map((cluster) => [cluster.number, 2 * colourOf(cluster.name) + (cluster.is_seen ? 0 : 1)]));
  const sizes = new Array(REJECTED + 1).fill(0);
  const trace = Uint8Array.from(numbers, (k) => traceOf.get(k) ?? REJECTED);
  for (const t of trace) sizes[t] += 1;
  const rows = sizes.map((n) => new Uint32Array(n));
  const filled = new Array(sizes.length).fill(0);
  trace.forEach((t, row) => { rows[t][filled[t]++] = row; });
  return rows;
}

export function tracesOf(map, rows) {
  const colours = shownColours();
  const size = Math.min(Math.max(420 / Math.sqrt(map.x.length), 3.5), 9);
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
  const isNovel = t % 2 === 1;
  return { color: colours.classes[t >> 1], symbol: isNovel ? "diamond" : "circle", size: isNovel ? 1.35 * size : size, opacity: isNovel ? 0.95 : 0.6 };
}

/** The middle of each class by its number: the median of at most 500 of its items. */
export function middles(map, numbers, clusters) {
  const rows = new Map(clusters.map((cluster) => [cluster.number, []]));
  const steps = new Map(clusters.map((cluster) => [cluster.number, Math.ceil(cluster.n_items / 500)]));
  const seen = new Map();
  numbers.forEach((k, row) => {
    if (!rows.has(k)) return;
    const n = seen.get(k) ?? 0;
    seen.set(k, n + 1);
    if (n % steps.get(k) === 0) rows.get(k).push(row);
  });
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  const found = {};
  for (const [k, some] of rows) if (some.length) found[k] = [median(some.map((row) => map.x[row])), median(some.map((row) => map.y[row]))];
  return found;
}

/** Names of classes at their middles, those first that nobody has named, and none that would hide another. */
function annotations(clusters, places, colours) {
  const written = [];
  for (const cluster of clusters) {
    const place = places[cluster.number];
    if (!place || written.length === MAX_NAMES) continue;
    const text = shortened(cluster.name);
    const isFree = written.every((other) => {
      const width = (text.length + other.length) * NAME_WIDTH; // half of both, and the map is 2 wide
      return Math.abs(place[0] - other.x) > width || Math.abs(place[1] - other.y) > 2 * NAME_HEIGHT;
    });
    if (isFree) written.push({ x: place[0], y: place[1], length: text.length, text: cluster.is_seen ? escaped(text) : `<b>${escaped(text)}</b>` });
  }
  return written.map(({ x, y, text }) => ({ x, y, text, showarrow: false, font: { size: 12, color: colours.text }, captureevents: false }));
}

const shortened = (name) => (name.length <= MAX_LETTERS ? name : `${name.slice(0, MAX_LETTERS - 1)}…`);

/** plotly reads texts as markup, and knows these three entities. */
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

export function layoutOf(clusters, places, drag) {
  const axis = { visible: false, range: [-1.06, 1.06], zeroline: false };
  return {
    annotations: annotations(clusters, places, shownColours()),
    margin: { l: 0, r: 0, t: 0, b: 0 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    hoverdistance: 12,
    dragmode: drag,
    uirevision: "same", // zoom and place stay when classes change
    xaxis: { ...axis },
    yaxis: { ...axis, scaleanchor: "x" },
    font: { family: getComputedStyle(document.body).fontFamily },
  };
}
