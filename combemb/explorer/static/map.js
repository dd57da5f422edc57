// The map: all items on a plane; hovering shows one, a click opens it, the lasso selects many.

import * as api from "./api.js";
import { opened } from "./addresses.js";
import { currentAssignment, isLabelled } from "./assignment.js";
import { assignColours } from "./colours.js";
import { byId, make, show } from "./dom.js";
import { emptyState, problem } from "./empty.js";
import { followJob } from "./jobs.js";
import { showSide } from "./legend.js";
import { loadRun } from "./loading.js";
import { CONFIG, layoutOf, middles, rangesOf, rowsOfTraces, tracesOf } from "./plot.js";
import { preview } from "./preview.js";
import { hasPictures, listen, select, state } from "./state.js";
import { thumbnail } from "./tiles.js";
import { openViewer } from "./viewer.js";

const plot = byId("plot");
const ZOOM = 1.5;
const PLOTLY = "static/plotly.min.js";
let map = null; // places of the items, loaded once per discovery
let rows = []; // of each trace
let drawn = null; // state, run and theme that are drawn
let drag = "pan";
let isShown = false;
let isHeard = false; // whether the plot has its listeners

export async function showMap() {
  isShown = true;
  try {
    if (state.run.map === "missing") await waitForMap();
    else await draw();
  } catch (error) {
    tell(problem(error, showMap));
  }
}

export function hideMap() {
  isShown = false;
  byId("hover").hidden = true;
}

async function draw() {
  const theme =
    getComputedStyle(document.documentElement).colorScheme + matchMedia("(prefers-color-scheme: dark)").matches;
  const wanted = `${state.run.name} ${state.clusters.state} ${theme}`;
  if (drawn === wanted) return window.Plotly.Plots.resize(plot);
  if (!drawn) tell(make("p", { class: "faint waiting" }, "Loading the map…"));
  const [places, assignment] = await Promise.all([loadMap(), currentAssignment()]);
  const { clusters } = state.clusters;
  const middle = middles(places, assignment.numbers, clusters);
  assignColours(clusters, middle);
  rows = rowsOfTraces(assignment.numbers, clusters);
  tell();
  const traces = tracesOf(places, rows, plot);
  showSide(showOnly);
  if (!drawn) {
    preview(byId("preview"), traces, places.ranges);
    await shown("map-painted");
    if (!window.Plotly) await plotly();
  }
  await window.Plotly.react(plot, traces, layoutOf(clusters, middle, places.ranges, plot, drag), CONFIG);
  if (plot.querySelector(".no-webgl")) return tell(noWebGL());
  if (!isHeard) listenToPlot();
  drawn = wanted;
  await shown("map-drawn");
  byId("preview").hidden = true;
  return undefined;
}

/** Wait until what was drawn is on the screen, and note when that is: for benchmarks and tests. */
async function shown(what) {
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  performance.mark(what);
}

async function loadMap() {
  const discovery = state.clusters.state.split("-")[0];
  if (map?.key !== `${state.run.name} ${discovery}`) {
    const places = await api.map();
    map = { ...places, ranges: rangesOf(places), key: `${state.run.name} ${discovery}` };
  }
  return map;
}

/** Read plotly's script, which is long: only where there is a map, and after its preview. */
function plotly() {
  return new Promise((resolve, reject) => {
    const failed = Object.assign(new Error("plotly's script did not load."), { todo: "Reload the page." });
    document.head.append(make("script", { src: PLOTLY, onload: resolve, onerror: () => reject(failed) }));
  });
}

const noWebGL = () =>
  emptyState("This browser cannot draw the map", "It has no WebGL. Clusters, Review and Search work without it.");

/** Show a message in the place of the map, or the map. */
function tell(...content) {
  show(byId("map-state"), ...content);
  byId("paper").hidden = content.length > 0;
}

const startButton = (kind, text) =>
  make(
    "button",
    { class: "main", onclick: () => api.startJob({ kind }).then(waitForMap, (error) => tell(problem(error))) },
    text,
  );

function whyFailed(jobs, kind) {
  const last = jobs.find((one) => one.kind === kind);
  return last?.status === "failed" ? last.error : null;
}

function noDiscovery(jobs) {
  const error = whyFailed(jobs, "discover");
  return emptyState(
    error ? "The discovery failed" : "Nothing was discovered yet",
    error ?? "A discovery finds the classes that nobody has named.",
    startButton("discover", error ? "Try again" : "Discover classes"),
  );
}

function noMap(jobs) {
  const error = whyFailed(jobs, "map");
  return emptyState(
    error ? "The map could not be drawn" : "There is no map yet",
    error ?? "It is computed once and then stored.",
    startButton("map", "Draw the map"),
  );
}

