// The numbers behind the page, by experiment.
"use strict";
globalThis.scalewiseData = new Map(
  [...document.querySelectorAll("script.report-data")].map(script => [script.dataset.experiment, JSON.parse(script.textContent)]),
);
