// Changes of classes: sent at once, confirmed when they are on the disk, taken back by undo.

import * as api from "./api.js";
import { follow } from "./addresses.js";
import { movable } from "./assignment.js";
import { renameColour } from "./colours.js";
import { lookAgain } from "./loading.js";
import { complain, say } from "./saved.js";
import { select, setClusters, state } from "./state.js";

let before = Promise.resolve(); // changes are sent one after the other, in the order in which they were made
const renamed = []; // [from, to] of each change of this page, so that undo leads back to the class as it was called

/** Send a change; return the answer, or null if it was refused (and said so). */
export function make(change) {
  const sent = before.then(() => apply(change));
  before = sent.catch(() => {});
  return sent;
}

async function apply(change) {
  try {
    const answer = await api.change({ ...change, state: state.clusters?.state });
    followNames(change, answer);
    select([]);
    setClusters(answer.clusters);
    if (change.kind === "undo") say(sentence(answer.text));
    else say(`Saved. ${sentence(answer.text)}`, { text: "Undo", run: undo });
    return answer;
  } catch (error) {
    if (error.code === "changed") {
      await lookAgain();
      complain({
        message: "The classes were changed elsewhere; this page has loaded them.",
        todo: "Nothing was saved: look, and do it again.",
      });
    } else {
      complain(error);
    }
    return null;
  }
}

/** The page stays at a class that gets another name, and the class keeps its colour. */
function followNames(change, answer) {
  if (change.kind === "undo") {
    const [from, to] = renamed.pop() ?? [[], null];
    return follow([to], from[0]);
  }
  const from = change.kind === "name" ? [change.cluster] : change.kind === "merge" ? change.clusters : [];
  const to = from.length ? answer.groups[0].to : null;
  renamed.push([from, to]);
  if (change.kind === "name") renameColour(change.cluster, to);
  return follow(from, to);
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}`.replace(/ -> /g, " → ");

export const undo = () => make({ kind: "undo" });
export const name = (cluster, to) => make({ kind: "name", cluster, to });
export const divide = (cluster, into) => make({ kind: "split", cluster, into });

/** Merge classes; a seen one gives its name, else one that a person named. */
export function merge(clusters) {
  const rank = (cluster) => (cluster.is_seen ? 0 : cluster.is_named ? 1 : 2);
  const ordered = [...clusters].sort((a, b) => rank(a) - rank(b));
  return make({ kind: "merge", clusters: ordered.map((cluster) => cluster.name) });
}

/** Move items into a class; labelled ones stay, since their label counts. */
export async function move(to, rows) {
  const { groups } = await movable(rows);
  const items = [...groups.values()].flat(); // also those that are in it: that confirms them
  if (items.length === 0) return refuse("Labelled items keep their label.");
  return make({ kind: "move", to, items });
}

/** Take items out of their classes, one change for each class. */
export async function reject(rows) {
  const { groups, nLabelled } = await movable(rows);
  groups.delete(null);
  if (groups.size === 0)
    return refuse(nLabelled ? "Labelled items keep their label." : "They are in no class already.");
  let answer = null;
  for (const [cluster, items] of groups) answer = await make({ kind: "reject", cluster, items });
  return answer;
}

/** Make a new class of some items of one class. */
export async function split(rows) {
  const { groups, nLabelled } = await movable(rows);
  groups.delete(null);
  if (groups.size > 1)
    return refuse("The items are in several classes. Move them into one class first, or choose items of one class.");
  if (groups.size === 0) return refuse(nLabelled ? "Labelled items keep their label." : "Choose items of a class.");
  const [[cluster, items]] = groups;
  return make({ kind: "split", cluster, items });
}

function refuse(message) {
  complain({ message });
  return null;
}

export const rejectClass = (cluster) => make({ kind: "reject", cluster });
