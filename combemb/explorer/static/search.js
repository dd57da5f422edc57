// Search by an item or by an uploaded image.

import * as api from "./api.js";
import { mark } from "./colours.js";
import { byId, make, show } from "./dom.js";
import { emptyState, problem } from "./empty.js";
import { complain } from "./saved.js";
import { clusterNamed, hasPictures, listen, state } from "./state.js";
import { grid, thumbnail } from "./tiles.js";
import { counted } from "./words.js";

let query = null; // {row} or {file}
let kind = "";
let asked = 0;
let previewed = null; // address of the uploaded image

/** Show the view; `what` is the row of the query, or null for the last one. */
export function showSearch(what) {
  const canSearch = state.run.index === "ready";
  byId("drop").hidden = !canSearch || !hasPictures();
  byId("search-filters").hidden = !canSearch;
  fillClasses();
  if (what !== null && what !== "") query = { row: Number(what) };
  if (!canSearch) return unavailable();
  return query ? ask() : nothing();
}

function nothing() {
  show(byId("query"));
  const how = hasPictures()
    ? "Drop an image anywhere on this page, or choose Find similar at any item."
    : "Choose Find similar at any item. This run is one of embeddings, so there are no images to upload.";
  show(byId("hits"), emptyState("What are you looking for?", how));
}

function unavailable() {
  const isImpossible = state.run.index === "impossible";
  show(byId("query"));
  show(
    byId("hits"),
    emptyState(
      "There is no index",
      isImpossible
        ? `The method ${state.run.method} has no codes to search with.`
        : "An index makes every item searchable.",
      !isImpossible &&
        make(
          "button",
          {
            class: "main",
            onclick: () =>
              api.startJob({ kind: "index" }).then(() => {
                location.hash = "#export";
              }, complain),
          },
          "Build the index",
        ),
    ),
  );
}

async function ask() {
  const question = ++asked;
  const wanted = {
    k: Number(byId("search-k").value),
    kind: kind || null,
    cluster: byId("search-cluster").value || null,
  };
  byId("hits").setAttribute("aria-busy", "true");
  try {
    const found = await (query.file ? api.searchImage(query.file, wanted) : api.search({ row: query.row, ...wanted }));
    if (question !== asked) return;
    showQuery(found.query);
    showHits(found.hits);
  } catch (error) {
    if (question !== asked) return;
    show(byId("query"), query.file && make("p", { class: "path faint" }, query.file.name));
    show(byId("hits"), problem(error, error.code !== "broken_image" && ask));
  } finally {
    if (question === asked) byId("hits").removeAttribute("aria-busy");
  }
}

function showQuery(found) {
  if (previewed) URL.revokeObjectURL(previewed);
  previewed = query.file ? URL.createObjectURL(query.file) : null;
  const name = query.file?.name ?? `item ${query.row}`;
  const picture = previewed ? make("img", { src: previewed, alt: "" }) : thumbnail({ row: query.row, name }, 256);
  const text = found.kind === "neither" ? "like none of the classes" : (found.cluster ?? found.name ?? "in no class");
  const cluster = clusterNamed(found.cluster ?? found.name);
  const sure =
    typeof found.confidence === "number" && found.kind !== "neither" ? `confidence ${found.confidence.toFixed(2)}` : "";
  show(
    byId("query"),
    make(
      "figure",
      { class: "asked" },
      make("div", { class: "picture" }, picture),
      make(
        "figcaption",
        {},
        query.file && make("span", { class: "path faint" }, name),
        make("span", { class: "heading" }, cluster && mark(cluster), make("span", { class: "name" }, text)),
        make("span", { class: "faint" }, sure),
      ),
    ),
  );
}

function showHits(hits) {
  if (hits.length === 0)
    return show(
      byId("hits"),
      emptyState(
        "No hits",
        "No entry of the index passes the filters.",
        make("button", { onclick: clearFilters }, "Clear the filters"),
      ),
    );
  const items = hits.map((hit) => ({ ...hit, is_labelled: hit.label !== null }));
  return show(
    byId("hits"),
    make("h3", {}, counted(hits.length, "hit"), make("span", { class: "faint" }, " nearest first")),
    grid(items, "Hits", caption),
  );
}

const caption = (hit) => [
  make("span", { class: "score" }, hit.score.toFixed(2)),
  make(
    "span",
    { class: `name${hit.label === null ? " faint" : ""}`, title: hit.label === null ? "class" : "label" },
    hit.label ?? hit.cluster ?? "no class",
  ),
];

function fillClasses() {
  const list = byId("search-cluster");
  const value = list.value;
  show(
    list,
    make("option", { value: "" }, "any"),
    (state.clusters?.clusters ?? []).map(({ name }) => make("option", { value: name }, name)),
  );
  list.value = clusterNamed(value) ? value : "";
}

function clearFilters() {
  byId("search-cluster").value = "";
  setKind("");
}

function setKind(value) {
  kind = value;
  document
    .querySelectorAll("[data-kind]")
    .forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.kind === kind)));
  if (query) ask();
}

/** Search with the image of a file. */
function upload(file) {
  const { upload_bytes: most } = state.run.limits;
  if (file.size > most) {
    const todo = `Use an image of at most ${(most / 1e6).toFixed(0)} MB.`;
    return complain({ message: `${file.name} has ${(file.size / 1e6).toFixed(1)} MB.`, todo });
  }
  query = { file };
  if (location.hash === "#search") return ask();
  location.hash = "#search"; // shows the view, which asks
  return undefined;
}

export function focusSearch() {
  const [first] = [byId("upload"), byId("search-cluster")].filter((element) => element.offsetParent);
  first?.focus();
}

document
  .querySelectorAll("[data-kind]")
  .forEach((button) => button.addEventListener("click", () => setKind(button.dataset.kind)));
for (const id of ["search-cluster", "search-k"]) byId(id).addEventListener("change", () => query && ask());
byId("upload").addEventListener("change", (event) => {
  if (event.target.files[0]) upload(event.target.files[0]);
  event.target.value = ""; // so that the same file can be chosen again
});

/** An image may be dropped anywhere on the page. */
window.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
window.addEventListener("drop", (event) => {
  const [file] = event.dataTransfer.files;
  if (!file) return;
  event.preventDefault();
  if (hasPictures() && state.run.index === "ready") upload(file);
});

listen("clusters", () => !byId("search").hidden && fillClasses());
