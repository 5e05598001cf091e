"""How large reports are, how soon a browser has them alive, and the memory that they take there.

    python benchmarks/run.py report

Runs are planted; tables, figures and pages are the pipeline's own. Each round starts Chromium anew, without a
window. A page is alive once its scripts have run and it has been painted with the tools of its figures.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from playwright.sync_api import Browser
from tests.browser.chromium import missing, started
from tests.planted_study import PlantedStudy

from .measure import Row, spread

ROUNDS = 7
SHIPPED = Path(__file__).parents[1] / "config" / "experiments.yaml"
SECONDS, MEGABYTES = 2.0, 200.0
"""What a report on 500 runs may take in the browser."""

GRID = """\
experiments:
  study:
    title: {title}
    dataset: digits
    model: digits_cnn
    scaling: weak
    batch_size_per_device: 16
    devices: {devices}
    repeats: {repeats}
    predict: false
    runtime_minutes: 3
    sweep: {sweep}
    decision: {{min_efficiency: 0.6}}
"""
TWELVE_SERIES = GRID.format(
    title="12 series, 8 device counts, 6 repeats",
    devices=[1, 2, 4, 8, 12, 16, 24, 32],
    repeats=6,
    sweep="{gradient_as_bucket_view: [false, true], bucket_cap_mb: [5, 25], precision: [fp32, bf16, fp16]}",
)
FIVE_HUNDRED_RUNS = GRID.format(
    title="500 runs",
    devices=[1, 2, 4, 8, 12, 16, 20, 24, 28, 32],
    repeats=10,
    sweep="{bucket_cap_mb: [1, 5, 10, 25, 50]}",
)

ALIVE = """scalewiseData.then(() => new Promise((resolve, reject) => {
  const tools = document.querySelectorAll(".figure-tools");
  const stop = document.querySelector('.mark[tabindex="0"]');
  const alive = stop && tools.length && ![...tools].some(each => each.hidden);
  if (!alive) reject(new Error("figures are not alive"));
  requestAnimationFrame(() => requestAnimationFrame(resolve));
}))"""


@dataclass(frozen=True)
class Case:
    """A study whose report is measured.

    Args:
        text: Configuration of the study.
        kilobytes: Most that its report may have; None where another case stands for it.
        judged: Whether time and memory have a target.
    """

    what: str
    text: str
    kilobytes: float | None
    judged: bool = False


def rows() -> list[Row]:
    """Four rows for each study; one that says so where there is no browser."""
    if reason := missing():
        return [Row(what="report in a browser", ours=reason, n=0)]
    cases = (
        Case("the shipped study", SHIPPED.read_text(encoding="utf-8"), 300),
        Case("12 series x 8 counts x 6 repeats", TWELVE_SERIES, 1500),
        Case("500 runs", FIVE_HUNDRED_RUNS, None, judged=True),
    )
    table = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            study = PlantedStudy(Path(folder), case.text)
            study.make_runs()
            study.analyse()
            table += _rows_of(case, study.write())
    return table


def _rows_of(case: Case, report: Path) -> list[Row]:
    size = report.stat().st_size / 1e3
    seconds, megabytes = zip(*(_opened(report) for _ in range(ROUNDS)), strict=True)
    soon, memory = spread(seconds), spread(megabytes)
    return [
        Row(
            what=f"report: {case.what}, size",
            ours=f"{size:,.0f} kB",
            n=1,
            target="" if case.kilobytes is None else f"at most {case.kilobytes:,.0f} kB",
            met=case.kilobytes is None or size <= case.kilobytes,
        ),
        Row(what=f"report: {case.what}, printed as PDF", ours=f"{_printed(report) / 1e3:,.0f} kB", n=1),
        Row(
            what=f"report: {case.what}, until it is alive",
            ours=soon.show("s"),
            n=ROUNDS,
            target=f"under {SECONDS:g} s" if case.judged else "",
            met=not case.judged or soon.median < SECONDS,
        ),
        Row(
            what=f"report: {case.what}, memory of its process",
            ours=memory.show("MB", digits=0),
            n=ROUNDS,
            target=f"under {MEGABYTES:g} MB" if case.judged else "",
            met=not case.judged or memory.median < MEGABYTES,
        ),
    ]


def _opened(report: Path) -> tuple[float, float]:
    """Seconds from the address to a page that is alive, and the megabytes that it then takes."""
    with started() as browser:
        page = browser.new_page()
        page.goto("about:blank")
        begun = time.perf_counter()
        page.goto(report.absolute().as_uri())
        page.evaluate(ALIVE)
        return time.perf_counter() - begun, _page_bytes(browser) / 1e6


def _printed(report: Path) -> int:
    """Bytes of the page printed into a file."""
    with started() as browser:
        page = browser.new_page()
        page.goto(report.absolute().as_uri())
        page.evaluate(ALIVE)
        return len(page.pdf())


def _page_bytes(browser: Browser) -> int:
    """Memory that no other process shares, of the process that shows the page: the largest of its kind."""
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
    pages = [process["id"] for process in found["processInfo"] if process["type"] == "renderer"]
    return max(psutil.Process(process).memory_full_info().uss for process in pages)
