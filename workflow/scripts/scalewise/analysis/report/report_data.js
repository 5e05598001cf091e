// The numbers behind the page, unpacked once: a promise of what each experiment's scripts read.
"use strict";
globalThis.scalewiseData = (async () => {
  const unpack = async text => {
    const packed = Uint8Array.from(atob(text), each => each.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  };
  const state = document.documentElement.dataset;
  try {
    const read = new Map();
    for (const script of document.querySelectorAll("script.report-data")) read.set(script.dataset.experiment, await unpack(script.textContent));
    state.read = "true";
    return read;
  } catch {
    const note = document.createElement("div");
    note.className = "note";
    note.textContent = "The numbers behind the figures could not be unpacked, which old browsers cannot do: marks do not tell their values, and nothing can be decided again. All figures, sentences and tables are here.";
    (document.querySelector("main") ?? document.body).prepend(note);
    // series and axes are changed by those numbers
    for (const dead of document.querySelectorAll("aside fieldset, aside [data-action=scale]")) dead.closest("fieldset, .tools")?.remove();
    state.read = "false";
    return new Map();
  }
})();
