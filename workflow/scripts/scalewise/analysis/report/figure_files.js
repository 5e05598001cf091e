// A figure as the reader sees it, as files: SVG, PDF, and the numbers behind its marks as CSV.
"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // the drawing in light colours, without what is hidden and what only a page can use
  const drawingOf = figure => {
    const svg = figure.querySelector("svg").cloneNode(true);
    const [, , width, height] = svg.getAttribute("viewBox").split(" ");
    for (const element of [svg, ...all("*", svg)]) {
      if (element.style?.display === "none") { element.remove(); continue; }
      for (const name of ["tabindex", "role", "aria-label", "style"]) element.removeAttribute(name);
      const link = element.getAttribute("href");
      if (link) {
        element.removeAttribute("href");
        element.setAttributeNS("http://www.w3.org/1999/xlink", "xlink:href", link);
      }
    }
    svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", figure.querySelector("figcaption b").textContent);
    svg.setAttribute("font-family", getComputedStyle(figure).getPropertyValue("--figure-font"));
    svg.setAttribute("width", `${width}pt`);
    svg.setAttribute("height", `${height}pt`);
    return svg;
  };

  const csvOf = (figure, { panels, traces }, runs) => {
    const hidden = new Set(all("svg [data-series]", figure).filter(part => part.style.display === "none").map(part => part.dataset.series));
    const names = ["panel", "kind", "series", "devices", "against", "at", "quantity", "unit", "value", "low", "high", "n", "run"];
    const rows = traces.filter(trace => !hidden.has(trace.series)).flatMap(trace => trace.x.map((x, index) => [
      panels[trace.panel]?.title ?? "", trace.kind, trace.series, trace.devices ?? x, trace.against ?? "", trace.against ? x : "",
      trace.label, trace.unit === "%" ? "fraction" : trace.unit,
      ...["value", "low", "high", "n"].map(name => (Array.isArray(trace[name]) ? trace[name][index] : trace[name]) ?? ""),
      trace.place ? runs[trace.series][x].runs[trace.place[index]] : "",
    ]));
    const told = new Map(rows.map(row => [String(row), row]));
    return scalewiseSave.csv([names, ...told.values()]);
  };

  // PDF: paths, marks and text in Helvetica, which every reader of PDF has
  const WIDTHS = "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 278 556 500 722 500 500 500 334 260 334 584".split(" ").map(Number);
  const OTHERS = { "–": "\x96", "—": "\x97", "…": "\x85", "‘": "\x91", "’": "\x92", "“": "\x93", "”": "\x94", "€": "\x80", "μ": "\xb5", "−": "-" };
  const latin = text => [...text].map(each => OTHERS[each] ?? (each.charCodeAt(0) < 256 ? each : "?")).join("");
  const widthOf = (text, size) => [...text].reduce((sum, each) => sum + (WIDTHS[each.charCodeAt(0) - 32] ?? 556), 0) * size / 1000;
  const colourOf = text => {
    const hex = text.length === 4 ? [...text.slice(1)].map(each => each + each).join("") : text.slice(1);
    return [0, 2, 4].map(start => (parseInt(hex.slice(start, start + 2), 16) / 255).toFixed(3)).join(" ");
  };
  const operators = data => {
    const found = [];
    let [x, y] = [0, 0];
    for (const [, command, rest] of data.matchAll(/([MLHVQCZ])([^MLHVQCZ]*)/g)) {
      const numbers = (rest.match(/-?\d+(\.\d+)?/g) ?? []).map(Number);
      if (command === "Z") found.push("h");
      const size = { M: 2, L: 2, H: 1, V: 1, Q: 4, C: 6 }[command];
      for (let start = 0; size && start + size <= numbers.length; start += size) {
        const part = numbers.slice(start, start + size);
        if (command === "Q") {
          const [a, b, c, d] = part;
          found.push(`${[x + (a - x) * 2 / 3, y + (b - y) * 2 / 3, c + (a - c) * 2 / 3, d + (b - d) * 2 / 3, c, d].map(each => each.toFixed(2)).join(" ")} c`);
          [x, y] = [c, d];
        } else if (command === "C") {
          found.push(`${part.join(" ")} c`);
          [x, y] = part.slice(4);
        } else {
          if (command === "H") [x] = part;
          else if (command === "V") [y] = part;
          else [x, y] = part;
          found.push(`${x} ${y} ${command === "M" && start === 0 ? "m" : "l"}`);
        }
      }
    }
    return found.join("\n");
  };
  const INHERITED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-dashoffset", "fill-opacity", "stroke-opacity", "font-size", "text-anchor", "opacity"];
  const pdfOf = svg => {
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const byId = id => svg.querySelector(`[id="${id}"]`);
    const linked = text => byId(text.slice(text.indexOf("#") + 1).replace(/\)$/, ""));
    const states = new Map();
    const nameOf = (names, key, letter) => {
      if (!names.has(key)) names.set(key, `${letter}${names.size}`);
      return names.get(key);
    };
    const settings = look => {
      const [fills, strokes] = [look.fill && look.fill !== "none", look.stroke && look.stroke !== "none"];
      const opaque = Number(look.opacity ?? 1);
      const alpha = [opaque * Number(look["fill-opacity"] ?? 1), opaque * Number(look["stroke-opacity"] ?? 1)].map(each => Number(each.toFixed(3)));
      const found = [`/${nameOf(states, alpha.join(" "), "G")} gs`];
      if (fills) found.push(`${colourOf(look.fill)} rg`);
      if (strokes) {
        const dashes = (look["stroke-dasharray"] ?? "").split(/[ ,]+/).filter(each => Number(each) >= 0 && each).join(" ");
        found.push(`${colourOf(look.stroke)} RG ${look["stroke-width"] ?? 1} w 0 J 1 j [${dashes}] ${look["stroke-dashoffset"] ?? 0} d`);
      }
      return [found.join("\n"), fills && strokes ? "B" : fills ? "f" : strokes ? "S" : "n"];
    };
    const draw = (element, above) => {
      const look = { ...above };
      for (const name of INHERITED) if (element.hasAttribute(name)) look[name] = element.getAttribute(name);
      const kind = element.localName;
      const children = () => [...element.children].map(child => draw(child, look)).join("\n");
      if (["defs", "metadata", "title", "desc", "style"].includes(kind)) return "";
      const [set, paint] = settings({ fill: "#000000", ...look });
      const clip = element.getAttribute("clip-path");
      const before = clip ? `${operators(linked(clip).firstElementChild.getAttribute("d"))}\nW n\n` : "";
      if (kind === "g" || kind === "svg") return before ? `q\n${before}${children()}\nQ` : children();
      if (kind === "path") return `q\n${before}${set}\n${operators(element.getAttribute("d"))}\n${paint}\nQ`;
      const [x, y] = ["x", "y"].map(name => Number(element.getAttribute(name)));
      if (kind === "use") {
        const shape = linked(element.getAttribute("xlink:href"));
        return `q\n${before}${set}\n1 0 0 1 ${x} ${y} cm\n${operators(shape.getAttribute("d"))}\n${paint}\nQ`;
      }
      if (kind !== "text") return "";
      const [size, said] = [Number(look["font-size"] ?? 8), latin(element.textContent)];
      const angle = Number(/rotate\((-?[\d.]+)/.exec(element.getAttribute("transform"))?.[1] ?? 0) * Math.PI / 180;
      const start = -widthOf(said, size) * ({ middle: 0.5, end: 1 }[look["text-anchor"]] ?? 0);
      const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
      const matrix = [cos, sin, sin, -cos, x + start * cos, y + start * sin].map(each => each.toFixed(3)).join(" ");
      return `q\n${settings({ fill: look.fill ?? "#000000" })[0]}\nBT /F ${size} Tf ${matrix} Tm (${said.replace(/[\\()]/g, "\\$&")}) Tj ET\nQ`;
    };
    const page = `1 0 0 -1 0 ${height} cm\n${draw(svg, {})}`;
    const stateEntries = () => [...states].map(([alpha, name]) => `/${name} << /ca ${alpha.split(" ")[0]} /CA ${alpha.split(" ")[1]} >>`).join(" ");
    const objects = [
      "<< /Type /Catalog /Pages 2 0 R >>",
      "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
      `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${width} ${height}] /Contents 5 0 R /Resources << /Font << /F 4 0 R >> /ExtGState << ${stateEntries()} >> >> >>`,
      "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
      `<< /Length ${page.length} >>\nstream\n${page}\nendstream`,
    ];
    let text = "%PDF-1.4\n";
    const places = objects.map((object, index) => {
      const place = text.length;
      text += `${index + 1} 0 obj\n${object}\nendobj\n`;
      return place;
    });
    const table = places.map(place => `${String(place).padStart(10, "0")} 00000 n \n`).join("");
    const size = objects.length + 1;
    text += `xref\n0 ${size}\n0000000000 65535 f \n${table}trailer\n<< /Size ${size} /Root 1 0 R >>\nstartxref\n${text.length}\n%%EOF\n`;
    return Uint8Array.from(text, each => each.charCodeAt(0));
  };

  for (const figure of all("figure.figure")) {
    const { experiment, figure: name } = figure.dataset;
    const { figures, runs } = scalewiseData.get(experiment);
    const facts = figures[name];
    const files = {
      svg: () => ["image/svg+xml", new XMLSerializer().serializeToString(drawingOf(figure))],
      pdf: () => ["application/pdf", pdfOf(drawingOf(figure))],
      csv: () => ["text/csv", csvOf(figure, facts, runs)],
    };
    for (const [kind, make] of Object.entries(files)) {
      const button = figure.querySelector(`.figure-tools [data-action="${kind}"]`);
      if (!button) continue;
      if (kind === "csv" && !facts.traces.length) button.hidden = true;
      else button.addEventListener("click", () => scalewiseSave.file(`${experiment}-${name}.${kind}`, ...make()));
    }
    const tools = figure.querySelector(".figure-tools");
    if (tools) tools.hidden = false;
  }
})();
