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
  element.append(...kept(children));
  return element;
}

/** Conditions that do not hold leave no trace. */
const kept = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

/** Replace what an element shows. */
export function show(element, ...children) {
  element.replaceChildren(...kept(children));
  return element;
}

/** The element with an id that index.html has. */
export const byId = (id) => document.getElementById(id);
