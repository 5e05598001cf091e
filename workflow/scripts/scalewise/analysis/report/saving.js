// Files that a reader saves from the page.
"use strict";
globalThis.scalewiseSave = {
  file: (name, type, content) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  },
  csv: rows => rows.map(row => row.map(each => {
    // a spreadsheet would run text that begins like a formula
    const text = /^[=+@-]/.test(each) && isNaN(each) ? `'${each}` : String(each);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",") + "\n").join(""),
};
