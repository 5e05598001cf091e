"""Who reads a report, and how: without scripts, on a phone, on paper, in the dark, by ear."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.browser.conftest import OpenPage
from tests.browser.reports import UNKIND
from tests.browser.sight import open_all, seen, texts

REPORTS = ["two_series", "several", "twelve_series"]

NARROW = {"width": 390, "height": 844}

REACHES_BEYOND = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  return [...document.body.querySelectorAll("*")]
    .filter(each => each.getBoundingClientRect().right > width + 1 && !each.closest(".scroll"))
    .map(each => each.outerHTML.slice(0, 80));
}"""
"""What a page would have to be scrolled sideways for."""


@pytest.fixture(params=REPORTS)
def report(request: pytest.FixtureRequest) -> Path:
    """Each of the reports in turn."""
    file: Path = request.getfixturevalue(request.param)
    return file


def test_a_name_that_looks_like_markup_is_shown_as_it_was_written(
    open_page: OpenPage, two_series: Path
) -> None:
    page = open_page(two_series)
    assert page.locator("h1").inner_text() == UNKIND
    assert UNKIND in page.title()
    assert page.locator("main b", has_text="not bold").count() == 0
    assert page.locator("img").count() == 0


def test_without_scripts_everything_is_there_and_no_button_is_dead(open_page: OpenPage, report: Path) -> None:
    alive, plain = open_page(report), open_page(report, java_script_enabled=False)
    for selector in ("main p", "main table tbody tr td:first-child", "figcaption", "main dd"):
        assert set(texts(plain, selector)) >= set(texts(alive, selector)), selector
    drawn = texts(plain, "figure:has(figcaption) > svg")
    assert len(drawn) == plain.locator("figure").count() == alive.locator("figure").count() > 5
    assert all(drawn)
    open_all(plain)
    assert seen(plain, "button, input, select") == []


def test_on_a_narrow_screen_the_page_is_not_scrolled_sideways(open_page: OpenPage, report: Path) -> None:
    page = open_page(report, viewport=NARROW)
    assert page.evaluate(REACHES_BEYOND) == []
    open_all(page)
    assert page.evaluate(REACHES_BEYOND) == []
