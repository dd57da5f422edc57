// A chart of curves over epochs, drawn as SVG.

import { draw, make } from "./dom.js";

const W = 420,
  H = 200,
  LEFT = 46,
  RIGHT = 10,
  TOP = 10,
  BOTTOM = 24;
const DASHES = ["", "6 3", "2 3", "8 3 2 3"]; // lines differ by more than their colour
const TICKS = 4;

/** Return a chart of a panel of /api/curves, with its numbers at the epoch that the mouse or an arrow key points to. */
export function chart(panel, epochs) {
  const values = panel.lines
    .flatMap((line) => line.values)
    .filter((value) => value !== null && (!panel.is_log || value > 0));
  if (values.length === 0)
    return make(
      "figure",
      { class: "chart" },
      make("figcaption", {}, panel.title),
      make("p", { class: "faint" }, "no values"),
    );
  const scale = panel.is_log ? Math.log10 : (value) => value;
  let [low, high] = panel.is_share ? [0, 1] : [Math.min(...values.map(scale)), Math.max(...values.map(scale))];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const x = (i) => LEFT + ((W - LEFT - RIGHT) * i) / Math.max(epochs.length - 1, 1);
  const y = (value) => TOP + (H - TOP - BOTTOM) * (1 - (scale(value) - low) / (high - low));

  const place = draw("line", { class: "place", y1: TOP, y2: H - BOTTOM, x1: LEFT, x2: LEFT, visibility: "hidden" });
  const drawing = draw(
    "svg",
    { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": spoken(panel, epochs) },
    ticks(low, high, panel).map(({ at, text }) => [
      draw("line", { class: "tick", x1: LEFT, x2: W - RIGHT, y1: at, y2: at }),
      draw("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, text),
    ]),
    draw("text", { x: LEFT, y: H - 6 }, `epoch ${epochs[0]}`),
    draw("text", { x: W - RIGHT, y: H - 6, "text-anchor": "end" }, String(epochs.at(-1))),
    panel.lines.map((line, k) =>
      draw(
        "g",
        { class: `line colour-${k % 8}` },
        draw("path", {
          "stroke-dasharray": DASHES[(k >> 2) % DASHES.length],
          d: path(line.values, x, y, panel.is_log),
        }),
        alone(line.values).map((i) => draw("circle", { cx: x(i), cy: y(line.values[i]), r: 3 })),
      ),
    ),
    place,
  );
  const shown = panel.lines.map(() => make("output"));
  const legend = make(
    "ul",
    { class: "lines" },
    panel.lines.map((line, k) =>
      make("li", {}, make("span", { class: `dash colour-${k % 8}` }), line.name, " ", shown[k]),
    ),
  );
  const point = (i) => {
    place.setAttribute("visibility", "visible");
    place.setAttribute("x1", x(i));
    place.setAttribute("x2", x(i));
    panel.lines.forEach((line, k) => {
      shown[k].textContent = format(last(line.values, i), panel);
    });
  };
  point(epochs.length - 1);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT);
    point(Math.round(Math.min(Math.max(share, 0), 1) * (epochs.length - 1)));
  });
  return make(
    "figure",
    { class: "chart" },
    make("figcaption", {}, panel.title, panel.is_log && make("span", { class: "faint" }, " logarithmic")),
    drawing,
    legend,
  );
}

/** A line through the values that there are; some things are not measured in every epoch. */
function path(values, x, y, isLog) {
  const there = [...values.keys()].filter((i) => values[i] !== null && (!isLog || values[i] > 0));
  return there.map((i, place) => `${place ? "L" : "M"}${x(i).toFixed(1)} ${y(values[i]).toFixed(1)}`).join("");
}

/** The place of a value that is the only one, which no line shows. */
function alone(values) {
  const there = [...values.keys()].filter((i) => values[i] !== null);
  return there.length === 1 ? there : [];
}

/** The last value that was measured up to place i. */
const last = (values, i) => values.slice(0, i + 1).findLast((value) => value !== null);

function ticks(low, high, panel) {
  return Array.from({ length: TICKS + 1 }, (_, i) => {
    const value = low + ((high - low) * i) / TICKS;
    return { at: TOP + (H - TOP - BOTTOM) * (1 - i / TICKS), text: format(panel.is_log ? 10 ** value : value, panel) };
  });
}

function format(value, panel) {
  if (value === null || value === undefined) return "–";
  return panel.is_share ? `${Math.round(100 * value)}%` : Number(value.toPrecision(3)).toString();
}

const spoken = (panel, epochs) =>
  `${panel.title} over ${epochs.length} epochs; at the end ` +
  panel.lines.map((line) => `${line.name} ${format(last(line.values, epochs.length), panel)}`).join(", ");
