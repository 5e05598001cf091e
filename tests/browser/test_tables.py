"""Tables of the report: sorted as numbers, filtered by words, saved as they are shown."""

from __future__ import annotations

import csv
import io
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Page
from tests.browser.chromium import open_all, seen, texts
from tests.browser.conftest import OpenPage

SCALING, RUNS = r"#chosen\.scaling-table", r"#listed\.runs-table"


@pytest.fixture
def page(open_page: OpenPage, several: Path) -> Page:
    """The report on two experiments, with everything open."""
    page = open_page(several)
    open_all(page)
    return page


def columns(page: Page, table: str) -> list[str]:
    """The headings of a table."""
    return texts(page, f"{table} thead th")


def first_line(page: Page, table: str, column: str) -> list[str]:
    """The cells of a column that are seen, without the interval below; remarks have none."""
    found: list[str] = page.locator(table).evaluate(
        """(table, index) => [...table.tBodies[0].rows]
          .filter(row => row.checkVisibility() && row.cells.length > 1)
          .map(row => row.cells[index].firstChild.textContent.trim())""",
        columns(page, table).index(column),
    )
    return found


def sort_by(page: Page, table: str, column: str) -> str:
    """Click on a heading, and get the order that it then claims."""
    heading = page.locator(f"{table} thead th").nth(columns(page, table).index(column))
    heading.get_by_role("button").click()
    return heading.get_attribute("aria-sort") or ""


def saved(page: Page, button: str) -> str:
    """The text of the file that a button saves."""
    with page.expect_download() as download:
        page.locator(button).first.click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_a_column_of_numbers_is_sorted_as_numbers_and_back(page: Page) -> None:
    assert sort_by(page, SCALING, "GPUs") == "ascending"
    assert first_line(page, SCALING, "GPUs") == ["1", "4", "8", "12", "16"]
    assert sort_by(page, SCALING, "GPUs") == "descending"
    assert first_line(page, SCALING, "GPUs") == ["16", "12", "8", "4", "1"]
    assert sort_by(page, SCALING, "efficiency") == "ascending"
    assert first_line(page, SCALING, "GPUs") == ["16", "12", "8", "4", "1"]
    assert page.locator(f"{SCALING} [aria-sort]").count() == 1


def test_what_is_not_known_is_last_in_both_orders(page: Page) -> None:
    for order in ("ascending", "descending"):
        assert sort_by(page, RUNS, "throughput (samples/s)") == order
        rates = first_line(page, RUNS, "throughput (samples/s)")
        assert [rate == "–" for rate in rates] == [False] * 5 + [True] * 4


def test_a_column_is_sorted_by_the_keyboard_too(page: Page) -> None:
    page.locator(f"{SCALING} thead button", has_text="GPUs").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    assert first_line(page, SCALING, "GPUs")[0] == "16"


def test_a_run_keeps_its_reason_when_the_table_is_sorted(page: Page) -> None:
    sort_by(page, RUNS, "run")
    sort_by(page, RUNS, "run")
    rows = [*page.locator(f"{RUNS} tbody tr").all_inner_texts(), ""]
    assert rows[0].startswith("d4.r3")
    for row, below in pairwise(rows):
        assert ("failed" in row.split()) == ("a fault on purpose" in below), row


def test_a_filter_leaves_the_rows_that_hold_all_its_words(page: Page) -> None:
    filter_rows = page.get_by_label("Filter Runs").last
    everything = first_line(page, RUNS, "run")
    assert len(everything) == 9
    filter_rows.fill("FAILED d2")
    assert first_line(page, RUNS, "run") == ["d2.r2"]
    assert len(seen(page, f"{RUNS} tbody tr.remark")) == 1
    filter_rows.fill("no such run")
    assert seen(page, f"{RUNS} tbody tr") == []
    filter_rows.fill("")
    assert first_line(page, RUNS, "run") == everything


def test_a_table_is_saved_as_it_is_shown_and_its_numbers_are_those_of_the_study(
    page: Page, several: Path
) -> None:
    sort_by(page, SCALING, "GPUs")
    sort_by(page, SCALING, "GPUs")
    tools = f".table-tools:has(+ .scroll {SCALING})"
    page.locator(tools).locator("input").fill("all runs")
    table = list(csv.DictReader(io.StringIO(saved(page, f"{tools} [data-action=table-csv]"))))
    scaling = pd.read_csv(several.parent / "partial" / "chosen" / "scaling.csv").iloc[::-1]
    assert [int(row["GPUs"]) for row in table] == scaling["devices"].tolist()
    assert [int(row["n"]) for row in table] == scaling["n"].tolist()
    rates = [float(row["throughput (samples/s)"]) for row in table]
    assert rates == pytest.approx(scaling["throughput_samples_per_second"].tolist(), rel=1e-3)
    speedups = [float(row["speedup"]) for row in table]
    assert speedups == pytest.approx(scaling["speedup"].tolist(), abs=0.005)


def test_a_table_is_saved_with_the_reasons_below_its_rows(page: Page) -> None:
    tools = f".table-tools:has(+ .scroll {RUNS})"
    runs = list(csv.DictReader(io.StringIO(saved(page, f"{tools} [data-action=table-csv]"))))
    for run in runs:
        assert (run["outcome"] == "failed") == ("a fault on purpose" in run["remark"]), run
