// The page: what is loaded first, which view is shown, and what every view has in its head.

import { opened } from "./addresses.js";
import { undo } from "./changes.js";
import { hideClusters, showClusters } from "./clusters.js";
import { byId, make, show } from "./dom.js";
import { problem } from "./empty.js";
import { showExport } from "./export.js";
import "./keys.js";
import { loadRun, lookAgain } from "./loading.js";
import { hideMap, showMap } from "./map.js";
import { showModel } from "./model.js";
import { hideReview, showReview } from "./review.js";
import { showSearch } from "./search.js";
import { listen, select, state } from "./state.js";
import "./themes.js";
import { counted, number } from "./words.js";

const NOTHING = () => {};
const VIEWS = {
  map: { title: "Map", show: showMap, hide: hideMap },
  clusters: { title: "Clusters", show: showClusters, hide: hideClusters },
  review: { title: "Review", show: showReview, hide: hideReview },
  search: { title: "Search", show: showSearch, hide: NOTHING },
  model: { title: "Model", show: showModel, hide: NOTHING },
  export: { title: "Export", show: showExport, hide: NOTHING },
};
const NEED_DISCOVERY = ["clusters", "review", "search", "export"];
const RETRY = 2000; // milliseconds until a server that is gone is asked again
let current = null;

function route() {
  const { view: asked, what } = opened();
  const name = asked in VIEWS ? asked : "map";
  if (current !== name) {
    if (current) VIEWS[current].hide();
    if (current) select([]);
    byId("main").scrollTop = 0;
  }
  const isOther = current !== null && current !== name;
  current = name;
  for (const view of Object.keys(VIEWS)) byId(view).hidden = view !== name;
  for (const link of byId("views").children) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[name].title} · ${state.run.name}`;
  const isMissing = state.run.discovery !== "ready" && NEED_DISCOVERY.includes(name);
  if (isMissing) location.replace("#map");
  else VIEWS[name].show(what);
  if (isOther && !byId(name).contains(document.activeElement)) byId("main").focus({ preventScroll: true });
}

async function start() {
  try {
    await loadRun();
    addEventListener("hashchange", route);
    route();
  } catch (error) {
    show(
      byId("main"),
      problem(error, () => location.reload()),
    );
  }
}

listen("run", (run) => {
  byId("run-name").textContent = run.name;
  byId("run-name").title = run.data ?? run.name;
  if (run.discovery !== "ready")
    byId("run-about").textContent = `${counted(run.n_seen, "seen class", "seen classes")} · nothing discovered yet`;
});

listen("clusters", (clusters) => {
  const button = byId("undo");
  button.disabled = clusters.can_undo === null;
  button.title = clusters.can_undo ? `Undo: ${clusters.can_undo} (u)` : "Nothing to undo";
  const novel = clusters.clusters.filter((cluster) => !cluster.is_seen).length;
  byId("run-about").textContent =
    `${counted(clusters.n_items, "item")} · ${clusters.clusters.length - novel} seen, ${novel} novel`;
  const left = byId("left");
  left.hidden = clusters.n_left === 0;
  show(left, number(clusters.n_left), make("span", { class: "unseen" }, " left"));
});

let isAsking = false;
listen("gone", (isGone) => {
  const trouble = byId("trouble");
  if (trouble.hidden === !isGone) return;
  trouble.hidden = !isGone;
  trouble.textContent = isGone
    ? "The server does not answer. Start it again with combemb serve; this page goes on by itself. " +
      "What was confirmed as saved is on the disk."
    : "";
  if (isGone && !isAsking) askAgain();
});

/** Ask until the server is back, then show what is there now. */
async function askAgain() {
  isAsking = true;
  while (!byId("trouble").hidden) {
    await new Promise((resolve) => setTimeout(resolve, RETRY));
    await lookAgain().catch(() => {});
  }
  isAsking = false;
}

byId("undo").addEventListener("click", undo);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && state.clusters) lookAgain().catch(() => {}); // classes may have been changed elsewhere
});
start();
