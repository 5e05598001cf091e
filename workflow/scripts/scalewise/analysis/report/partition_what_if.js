// The lowest cost and the earliest end by the reader's prices and waits, from the runs of this study.
(() => {
  "use strict";
  const facts = JSON.parse(document.getElementById("page.what-if-data").textContent);
  const section = document.getElementById("page.what-if");
  const form = section.querySelector("form"), output = section.querySelector("output");
  const body = section.querySelector(".data tbody");

  const places = (value) =>
    value === 0 || Math.abs(value) >= 99.95 ? 0 : Math.max(2 - Math.floor(Math.log10(Math.abs(value))), 0);
  const three = (value) => {
    const [whole, part] = value.toFixed(places(value)).split(".");
    return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
  };
  const filled = (name, values) => facts.sentences[name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
  const listed = (words) =>
    words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}` : words[0];

  // an empty field keeps what was measured; another one must be a number from 0 on
  const field = (name, partition) => {
    const input = form.elements[`${name}.${partition}`];
    if (!input || (input.value.trim() === "" && !input.validity.badInput)) return null;
    const value = Number(input.value);
    const valid = !input.validity.badInput && Number.isFinite(value) && value >= 0;
    if (valid) input.removeAttribute("aria-invalid");
    else input.setAttribute("aria-invalid", "true");
    return valid ? value : NaN;
  };

  const evaluate = () =>
    facts.points.map((point) => {
      const price = field("price", point.partition), wait = field("wait", point.partition);
      const paid = price === null ? null : (price * point.billed) / 3600;
      const after = (seconds) => (seconds === null ? null : 60 * wait + seconds);
      const ends = { end: after(point.seconds), end_low: after(point.low), end_high: after(point.high) };
      return {
        ...point,
        cost: paid === null ? null : paid * point.seconds,
        paid,
        ...(wait === null ? {} : ends),
        is_measured: wait === null,
      };
    });

  // whether a point is shown to need more than the best one, by a difference worth having
  const worth = 1 + facts.min_gain;
  const worse = {
    cost: (point, best, index, of) => (facts.at_least[index][of] * point.paid) / best.paid > worth,
    end: (point, best, index, of) =>
      point.is_measured && best.is_measured
        ? facts.end_at_least[index][of] > worth
        : point.end_low !== null && best.end_high !== null && point.end_low / best.end_high > worth,
  };

  const bestBy = (points, aim) => {
    const known = points.map((_, index) => index).filter((index) => Number.isFinite(points[index][aim] ?? NaN));
    if (!known.length) return null;
    const best = known.reduce((least, index) => (points[index][aim] < points[least][aim] ? index : least));
    const open = known.filter(
      (index) => index !== best && !worse[aim](points[index], points[best], index, best),
    );
    return { best, open };
  };

  const show = () => {
    const points = evaluate();
    const lines = [], marked = new Set();
    for (const aim of facts.waits ? ["cost", "end"] : ["cost"]) {
      const found = bestBy(points, aim);
      if (found === null) continue;
      marked.add(found.best);
      const [factor, unit] = aim === "end" ? facts.time_unit : [1, facts.cost_unit];
      const amount = three(points[found.best][aim] / factor);
      lines.push(filled(aim, { place: points[found.best].place, amount, unit }));
      if (found.open.length) {
        lines.push(filled("open", { places: listed(found.open.map((index) => points[index].place)) }));
      }
    }
    const bad = form.querySelector("[aria-invalid]");
    output.replaceChildren(
      ...(bad ? [facts.sentences.problem] : lines).map((text) => {
        const line = document.createElement("p");
        line.textContent = text;
        return line;
      }),
    );
    body.replaceChildren(
      ...points.map((point, index) => {
        const row = document.createElement("tr");
        if (marked.has(index)) row.className = "chosen";
        const cells = [point.place, three(point.seconds / facts.time_unit[0])];
        cells.push(Number.isFinite(point.cost ?? NaN) ? three(point.cost) : "–");
        if (facts.waits) {
          cells.push(Number.isFinite(point.end ?? NaN) ? three(point.end / facts.time_unit[0]) : "–");
        }
        cells.forEach((text, place) => {
          const cell = document.createElement(place ? "td" : "th");
          if (!place) cell.scope = "row";
          cell.textContent = text;
          row.append(cell);
        });
        return row;
      }),
    );
  };

  form.addEventListener("input", show);
  form.addEventListener("reset", () => setTimeout(show));
  form.addEventListener("submit", (event) => event.preventDefault());
  section.hidden = false;
  show();
})();
