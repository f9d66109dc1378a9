// A line chart of the last minutes, that also reads as text: the newest values stand in its legend, the rest in a table.

import { h, setText, svg, table } from "./dom.js";

const [WIDTH, HEIGHT] = [300, 90];
const POINTS = 150;
const TABLE_ROWS = 10;

// `names`: of the lines; `format`: of a value. add([values]) takes one each, null where there is none.
export function plot(title, names, format) {
  const points = [];
  const lines = names.map((_, i) => svg("path", { class: `line line-${i}`, fill: "none" }));
  const top = h("span", { class: "top" });
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }), lines);
  const values = names.map(() => h("b", {}, "–"));
  const legend = h("ul", { class: "legend" }, names.map((name, i) => h("li", { class: `key-${i}` }, `${name} `, values[i])));
  const details = table(`${title}, the last ${TABLE_ROWS} samples`, ["Time", ...names]);
  const fold = h("details", {}, h("summary", {}, "As a table"), details.element);
  const element = h("figure", { class: "plot" }, h("figcaption", {}, title), h("div", { class: "picture" }, top, picture), legend, fold);

  const shown = (value) => (value === null ? "–" : format(value));
  const draw = () => {
    const highest = Math.max(...points.flatMap(({ taken }) => taken.map((value) => value ?? 0)), 1e-9);
    setText(top, format(highest));
    lines.forEach((line, i) => {
      let pen = "M";
      const path = points.map(({ taken }, at) => {
        if (taken[i] === null) {
          pen = "M";
          return "";
        }
        const x = WIDTH * (POINTS - points.length + at) / (POINTS - 1);
        const step = `${pen}${x.toFixed(1)} ${(HEIGHT - 1 - (HEIGHT - 4) * taken[i] / highest).toFixed(1)}`;
        pen = "L";
        return step;
      });
      line.setAttribute("d", path.join(""));
    });
    values.forEach((value, i) => setText(value, shown(points.at(-1).taken[i])));
    if (fold.open) {
      details.fill(points.slice(-TABLE_ROWS).reverse().map(({ time, taken }) => [time.toLocaleTimeString(), ...taken.map(shown)]));
    }
  };
  fold.addEventListener("toggle", () => points.length && draw());
  const add = (taken) => {
    points.push({ time: new Date(), taken });
    if (points.length > POINTS) points.shift();
    draw();
  };
  return { element, add };
}
