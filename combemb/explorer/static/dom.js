// Elements from values. Texts become text nodes, never markup, so that no name of a file or class can be code.

const NAMESPACE = "http://www.w3.org/2000/svg";

/** Return an element; `on...` are listeners, `data` is the dataset, `true` and `false` switch attributes. */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for a part of a drawing. */
export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(NAMESPACE, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") Object.entries(value).forEach(([key, text]) => element.style.setProperty(key, text));
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Replace what an element shows. */
export function show(element, ...children) {
  element.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** The element with an id that index.html has. */
export const byId = (id) => document.getElementById(id);

/** A number as people write it, and with its noun. */
export const number = (n) => n.toLocaleString("en");
export const counted = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
export const percent = (share) => `${Math.round(100 * share)}%`;

/** What a view shows instead of content: what is so, and what helps. */
export function emptyState(title, text, ...actions) {
  return make(
    "div",
    { class: "empty" },
    make("h3", {}, title),
    text && make("p", {}, text),
    make("div", { class: "actions" }, actions),
  );
}

export const problem = (error, again) =>
  emptyState(error.message, error.todo, again && make("button", { onclick: again }, "Try again"));
