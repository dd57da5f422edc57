// One class: its items, typical ones first and doubtful ones after, and what can be said about it.

import { openedClass } from "./addresses.js";
import * as api from "./api.js";
import * as changes from "./changes.js";
import { chooseClass, chooseNumber } from "./chooser.js";
import { mark } from "./colours.js";
import { meter } from "./clusters.js";
import { byId, make, show } from "./dom.js";
import { emptyState, problem } from "./empty.js";
import { clusterNamed, listen, state } from "./state.js";
import { append, grid } from "./tiles.js";
import { counted } from "./words.js";

const FEW = 24; // items of the typical and of the doubtful ones
const PAGE = 100; // items that are added at a time when all are shown
let asked = 0; // the last question to the server; answers to earlier ones are too late

export async function showCluster(name) {
  const box = byId("cluster");
  const question = ++asked;
  if (name === null)
    return show(
      box,
      emptyState("Choose a class", "Novel ones without a name come first. Press n to name the one that is open."),
    );
  const cluster = clusterNamed(name);
  if (name !== "" && !cluster)
    return show(
      box,
      back(),
      emptyState(
        `There is no class ${name} any more`,
        "It was merged, renamed or rejected. Undo takes the last change back.",
      ),
    );
  const body = make("div", { class: "items" });
  const focused = tiles(box).indexOf(document.activeElement);
  show(box, back(), cluster ? heading(cluster) : rejectedHeading(), body);
  box.scrollTop = 0;
  try {
    await (cluster ? fillSome(body, cluster, question) : fillAll(body, { rejected: true }, "Rejected items"));
    if (focused >= 0 && question === asked)
      tiles(box)
        .at(Math.min(focused, tiles(box).length - 1))
        ?.focus();
  } catch (error) {
    if (question === asked)
      show(
        body,
        problem(error, () => showCluster(name)),
      );
  }
}

const rejectedHeading = () =>
  make(
    "header",
    { class: "class-heading" },
    make("h2", {}, "Rejected items"),
    make(
      "p",
      { class: "faint" },
      "They are in no class, and stay unlabelled in the next fit. Select some to move them into one.",
    ),
  );

const tiles = (box) => [...box.querySelectorAll(".tile .open")];
const back = () => make("a", { class: "back", href: "#clusters" }, "← All classes");

function heading(cluster) {
  const facts = [
    counted(cluster.n_items, "item"),
    cluster.n_labelled > 0 && `${cluster.n_labelled} labelled`,
    cluster.n_left > 0 && `${cluster.n_left} to decide`,
  ];
  return make(
    "header",
    { class: "class-heading" },
    make("h2", {}, mark(cluster), make("span", { class: "name" }, cluster.name)),
    make(
      "p",
      { class: "faint" },
      [cluster.is_seen ? "seen class" : cluster.is_named ? "novel class, named by you" : "novel class", ...facts]
        .filter(Boolean)
        .join(" · "),
      " ",
      meter(cluster),
    ),
    cluster.is_seen ? confirmation(cluster) : naming(cluster),
    make(
      "div",
      { class: "actions" },
      make("button", { onclick: () => mergeWith(cluster) }, "Merge with…"),
      make("button", { onclick: () => divide(cluster), disabled: cluster.n_items - cluster.n_labelled < 2 }, "Split…"),
      make("button", { onclick: () => rejectAll(cluster), disabled: cluster.n_items === cluster.n_labelled }, "Reject"),
    ),
  );
}

function naming(cluster) {
  const field = make("input", {
    id: "name",
    autocomplete: "off",
    spellcheck: "false",
    value: cluster.is_named ? cluster.name : "",
    placeholder: "What is this?",
    required: true,
    "aria-describedby": "name-hint",
  });
  const suggestions = cluster.suggestions.map(({ name, reason }) =>
    make(
      "button",
      { type: "button", class: "chip", title: reason, onclick: () => giveName(cluster, name) },
      name,
      make("span", { class: "faint" }, reason),
    ),
  );
  return make(
    "form",
    {
      class: "naming",
      onsubmit: (event) => {
        event.preventDefault();
        giveName(cluster, field.value);
      },
    },
    make("label", { for: "name" }, cluster.is_named ? "Other name" : "Name"),
    field,
    make("button", { class: "main" }, "Save"),
    suggestions.length > 0 &&
      make("div", { class: "chips", role: "group", "aria-label": "Suggested names" }, suggestions),
    make("p", { id: "name-hint", class: "faint" }, "The name of another class joins the two."),
  );
}

const confirmation = (cluster) =>
  cluster.n_left > 0 &&
  make(
    "div",
    { class: "naming" },
    make(
      "button",
      { class: "main", onclick: () => changes.name(cluster.name, cluster.name) },
      `Confirm ${counted(cluster.n_left, "item")}`,
    ),
    make("p", { class: "faint" }, "All of them are of this class: they count as labelled in the next fit."),
  );

const giveName = (cluster, name) => changes.name(cluster.name, name.trim());

async function mergeWith(cluster) {
  const other = await chooseClass(`Merge ${cluster.name} with`, [cluster.name]);
  if (other) await changes.merge([cluster, other]);
}

async function divide(cluster) {
  const most = Math.min(10, cluster.n_items - cluster.n_labelled);
  const parts = await chooseNumber(`Split ${cluster.name}`, "Number of parts, which are found by similarity", "Split", {
    min: 2,
    max: most,
    value: 2,
  });
  if (parts) await changes.divide(cluster.name, parts);
}

async function rejectAll(cluster) {
  if (await changes.rejectClass(cluster.name)) location.hash = "#clusters";
}

/** Show the typical items, then the doubtful ones that are not among them. */
async function fillSome(body, cluster, question) {
  const [typical, doubtful] = await Promise.all(
    ["exemplars", "borderline"].map((order) => api.items({ cluster: cluster.name, order, n: FEW })),
  );
  if (question !== asked) return;
  const known = new Set(typical.items.map((item) => item.row));
  const others = doubtful.items.filter((item) => !known.has(item.row) && !item.is_labelled);
  show(
    body,
    make("h3", {}, "Typical", make("span", { class: "faint" }, " nearest to the centre")),
    grid(typical.items, "Typical items"),
    others.length > 0 && [
      make("h3", {}, "Borderline", make("span", { class: "faint" }, " least sure first")),
      grid(others, "Borderline items"),
    ],
    typical.total > known.size + others.length &&
      make(
        "p",
        {},
        make(
          "button",
          { onclick: () => fillAll(body, { cluster: cluster.name, order: "exemplars" }, `Items of ${cluster.name}`) },
          `Show all ${counted(typical.total, "item")}`,
        ),
      ),
  );
}

/** Show all items, a page at a time. */
async function fillAll(body, which, label) {
  const first = await api.items({ ...which, n: PAGE });
  if (first.total === 0) return show(body, emptyState("No items", "Rejected items would be here."));
  const list = grid(first.items, label);
  const more = make("button", {}, "Show more");
  const left = () => {
    more.hidden = list.items.length >= first.total;
  };
  more.addEventListener("click", async () => {
    append(list, (await api.items({ ...which, n: PAGE, start: list.items.length })).items);
    left();
  });
  left();
  return show(body, list, make("p", {}, more));
}

listen("clusters", () => openedClass() !== null && showCluster(openedClass()));
