// On paper: everything behind a heading is open, and hatches are lines, for browsers print a pattern as an image of the page.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const STEP = 3;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // y = slope * x + offset, cut off at the box
  const diagonals = ({ x, y, width, height }, slope) => {
    const [right, bottom, path] = [x + width, y + height, []];
    const offsets = slope < 0 ? [x + y, right + bottom] : [y - right, bottom - x];
    for (let offset = Math.ceil(offsets[0] / STEP) * STEP; offset < offsets[1]; offset += STEP) {
      const ends = [y, bottom].map(each => (each - offset) * slope).sort((a, b) => a - b);
      const [from, to] = [Math.max(x, ends[0]), Math.min(right, ends[1])];
      if (from < to) path.push(`M${[from, slope * from + offset, to, slope * to + offset].map(each => each.toFixed(1)).join(" ")}`);
    }
    return path.join("");
  };
  const rows = ({ x, y, width, height }) => {
    const path = [];
    for (let at = Math.ceil(y / STEP) * STEP + STEP / 2; at < y + height; at += STEP) path.push(`M${x.toFixed(1)} ${at.toFixed(1)}h${width.toFixed(1)}`);
    return path.join("");
  };
  const HATCHES = {
    "/": box => diagonals(box, -1), "\\": box => diagonals(box, 1), x: box => diagonals(box, -1) + diagonals(box, 1), "-": rows, ".": rows,
  };

  let [closed, drawn] = [[], []];
  const asLines = filled => {
    const fill = filled.getAttribute("fill");
    const pattern = document.getElementById(fill.slice(5, -1));
    const hatch = pattern?.dataset.hatch;
    if (!HATCHES[hatch]) return;
    const shapes = filled.localName === "g" ? [...filled.children] : [filled];
    const lines = document.createElementNS(SVG, "path");
    const look = { d: shapes.map(shape => HATCHES[hatch](shape.getBBox())).join(""), fill: "none", stroke: "#fff", "stroke-width": 0.6 };
    if (hatch === ".") Object.assign(look, { "stroke-linecap": "round", "stroke-dasharray": `0.6 ${STEP - 0.6}` });
    for (const [name, value] of Object.entries(look)) lines.setAttribute(name, value);
    if (filled.localName === "g") filled.append(lines);
    else filled.after(lines);
    filled.setAttribute("fill", pattern.firstElementChild.getAttribute("fill"));
    drawn.push(() => { lines.remove(); filled.setAttribute("fill", fill); });
  };
  addEventListener("beforeprint", () => {
    closed = all("main details:not([open], .help)");
    for (const each of closed) each.open = true;
    all("main [fill^=url]").forEach(asLines);
  });
  addEventListener("afterprint", () => {
    for (const each of closed) each.open = false;
    for (const undo of drawn) undo();
    [closed, drawn] = [[], []];
  });
})();
