// The class of every item, for what knows items by their rows only: the map and a selection.

import * as api from "./api.js";
import { setClusters, state } from "./state.js";

const LABELLED = 1;

/** Return the classes of all items as they are now; clusters and assignment belong to one state. */
export async function currentAssignment() {
  if (state.assignment) return state.assignment;
  const loaded = await api.assignment();
  if (loaded.state !== state.clusters?.state) {
    const clusters = await api.clusters(); // somebody changed something in between
    setClusters(clusters);
    if (clusters.state !== loaded.state) return currentAssignment();
  }
  state.assignment = loaded;
  return loaded;
}

/** Split rows into those that may be moved, by the class that they are in (null: rejected), and the labelled ones. */
export async function movable(rows) {
  const { numbers, flags } = await currentAssignment();
  const names = new Map(state.clusters.clusters.map((cluster) => [cluster.number, cluster.name]));
  const free = rows.filter((row) => !(flags[row] & LABELLED));
  return { groups: Map.groupBy(free, (row) => names.get(numbers[row]) ?? null), nLabelled: rows.length - free.length };
}

export const isLabelled = (assignment, row) => Boolean(assignment.flags[row] & LABELLED);
