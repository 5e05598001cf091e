// Figures: what a mark stands for on hover and focus, series that are hidden, logarithmic and linear axes.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const NEAR_PIXELS = 14;
  const ALONE = "all runs";
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  const tooltip = document.getElementById("page.tooltip");
  tooltip.style.position = "fixed";

  const KINDS = { expected: "not measured, expected ", run: "one run, " };
  const INTERVALS = { expected: "95 % of the possibilities: ", epochs: "repeats from ", measured: "95 % interval " };
  const linesOf = (runs, trace, index) => {
    const devices = trace.devices ?? trace.x[index];
    const place = [trace.series === ALONE ? "" : trace.series, `${devices.toLocaleString("en")} device${devices === 1 ? "" : "s"}`];
    if (trace.against) place.push(`${trace.against} ${trace.x[index].toLocaleString("en")}`);
    const n = (Array.isArray(trace.n) ? trace.n[index] : trace.n) ?? null;
    const interval = trace.interval?.[index / trace.every] ?? "";
    const lines = [
      place.filter(Boolean).join(", "),
      `${KINDS[trace.kind] ?? ""}${trace.label}: ${trace.text[index / trace.every]}${trace.unit === "x" ? "" : " "}${trace.unit}`.trim(),
      interval.includes(" to ") ? `${INTERVALS[trace.kind] ?? ""}${interval}` : interval,
      n === null ? "" : `n = ${n}`,
    ];
    if (trace.kind !== "expected") {
      const point = runs[trace.series]?.[devices] ?? { runs: [], hosts: [] };
      const place = trace.place?.[index];
      const names = place === undefined ? point.runs : [point.runs[place]];
      const hosts = place === undefined ? [...new Set(point.hosts)] : [point.hosts[place] ?? point.hosts[0]];
      if (names.length) lines.push(`${place === undefined ? "runs" : "run"} ${names.join(", ")}`);
      if (hosts.some(Boolean)) lines.push(`on ${hosts.filter(Boolean).join("; ")}`);
    }
    return lines.filter(Boolean);
  };

  const showAt = (box, lines) => {
    tooltip.replaceChildren(...lines.map((line, index) => {
      const row = document.createElement(index ? "div" : "b");
      row.textContent = line;
      return row;
    }));
    tooltip.hidden = false;
    const [width, height] = [tooltip.offsetWidth, tooltip.offsetHeight];
    const left = Math.min(Math.max(8, box.left + box.width / 2 - width / 2), innerWidth - width - 8);
    const above = box.top - height - 10;
    tooltip.style.left = `${left}px`;
    tooltip.style.top = `${above > 4 ? above : box.bottom + 10}px`;
  };
  // a focused mark keeps its words while the page scrolls, also where the focus is what made it scroll
  let atFocus = null;
  const hide = () => { tooltip.hidden = true; atFocus = null; };
  document.addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", () => { if (atFocus) atFocus(); else hide(); }, { passive: true, capture: true });

  // scales
  const forward = ([low, high, kind], value) => {
    const f = kind === "log" ? each => Math.log(Math.max(each, low)) : each => each;
    return (f(value) - f(low)) / (f(high) - f(low));
  };
  const backward = ([low, high, kind], share) => (kind === "log" ? low * (high / low) ** share : low + (high - low) * share);
  const niceTicks = ([low, high, kind], counts) => {
    if (kind === "log") {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
        for (const step of high / low >= 200 ? [1] : high / low >= 4 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8]) found.push(Number((step * 10 ** power).toPrecision(3)));
      }
      return found.filter(tick => tick >= low && tick <= high);
    }
    const rough = (high - low) / counts;
    const decade = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find(each => each * decade >= rough) * decade;
    const found = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) found.push(Number(tick.toPrecision(6)));
    return found;
  };
  const withRoom = (ticks, place) => {
    const shown = [];
    let right = Infinity;
    for (const tick of [...ticks].reverse()) {
      const half = 2.4 * (tick.toLocaleString("en").length + 0.8);
      if (place(tick) + half > right) continue;
      shown.unshift(tick);
      right = place(tick) - half;
    }
    return shown;
  };
  const newLimits = (axis, kind, isDevices, traces) => {
    const [low, high, drawn] = axis;
    if (kind === drawn) return axis;
    if (isDevices) {
      const xs = traces.flatMap(trace => trace.x).filter(x => x > 0);
      const [least, most] = [Math.min(...xs), Math.max(...xs)];
      if (kind === "log") return [least / 1.25, most * 1.25, kind];
      const room = Math.max(0.3, 0.04 * (most - least));
      return [least - room, most + room, kind];
    }
    if (kind === "linear") return [0, high, kind];
    const values = traces.flatMap(trace => [...trace.value, ...(trace.low ?? [])]).filter(value => value > 0);
    return values.length ? [Math.min(...values) / 1.2, high, kind] : axis;
  };

  const live = figure => {
    const svg = figure.querySelector("svg");
    const { figures, runs } = scalewiseData.get(figure.dataset.experiment);
    const facts = figures[figure.dataset.figure];
    const button = figure.querySelector('[data-action="scale"]');
    if (!svg || !facts?.traces.length) {
      if (button) button.hidden = true;
      return;
    }
    // an SVG that listens to the focus would take it itself
    const drawing = svg.parentElement;
    const about = new Map();
    for (const trace of facts.traces) trace.series = facts.series[trace.series];
    for (const part of all("[data-series]", svg)) part.dataset.series = facts.series[part.dataset.series];
    for (const mark of all("[data-mark]", svg)) {
      const [number, index] = mark.dataset.mark.split(".");
      const trace = facts.traces[number];
      about.set(mark, [trace, index]);
      mark.classList.add("mark");
      mark.dataset.series = trace.series;
      mark.dataset.devices = trace.devices ?? trace.x[index];
      mark.setAttribute("tabindex", "-1");
      mark.setAttribute("role", "img");
      mark.setAttribute("aria-label", linesOf(runs, trace, index).join("; "));
    }
    const marks = [...about.keys()];
    // checkVisibility() is true of what an SVG does not display
    const isShown = mark => mark.getClientRects().length > 0;
    const show = mark => showAt(mark.getBoundingClientRect(), linesOf(runs, ...about.get(mark)));
    const stopAt = mark => {
      svg.querySelector('.mark[tabindex="0"]')?.setAttribute("tabindex", "-1");
      mark?.setAttribute("tabindex", "0");
    };
    // a picture has no parts; a group of marks has, and one of them takes the focus
    svg.setAttribute("role", "group");
    stopAt(marks[0]);

    // a mark is found by the point nearest to it: rings and epochs are small
    const nearest = event => {
      const hit = event.target.closest?.(".mark");
      if (hit) return hit;
      const to = svg.getScreenCTM();
      if (!to) return null;
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(to.inverse());
      let [found, least] = [null, (NEAR_PIXELS / to.a) ** 2];
      for (const mark of marks) {
        if (mark.localName !== "use") continue;
        const distance = (mark.x.baseVal.value - point.x) ** 2 + (mark.y.baseVal.value - point.y) ** 2;
        if (distance < least && isShown(mark)) [found, least] = [mark, distance];
      }
      return found;
    };
    drawing.addEventListener("pointermove", event => {
      const mark = nearest(event);
      if (mark) show(mark);
      else if (!svg.contains(document.activeElement)) hide();
    });
    drawing.addEventListener("pointerleave", () => { if (!svg.contains(document.activeElement)) hide(); });
    drawing.addEventListener("focusin", event => { if (about.has(event.target)) { stopAt(event.target); show(event.target); atFocus = () => show(event.target); } });
    drawing.addEventListener("focusout", hide);
    drawing.addEventListener("keydown", event => {
      const shown = marks.filter(isShown);
      const here = shown.indexOf(document.activeElement);
      const to = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: shown.length - 1 }[event.key];
      if (to === undefined || here < 0) return;
      event.preventDefault();
      shown[Math.min(Math.max(to, 0), shown.length - 1)].focus();
    });

    const showSeries = hidden => {
      for (const part of all("g[data-series], path[data-series]", svg)) part.style.display = hidden.has(part.dataset.series) ? "none" : "";
      hide();
      const stop = svg.querySelector('.mark[tabindex="0"]');
      if (!stop || !isShown(stop)) stopAt(marks.find(isShown) ?? marks[0]);
    };
    document.addEventListener("scalewise:series", event => showSeries(new Set(event.detail.hidden)));

    // the picture as it was drawn is where every other scale starts from
    const drawn = new Map();
    const keep = element => {
      if (!drawn.has(element)) drawn.set(element, Object.fromEntries(["d", "x", "y"].map(name => [name, element.getAttribute(name)])));
      return drawn.get(element);
    };
    const ofPanel = index => facts.traces.filter(trace => trace.panel === index);
    const sameRow = panel => facts.panels.flatMap((each, index) => (String(each.y) === String(panel.y) ? ofPanel(index) : []));
    const redraw = (group, scale) => {
      const index = Number(group.dataset.panel);
      const panel = facts.panels[index];
      const [left, top, right, bottom] = panel.box;
      const kindOf = name => (panel.switch.includes(name) && ["log", "linear"].includes(scale) ? scale : panel[name][2]);
      const axes = {
        x: newLimits(panel.x, kindOf("x"), true, facts.traces.filter(trace => !trace.against)),
        y: newLimits(panel.y, kindOf("y"), false, sameRow(panel)),
      };
      const edge = (value, ...edges) => edges.find(each => Math.abs(each - value) < 0.2);
      const toX = x => edge(x, left, right) ?? left + (right - left) * forward(axes.x, backward(panel.x, (x - left) / (right - left)));
      const toY = y => edge(y, top, bottom) ?? bottom - (bottom - top) * forward(axes.y, backward(panel.y, (bottom - y) / (bottom - top)));
      for (const element of all(":scope path, :scope use, :scope text.moves", group)) {
        if (element.closest(".axis")) continue;
        const was = keep(element);
        const shift = Number(element.closest("[data-shift]")?.dataset.shift ?? 0);
        const [xOf, yOf] = [x => toX(Number(x) - shift) + shift, y => toY(Number(y)).toFixed(1)];
        if (element.localName === "path") {
          let turn = 0;
          element.setAttribute("d", was.d.replace(/-?\d+(\.\d+)?/g, each => ` ${turn++ % 2 ? yOf(each) : xOf(each).toFixed(1)}`));
        } else {
          element.setAttribute("x", xOf(was.x).toFixed(1));
          element.setAttribute("y", yOf(was.y));
        }
      }
      for (const name of panel.switch) ticksOf(group, panel, name, axes[name]);
    };
    const ticksOf = (group, panel, name, axis) => {
      const [left, top, right, bottom] = panel.box;
      const holder = group.querySelector(`.axis.${name}`);
      const [lines, labels] = [".lines", ".labels"].map(part => holder?.querySelector(part));
      if (!lines) return;
      if (!drawn.has(holder)) drawn.set(holder, [lines.innerHTML, labels?.innerHTML, labels?.firstElementChild?.getAttribute(name === "x" ? "y" : "x")]);
      const [lineMarkup, labelMarkup, level] = drawn.get(holder);
      if (axis === panel[name]) {
        lines.innerHTML = lineMarkup;
        if (labels) labels.innerHTML = labelMarkup;
        return;
      }
      const place = name === "x" ? tick => left + (right - left) * forward(axis, tick) : tick => bottom - (bottom - top) * forward(axis, tick);
      const counts = [...new Set(facts.traces.filter(trace => !trace.against).flatMap(trace => trace.x))].sort((a, b) => a - b);
      const ticks = name === "x" ? withRoom(counts, place) : niceTicks(axis, 5);
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", ticks.map(place).map(each => (name === "x" ? `M${each} ${bottom} ${each} ${top}` : `M${left} ${each} ${right} ${each}`)).join(""));
      lines.replaceChildren(path);
      const pattern = labels?.firstElementChild;
      if (pattern) labels.replaceChildren(...ticks.map(tick => {
        const text = pattern.cloneNode();
        text.setAttribute("x", name === "x" ? place(tick) : level);
        text.setAttribute("y", name === "x" ? level : place(tick) + 2.7);
        text.textContent = tick.toLocaleString("en");
        return text;
      }));
    };
    const switches = facts.panels.flatMap(panel => [...panel.switch].map(name => panel[name][2]));
    const setScale = scale => {
      for (const group of all(".panel", svg)) redraw(group, scale);
      button?.setAttribute("aria-pressed", String(scale === "log" || (scale !== "linear" && switches.every(kind => kind === "log"))));
      hide();
    };
    if (switches.length) {
      document.addEventListener("scalewise:scale", event => setScale(event.detail.scale));
      button?.addEventListener("click", () => setScale(button.getAttribute("aria-pressed") === "true" ? "linear" : "log"));
      button?.setAttribute("aria-pressed", String(switches.every(kind => kind === "log")));
    } else if (button) button.hidden = true;
    const tools = figure.querySelector(".figure-tools");
    if (tools) tools.hidden = false;
    try { showSeries(new Set(JSON.parse(document.documentElement.dataset.hiddenSeries ?? "[]"))); } catch { /* nothing is hidden */ }
  };
  all("figure.figure").forEach(live);
})();
