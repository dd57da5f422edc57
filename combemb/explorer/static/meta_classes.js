// Which classes share a meta-class in which set: what makes a code of the classes.

import { make, show } from "./dom.js";

/** Return the table of sets and classes; a chosen class shows with whom it shares most. */
export function metaClasses({ n_words: nWords, classes, table }) {
  const shared = make("p", { class: "faint", "aria-live": "polite" });
  const rows = table.map((set, m) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, `set ${m + 1}`),
      set.map((word) => make("td", { class: `word word-${word % 8}`, data: { word } }, String(word + 1))),
    ),
  );
  const head = classes.map((name, c) =>
    make(
      "th",
      { scope: "col" },
      make("button", { class: "class", "aria-pressed": "false", onclick: () => choose(c) }, make("span", {}, name)),
    ),
  );
  const body = make(
    "table",
    { class: "words" },
    make("thead", {}, make("tr", {}, make("td"), head)),
    make("tbody", {}, rows),
  );
  let chosen = null;

  function choose(c) {
    chosen = chosen === c ? null : c;
    const isShared = (m, other) => chosen !== null && table[m][other] === table[m][chosen];
    rows.forEach((row, m) =>
      [...row.querySelectorAll("td")].forEach((cell, other) => {
        cell.classList.toggle("shared", isShared(m, other));
        cell.classList.toggle("dim", chosen !== null && !isShared(m, other));
      }),
    );
    head.forEach((cell, other) => cell.firstChild.setAttribute("aria-pressed", String(other === chosen)));
    show(shared, chosen === null ? hint : sentence(chosen));
  }
  function sentence(c) {
    const counts = classes.map((name, other) => ({
      name,
      other,
      n: table.filter((set) => set[other] === set[c]).length,
    }));
    const nearest = counts
      .filter(({ other }) => other !== c)
      .sort((a, b) => b.n - a.n)
      .slice(0, 5);
    const shares = nearest.map(({ name, n }) => `${name} in ${n}`).join(", ");
    return `${classes[c]} shares a meta-class with ${shares} of ${table.length} sets.`;
  }
  const hint =
    `${table.length} sets of ${nWords} meta-classes. In each set a class belongs to one of them; ` +
    "choose a class to see with which others it shares it.";
  show(shared, hint);
  return [shared, make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Meta-class sets" }, body)];
}
