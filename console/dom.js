// Elements as calls: h("button", { type: "button", onclick: run }, "Run"). Strings become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

// Changes the text only where it differs, so that what a reader has selected or a screen reader is at stays.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Does `work` once before the next picture, however often it is asked to.
export function eachFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

let ids = 0;

// A label with its control below: field("Budget", input, "tokens").
export function field(label, control, hint) {
  control.id ||= `f${++ids}`;
  const note = hint && h("small", { id: `${control.id}-hint`, class: "hint" }, hint);
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}

export const options = (names, chosen) =>
  names.map((name) => h("option", { value: name, selected: name === chosen }, name));

// A table whose rows are made again: table("What it shows", ["Lane", "Live"]).fill([[0, 12], ...]). A cell is text, or an element.
export function table(caption, columns, attributes = {}) {
  const body = h("tbody");
  const element = h("table", attributes, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), body);
  const fill = (rows) => body.replaceChildren(...rows.map(([first, ...rest]) =>
    h("tr", {}, h("th", { scope: "row" }, `${first}`), rest.map((cell) => h("td", {}, cell instanceof Element ? cell : `${cell}`)))));
  return { element, fill };
}

// Says one sentence to who listens rather than looks. Sparingly: once for what somebody waits for.
export const say = (sentence) => setText(document.getElementById("status"), sentence);