/** Show how far the job is that makes what the map needs. */
async function waitForMap() {
  const { jobs } = await api.jobs();
  const job = jobs.find((one) => one.status === "running");
  if (!job) return tell(state.run.discovery === "ready" ? noMap(jobs) : noDiscovery(jobs));
  const bar = make("progress", { max: 1, "aria-label": "Progress of the map" });
  const text = make("p", { class: "faint" });
  tell(
    emptyState(
      job.kind === "map" ? "The map is being drawn" : job.title,
      job.kind === "map" ? "It is computed once and then stored. Clusters, Review and Search work meanwhile." : null,
      bar,
    ),
    text,
  );
  await followJob(job.id, (now) => {
    if (now.progress === null) bar.removeAttribute("value");
    else bar.value = now.progress;
    text.textContent = now.text ?? "";
  });
  await loadRun();
  return isShown ? showMap() : undefined;
}

function listenToPlot() {
  isHeard = true;
  for (const what of ["pointerdown", "wheel"])
    plot.addEventListener(what, () => {
      byId("hover").hidden = true;
    });
  plot.on("plotly_hover", (event) => hover(event.points[0], event.event));
  plot.on("plotly_unhover", () => {
    byId("hover").hidden = true;
  });
  plot.on("plotly_click", (event) => open(rowOf(event.points[0])));
  plot.on("plotly_selected", (event) => event && select(event.points.map(rowOf)));
  plot.on("plotly_deselect", () => select([]));
}

const rowOf = (point) => rows[point.curveNumber][point.pointNumber];

async function open(row) {
  const { items } = await api.items({ rows: row });
  openViewer(items, 0);
}

/** Show an item beside the mouse; all that is needed is known, except for the picture. */
function hover(point, event) {
  const row = rowOf(point);
  const { numbers, confidences } = state.assignment ?? {};
  if (!numbers) return;
  const cluster = state.clusters.clusters.find((one) => one.number === numbers[row]);
  const sure = isLabelled(state.assignment, row) ? "labelled" : `confidence ${(confidences[row] / 255).toFixed(2)}`;
  const box = byId("hover");
  const picture = hasPictures() && make("div", { class: "hover-picture" }, thumbnail({ row, name: "no picture" }, 128));
  show(
    box,
    picture,
    make("strong", {}, cluster?.name ?? "in no class"),
    make("span", { class: "faint" }, cluster ? sure : ""),
  );
  const stage = plot.parentElement.getBoundingClientRect();
  const [x, y] = [event.clientX - stage.left, event.clientY - stage.top];
  box.hidden = false;
  box.style.left = `${Math.min(Math.max(x + 16, 0), stage.width - box.offsetWidth - 4)}px`;
  box.style.top = `${Math.min(Math.max(y + 16, 0), stage.height - box.offsetHeight - 4)}px`;
}

/** Dim all classes but one; null shows all. */
function showOnly(cluster) {
  if (!drawn) return;
  const { numbers } = state.assignment;
  const points = rows.map((some) =>
    cluster ? [...some.keys()].filter((point) => numbers[some[point]] === cluster.number) : null,
  );
  window.Plotly.restyle(plot, { selectedpoints: points });
}

function zoom(factor) {
  const ranges = ["xaxis", "yaxis"].map((axis) => plot.layout[axis].range);
  const scaled = ranges.map(([low, high]) => [
    (low + high) / 2 - (factor * (high - low)) / 2,
    (low + high) / 2 + (factor * (high - low)) / 2,
  ]);
  window.Plotly.relayout(plot, { "xaxis.range": scaled[0], "yaxis.range": scaled[1] });
}

export function setDrag(mode) {
  drag = mode;
  document
    .querySelectorAll("[data-drag]")
    .forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.drag === mode)));
  if (plot.layout) window.Plotly.relayout(plot, { dragmode: mode });
}

document
  .querySelectorAll("[data-drag]")
  .forEach((button) => button.addEventListener("click", () => setDrag(button.dataset.drag)));
byId("zoom-in").addEventListener("click", () => plot.layout && zoom(1 / ZOOM));
byId("zoom-out").addEventListener("click", () => plot.layout && zoom(ZOOM));
byId("zoom-all").addEventListener(
  "click",
  () =>
    plot.layout &&
    window.Plotly.relayout(plot, { "xaxis.range": [...map.ranges[0]], "yaxis.range": [...map.ranges[1]] }),
);
if (opened().view === "map") document.head.append(make("link", { rel: "preload", as: "script", href: PLOTLY }));

const redraw = () => isShown && state.run.map === "ready" && showMap();
listen("clusters", redraw);
listen("theme", redraw);
listen("selection", (selected) => {
  if (selected.size === 0 && drawn)
    window.Plotly.restyle(plot, { selectedpoints: null }).then(() => window.Plotly.relayout(plot, { selections: [] }));
});
