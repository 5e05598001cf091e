// Tables sort and filter, and an address with a hash opens what it names. Without it the page has everything.
"use strict";
(() => {
  const make = (tag, attributes, text = "") => {
    const element = Object.assign(document.createElement(tag), attributes);
    element.append(text);
    return element;
  };
  const isUnknown = cell => cell.textContent.trim() === "–";
  const compare = (a, b) =>
    a.dataset.v && b.dataset.v ? a.dataset.v - b.dataset.v : a.textContent.localeCompare(b.textContent, "en", { numeric: true });

  for (const table of document.querySelectorAll("table.data")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const isUp = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach(each => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
        const rows = [...body.rows].sort((one, other) => {
          const [a, b] = [one.cells[index], other.cells[index]];
          // what is unknown is last in both orders
          return isUnknown(a) - isUnknown(b) || (isUp ? compare(a, b) : compare(b, a));
        });
        body.append(...rows);
      });
    });
    if (body.rows.length < 6) continue;
    const input = make("input", { type: "search" });
    const count = make("span", { role: "status" });
    const tools = make("div", { className: "filter" });
    const label = make("label", {}, "Filter rows ");
    label.append(input);
    tools.append(label, count);
    table.closest(".scroll").before(tools);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of body.rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
      count.textContent = words.length ? `${[...body.rows].filter(row => !row.hidden).length} of ${body.rows.length}` : "";
    });
  }

  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let box = target?.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
