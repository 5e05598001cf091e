"""Tables of the report: sorted as numbers, filtered by words, and opened by an address."""

from pathlib import Path

import pytest
from playwright.sync_api import Page
from tests.browser.chromium import open_all, seen, texts
from tests.browser.conftest import OpenPage

SCALING = '[aria-labelledby="chosen.points"]'
RUNS = '[aria-labelledby="listed.runs"]'


@pytest.fixture
def page(open_page: OpenPage, several: Path) -> Page:
    """The report on three experiments, with everything open."""
    page = open_page(several)
    open_all(page)
    return page


def column(page: Page, table: str, heading: str) -> list[str]:
    """Return the visible cells of a column, without the interval below."""
    headings = texts(page, f"{table} thead th")
    found: list[str] = page.locator(f"{table} table").evaluate(
        """(table, index) => [...table.tBodies[0].rows].filter(row => row.checkVisibility())
          .map(row => row.cells[index].firstChild.textContent.trim())""",
        headings.index(heading),
    )
    return found


def sort_by(page: Page, table: str, heading: str) -> str:
    """Click on a heading, and return the order that it then claims."""
    head = page.locator(f"{table} thead th", has_text=heading).first
    head.get_by_role("button").click()
    return head.get_attribute("aria-sort") or ""


def test_a_column_of_numbers_is_sorted_as_numbers_and_back(page: Page) -> None:
    counts = column(page, SCALING, "GPUs")
    assert len(counts) > 3
    assert sort_by(page, SCALING, "GPUs") == "ascending"
    assert column(page, SCALING, "GPUs") == sorted(counts, key=int)
    page.locator(f"{SCALING} thead button", has_text="GPUs").first.focus()
    page.keyboard.press("Enter")
    assert column(page, SCALING, "GPUs") == sorted(counts, key=int, reverse=True)
    assert page.locator(f"{SCALING} [aria-sort]").count() == 1


def test_what_is_unknown_is_last_in_both_orders_and_a_run_keeps_its_reason(page: Page) -> None:
    for order in ("ascending", "descending"):
        assert sort_by(page, RUNS, "samples/s") == order
        assert [rate == "–" for rate in column(page, RUNS, "samples/s")] == [False] * 5 + [True] * 4
    outcomes, reasons = column(page, RUNS, "outcome"), column(page, RUNS, "reason")
    for outcome, reason in zip(outcomes, reasons, strict=True):
        assert (outcome == "failed") == ("a fault on purpose" in reason)


def test_a_filter_leaves_the_rows_that_hold_all_its_words(page: Page) -> None:
    everything = column(page, RUNS, "run")
    assert len(everything) == 9
    words = page.locator(f".filter:has(+ {RUNS}) input")
    words.fill("FAILED d2")
    assert column(page, RUNS, "run") == ["d2.r2"]
    words.fill("no such run")
    assert seen(page, f"{RUNS} tbody tr") == []
    words.fill("")
    assert column(page, RUNS, "run") == everything


@pytest.mark.parametrize("place", ["listed.runs", "listed.memory", "chosen"])
def test_an_address_opens_what_it_names(open_page: OpenPage, several: Path, place: str) -> None:
    page = open_page(several)
    page.evaluate("place => { location.hash = place; }", place)
    target = page.locator(f'[id="{place}"]')
    target.wait_for()
    page.wait_for_function(
        "place => { const box = document.getElementById(place).getBoundingClientRect();"
        " return box.top > -5 && box.top < innerHeight; }",
        arg=place,
    )
