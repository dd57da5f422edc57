// What the part of the address behind # says: the view, and what is open in it.

export const classAddress = (name) => `#clusters/${encodeURIComponent(name)}`;
export const searchAddress = (row) => `#search/${row}`;

/** Return the view and what is open in it: null if nothing is, "" for the rejected items. */
export function opened() {
  const [view, rest] = location.hash.slice(1).split("/", 2);
  return { view: view || "map", what: rest === undefined ? null : decodeURIComponent(rest) };
}

/** The class that is open, null if none is. */
export const openedClass = () => (opened().view === "clusters" ? opened().what : null);

/** Open a class under its new name, without a step in the history. */
export function follow(from, to) {
  if (from.includes(openedClass()) && to) history.replaceState(null, "", classAddress(to));
}
