// What the page knows, and who wants to hear when it changes.

export const state = {
  run: null, // answer of /api/run
  clusters: null, // answer of /api/clusters
  assignment: null, // answer of /api/assignment, once the map has asked for it
  selected: new Set(), // rows of the items that are selected
};

const bus = new EventTarget();

/** Listen to "run", "clusters", "selection", "gone" or "job". */
export const listen = (what, listener) => bus.addEventListener(what, (event) => listener(event.detail));
export const emit = (what, detail) => bus.dispatchEvent(new CustomEvent(what, { detail }));

export function setRun(run) {
  state.run = run;
  emit("run", run);
}

export function setClusters(answer) {
  const isOther = state.clusters?.state !== answer.state;
  state.clusters = answer;
  if (isOther) state.assignment = null;
  emit("clusters", answer);
}

export function select(rows) {
  state.selected = new Set(rows);
  emit("selection", state.selected);
}

export function toggleSelected(row) {
  const rows = new Set(state.selected);
  if (!rows.delete(row)) rows.add(row);
  select(rows);
}

export const clusterNamed = (name) => state.clusters?.clusters.find((cluster) => cluster.name === name);
export const hasPictures = () => Boolean(state.run?.has_pictures);
