// Tables, toolbox and links. Without this script the page has all its figures, sentences and tables.
"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const make = (tag, attributes = {}, text = "") => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };

  // tables
  const value = cell => cell.dataset.value ?? cell.firstChild?.textContent.trim() ?? "";
  const number = text => {
    // a text that begins with digits, as a fingerprint may, is none
    const found = text.replaceAll(",", "").match(/^[<≤]? ?(∞|-?\d+(\.\d+)?(e[+-]?\d+)?)(?=x?(\s|%|$))/i);
    return found ? Number(found[1].replace("∞", "Infinity")) : NaN;
  };
  const compare = (one, other) => {
    const [a, b] = [number(one), number(other)];
    if (!isNaN(a) && !isNaN(b)) return a === b ? 0 : a - b;
    if (isNaN(a) !== isNaN(b)) return isNaN(a) ? 1 : -1;
    return one.localeCompare(other, "en", { numeric: true });
  };
  const isUnknown = text => /^–|^not |^$/.test(text);
  let hidden = new Set();
  const tables = all("table.data").map(table => {
    const body = table.tBodies[0];
    const { series } = scalewiseData.get(table.closest(".experiment").dataset.experiment);
    const rows = [];
    for (const row of body.rows) {
      if (row.dataset.series) row.dataset.series = series[row.dataset.series].name;
      if (row.classList.contains("remark")) rows.at(-1).push(row);
      else rows.push([row]);
    }
    const heads = [...table.tHead.rows[0].cells];
    const filter = make("input", {
      type: "search", class: "table-filter", placeholder: "filter rows", "aria-label": `Filter ${table.caption.textContent}`,
    });
    const count = make("span", { role: "status" });
    const show = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const group of rows) {
        const text = group.flatMap(row => [...row.cells].flatMap(cell => [...cell.childNodes])).map(part => part.textContent).join(" ").toLowerCase();
        const shown = !hidden.has(group[0].dataset.series) && words.every(word => text.includes(word));
        for (const row of group) row.hidden = !shown;
      }
      count.textContent = words.length ? `${rows.filter(([row]) => !row.hidden).length} of ${rows.length} rows` : "";
    };
    const sort = (index, head) => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      rows.sort(([a], [b]) => {
        const [one, other] = [value(a.cells[index]), value(b.cells[index])];
        // what is not known is last, whatever the order
        if (isUnknown(one) !== isUnknown(other)) return isUnknown(one) ? 1 : -1;
        return up ? compare(one, other) : compare(other, one);
      });
      body.append(...rows.flat());
    };
    heads.forEach((head, index) => {
      const button = make("button", { type: "button" }, head.textContent);
      button.addEventListener("click", () => sort(index, head));
      head.replaceChildren(button);
    });
    const csv = make("button", { type: "button", "data-action": "table-csv", "aria-label": `Save ${table.caption.textContent} as CSV` }, "CSV");
    csv.addEventListener("click", () => scalewiseSave.file(`${table.id.replace(".", "-")}.csv`, "text/csv", scalewiseSave.csv(linesOf(heads, rows))));
    const tools = make("div", { class: "table-tools" });
    if (rows.length > 3) tools.append(filter, count);
    tools.append(csv);
    filter.addEventListener("input", show);
    table.closest(".scroll").before(tools);
    return show;
  });
  const linesOf = (heads, groups) => {
    const remarks = new Map(groups.map(([row, ...below]) => [row, below.map(each => each.textContent.trim()).join(" ")]));
    const shown = [...remarks.keys()].filter(row => !row.hidden);
    const remarked = shown.some(row => remarks.get(row));
    const small = cell => cell.querySelector("small")?.textContent ?? "";
    const columns = heads.map((head, index) => [head.textContent, index, shown.some(row => small(row.cells[index]))]);
    return [
      [...columns.flatMap(([name, , two]) => (two ? [name, `${name}, below it`] : [name])), ...(remarked ? ["remark"] : [])],
      ...shown.map(row => [...columns.flatMap(([, index, two]) => {
        const cell = row.cells[index];
        const text = (cell.firstChild?.textContent ?? "").replace(/^(-?\d{1,3})((,\d{3})+)/, whole => whole.replaceAll(",", ""));
        return two ? [text, small(cell)] : [text];
      }), ...(remarked ? [remarks.get(row)] : [])]),
    ];
  };

  // figures
  const TOOLS = { scale: ["log scale", "logarithmic or linear"], svg: ["SVG", "save as SVG"], pdf: ["PDF", "save as PDF"], csv: ["CSV", "save its data as CSV"] };
  for (const figure of all("figure.figure")) {
    const title = figure.querySelector("figcaption b").textContent.replace(/\.$/, "");
    const tools = make("div", { class: "figure-tools", hidden: "" });
    for (const [action, [text, what]] of Object.entries(TOOLS)) {
      tools.append(make("button", { type: "button", "data-action": action, "aria-label": `${title}: ${what}` }, text), "\n");
    }
    figure.querySelector(".under").prepend(tools);
  }

  // toolbox
  const toolbox = document.getElementById("page.toolbox");
  const options = new Map();
  for (const { series } of scalewiseData.values()) for (const each of series) options.set(each.name, each.options);
  const showSeries = () => {
    const off = (selector, key) => all(selector, toolbox).filter(box => !box.checked).map(key);
    hidden = new Set(off(".series-toggle", box => box.dataset.series));
    for (const [key, without] of off(".option-toggle", box => [box.dataset.option, box.dataset.value])) {
      for (const [name, chosen] of options) if (chosen[key] === without) hidden.add(name);
    }
    root.dataset.hiddenSeries = JSON.stringify([...hidden]);
    for (const show of tables) show();
    document.dispatchEvent(new CustomEvent("scalewise:series", { detail: { hidden: [...hidden] } }));
  };
  const openAll = open => all("main details:not(.help)").forEach(each => { each.open = open; });
  toolbox.addEventListener("change", event => {
    if (event.target.matches(".series-toggle, .option-toggle")) showSeries();
    if (event.target.id === "page.theme") setTheme(event.target.value);
  });
  toolbox.addEventListener("click", event => {
    const button = event.target.closest("button");
    const action = button?.dataset.action;
    if (action === "open-all") openAll(true);
    if (action === "close-all") openAll(false);
    if (action === "scale") {
      for (const each of all('[data-action="scale"]', toolbox)) each.setAttribute("aria-pressed", String(each === button));
      document.dispatchEvent(new CustomEvent("scalewise:scale", { detail: { scale: button.dataset.scale } }));
    }
  });
  const THEME = "scalewise-theme";
  const setTheme = theme => {
    root.dataset.theme = theme;
    document.getElementById("page.theme").value = theme;
    try { localStorage.setItem(THEME, theme); } catch { /* a page that may not remember still changes */ }
  };
  try {
    const theme = localStorage.getItem(THEME);
    if (["light", "dark"].includes(theme)) setTheme(theme);
  } catch { /* storage is closed to it */ }
  const wide = matchMedia("(min-width: 90rem)");
  const fit = () => { toolbox.firstElementChild.open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();
  toolbox.hidden = false;
  document.body.classList.add("with-toolbox");

  // links
  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
  document.addEventListener("click", event => {
    const link = event.target.closest("a.permalink");
    if (!link || !navigator.clipboard) return;
    navigator.clipboard.writeText(link.href).then(() => {
      link.textContent = "copied";
      setTimeout(() => { link.textContent = "#"; }, 1500);
    }, () => { /* the address bar has the link */ });
  });
})();
