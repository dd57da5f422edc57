// Export labels, manifests and folders; fit again with what people said.

import * as api from "./api.js";
import { byId, make, show } from "./dom.js";
import { problem } from "./empty.js";
import { followJob, jobBox } from "./jobs.js";
import { loadRun } from "./loading.js";
import { open } from "./model.js";
import { complain, say } from "./saved.js";
import { listen, state } from "./state.js";
import { counted, number, percent } from "./words.js";

const followed = new Set(); // ids of the jobs that are asked for
const boxes = make("div", { class: "jobs whole" });
const fitSummary = make("p", { class: "faint" });

export async function showExport() {
  const hasFiles = state.run.has_pictures;
  show(
    byId("export-parts"),
    part(
      "Labels",
      "Id and label of every item: the labels that you gave, and the classes that were named or confirmed here.",
      download("labels.csv", "CSV"),
      download("labels.parquet", "Parquet"),
    ),
    part(
      "Manifest",
      "Path and label of every image: what combemb fit takes instead of a folder.",
      hasFiles ? [download("manifest.csv", "CSV"), download("manifest.parquet", "Parquet")] : noFiles(),
    ),
    part(
      "Class folders",
      "The images sorted into a folder for each class.",
      hasFiles
        ? [download("images.zip", "Zip"), folders("Folder of links", false), folders("Folder of copies", true)]
        : noFiles(),
    ),
    fitAgain(),
    boxes,
  );
  await showJobs();
}

const part = (title, text, ...actions) =>
  make(
    "section",
    { class: "part" },
    make("h3", {}, title),
    make("p", { class: "faint" }, text),
    make("div", { class: "actions" }, actions),
  );
const download = (file, text) =>
  make("a", { class: "button", href: api.exportOf(file), download: file, "aria-label": `Download ${file}` }, text);
const noFiles = () => make("p", { class: "note" }, "This run is one of embeddings, so there are no image files.");

function folders(text, copy) {
  return make(
    "button",
    {
      onclick: async (event) => {
        const button = event.currentTarget;
        button.disabled = true;
        try {
          const { folder, n } = await api.writeFolders(copy);
          say(`${counted(n, "image")} sorted into ${folder}`);
        } catch (error) {
          complain(error);
        } finally {
          button.disabled = false;
        }
      },
    },
    text,
  );
}

function fitAgain() {
  const usual = state.run.settings.find((setting) => setting.name === "epochs");
  const epochs =
    usual && make("input", { type: "number", min: 1, id: "epochs", value: usual.value, placeholder: "auto" });
  const form = make(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        start("fit", {
          settings: epochs?.value && epochs.valueAsNumber !== usual.value ? { epochs: epochs.valueAsNumber } : {},
        });
      },
    },
    epochs && make("label", { for: "epochs" }, "Epochs ", epochs),
    make(
      "div",
      { class: "actions" },
      make("button", { class: "main" }, "Fit again"),
      make("button", { type: "button", onclick: () => start("discover", { n_novel: null }) }, "Discover again"),
      state.run.index !== "impossible" &&
        make("button", { type: "button", onclick: () => start("index", {}) }, "Index again"),
    ),
  );
  summarise();
  return make(
    "section",
    { class: "part whole" },
    make("h3", {}, "Fit again"),
    make(
      "p",
      { class: "faint" },
      "Learns from the labels that you have now, into a new run beside this one. This run is kept.",
    ),
    fitSummary,
    form,
  );
}

function summarise() {
  const { clusters, n_left: left } = state.clusters;
  const named = clusters.filter((cluster) => cluster.is_named && !cluster.is_seen);
  const names =
    named
      .slice(0, 5)
      .map((cluster) => cluster.name)
      .join(", ") + (named.length > 5 ? ", …" : "");
  const decided = clusters.reduce((sum, one) => sum + one.n_items - one.n_labelled - one.n_left, 0);
  const learned = named.length ? `${counted(named.length, "new class", "new classes")}: ${names}; ` : "";
  fitSummary.textContent = decided
    ? `${learned}${counted(decided, "item")} decided here. ${number(left)} undecided ones stay unlabelled.`
    : "Nothing has been named or confirmed yet, so there is little new to learn. Name a class under Clusters.";
}

async function start(kind, asked) {
  try {
    const job = await api.startJob({ kind, ...asked });
    await follow(job);
  } catch (error) {
    complain(error);
  }
}

/** Show the jobs of the server, those that run live. */
async function showJobs() {
  try {
    const { jobs } = await api.jobs();
    if (jobs.length === 0 && boxes.childElementCount === 0) return;
    for (const job of [...jobs].reverse()) follow(job).catch(complain);
  } catch (error) {
    show(boxes, problem(error, showJobs));
  }
}

async function follow(job) {
  if (followed.has(job.id)) return;
  followed.add(job.id);
  const box = jobBox(job);
  boxes.prepend(box);
  const result = make("div");
  box.append(result);
  const wasRunning = job.status === "running";
  if (wasRunning && boxes.isConnected) box.scrollIntoView({ block: "nearest" });
  const end = wasRunning ? await followJob(job.id, box.update) : job;
  if (end.result?.compared) show(result, comparison(end.result.compared));
  if (wasRunning && end.status === "done") {
    say(`Done: ${end.title}`);
    if (end.kind !== "fit") await loadRun();
  }
}

/** What changed from one run to the next. */
function comparison({
  before,
  after,
  counts,
  classes_added: added,
  classes_removed: removed,
  n_common: common,
  n_moved: moved,
  moves,
}) {
  const cell = (value) =>
    make("td", {}, value === null ? "–" : typeof value === "number" ? value.toLocaleString("en") : String(value));
  return make(
    "div",
    { class: "comparison" },
    make("h4", {}, "What changed"),
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          ["", before, after].map((title) => make("th", { scope: "col" }, title)),
        ),
      ),
      make(
        "tbody",
        {},
        counts.map((row) => make("tr", {}, make("th", { scope: "row" }, row.name), cell(row.before), cell(row.after))),
      ),
    ),
    added.length > 0 && make("p", {}, "New classes: ", make("strong", {}, added.join(", "))),
    removed.length > 0 && make("p", {}, `No longer there: ${removed.join(", ")}`),
    make(
      "p",
      {},
      `${number(moved)} of ${counted(common, "item")} (${percent(moved / Math.max(common, 1))}) are in another class.`,
    ),
    moves.length > 0 &&
      make(
        "ul",
        { class: "plain" },
        moves
          .slice(0, 10)
          .map((move) => make("li", {}, `${number(move.n)}: ${move.from ?? "no class"} → ${move.to ?? "no class"}`)),
      ),
    make(
      "div",
      { class: "actions" },
      make("button", { class: "main", onclick: () => open(after).catch(complain) }, `Open ${after}`),
    ),
  );
}

listen("clusters", () => !byId("export").hidden && summarise());
