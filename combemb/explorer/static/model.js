// The model: how good it is, how it learned, which classes share meta-classes, and its settings.

import * as api from "./api.js";
import { chart } from "./chart.js";
import { byId, make, show } from "./dom.js";
import { problem } from "./empty.js";
import { metaClasses } from "./meta_classes.js";
import { listen, setRun, state } from "./state.js";
import { counted, number } from "./words.js";

let shown = null;

export async function showModel() {
  const { run } = state;
  if (shown === run) return;
  shown = run;
  const curves = make("div", { class: "charts" });
  const beside = make("div");
  show(
    byId("model-parts"),
    part(
      "This run",
      facts(run),
      run.notes.map((note) => make("p", { class: "note" }, note)),
      beside,
    ),
    run.verdict && part("Verdict", make("p", { class: `verdict ${run.verdict.grade}` }, run.verdict.text)),
    run.metrics.length > 0 && part("Metrics", metrics(run.metrics)),
    part("Loss curves", curves),
    run.meta_classes && part("Meta-class sets", metaClasses(run.meta_classes)),
    part("Settings", settings(run.settings)),
  );
  await Promise.all([fillCurves(curves), fillRuns(beside)]);
}

const part = (title, ...content) => make("section", { class: "part" }, make("h3", {}, title), content);

function facts(run) {
  const isDiscovered = run.discovery === "ready";
  const rows = [
    ["Method", run.method],
    ["Paper", run.paper],
    ["Data", run.data ?? "given as an array"],
    ["Items", isDiscovered && `${number(run.n_items)}, ${number(run.n_labelled)} of them labelled`],
    ["Classes", counted(run.n_seen, "seen class", "seen classes") + (isDiscovered ? novel(run) : "")],
    ["Codes", run.codebook ?? "none"],
    ["combemb", run.combemb],
  ];
  return make(
    "dl",
    { class: "facts" },
    rows.filter(([, value]) => value).map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
  );
}

function novel({ n_novel: n, n_novel_interval: [low, high] }) {
  return `, ${n} novel found${low < high ? ` (between ${low} and ${high})` : ""}`;
}

const metrics = (rows) =>
  make(
    "dl",
    { class: "metrics" },
    rows.map(({ name, text, about }) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, text), make("dd", { class: "faint" }, about)),
    ),
  );

async function fillCurves(box) {
  try {
    const { epochs, panels } = await api.curves();
    show(
      box,
      panels.length
        ? panels.map((panel) => chart(panel, epochs))
        : make("p", { class: "faint" }, "This method does not learn by epochs."),
    );
  } catch (error) {
    show(box, problem(error));
  }
}

async function fillRuns(box) {
  const { runs } = await api.runs().catch(() => ({ runs: [] }));
  const others = runs.filter((run) => !run.is_current && run.is_complete);
  if (others.length === 0) return show(box);
  const amounts = (run) => [
    run.n_labelled !== null && counted(run.n_labelled, "label"),
    counted(run.n_classes, "class", "classes"),
  ];
  const line = (run) =>
    make(
      "li",
      {},
      make("strong", {}, run.name),
      make("span", { class: "faint" }, ` ${amounts(run).filter(Boolean).join(", ")} `),
      make("button", { onclick: () => open(run.name) }, "Open"),
    );
  return show(box, make("h4", {}, "Other runs on these data"), make("ul", { class: "plain" }, others.map(line)));
}

/** Show another run in the whole page. */
export async function open(name) {
  setRun(await api.openRun(name));
  location.hash = "#map";
  location.reload();
}

function settings(rows) {
  const isChanged = ({ value, default: usual }) => JSON.stringify(value) !== JSON.stringify(usual);
  const ordered = [...rows].sort((a, b) => isChanged(b) - isChanged(a));
  const text = (value) => (value === null ? "None" : Array.isArray(value) ? value.join(", ") : String(value));
  const line = (row) =>
    make(
      "tr",
      { class: isChanged(row) ? "changed" : "" },
      make("th", { scope: "row" }, row.name),
      make("td", { class: "value" }, text(row.value)),
      make("td", { class: "faint" }, isChanged(row) ? `default ${text(row.default)}` : ""),
      make("td", { class: "faint about" }, row.about),
    );
  return make(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": "Settings" },
    make(
      "table",
      { class: "settings" },
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          ["Setting", "Value", "", "What it is"].map((title) => make("th", { scope: "col" }, title)),
        ),
      ),
      make("tbody", {}, ordered.map(line)),
    ),
  );
}

listen("run", () => {
  shown = null;
});
