"""Who reads a report, and how: without scripts, on a phone, on paper, in the dark, by ear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from tests.browser.chromium import open_all, seen, texts, unseen
from tests.browser.conftest import OpenPage
from tests.browser.reports import UNKIND

REPORTS = ["two_series", "several", "large", "two_partitions"]

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
    drawn = texts(plain, "figure:has(figcaption) svg")
    assert len(drawn) == plain.locator("figure").count() == alive.locator("figure").count() > 5
    assert all(drawn)
    open_all(plain)
    assert seen(plain, "button, input, select") == []


def test_a_report_of_the_shipped_studys_shape_has_less_than_500_kb(two_series: Path) -> None:
    assert two_series.stat().st_size < 500_000


def test_a_report_on_500_runs_has_less_than_1500_kb_and_takes_less_than_200_mb_of_the_browsers_memory(
    browser: Browser, open_page: OpenPage, large: Path
) -> None:
    assert large.stat().st_size < 1_500_000
    page = open_page(large)
    page.locator(".figure-tools").first.wait_for()
    assert page.locator('.mark[tabindex="0"]').count() > 0
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    pages = [psutil.Process(each["id"]) for each in processes if each["type"] == "renderer"]
    # what no other process shares, of the largest page
    assert max(each.memory_full_info().uss for each in pages) < 200e6


def test_on_a_narrow_screen_the_page_is_not_scrolled_sideways(open_page: OpenPage, report: Path) -> None:
    page = open_page(report, viewport=NARROW)
    assert page.evaluate(REACHES_BEYOND) == []
    open_all(page)
    assert page.evaluate(REACHES_BEYOND) == []


def test_on_paper_everything_is_open_and_nothing_is_to_be_clicked(open_page: OpenPage, report: Path) -> None:
    page = open_page(report)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for selector in ("figure svg", "figcaption", "table", "tbody tr"):
        assert unseen(page, f"main {selector}") == []
    assert seen(page, r"button:not(thead *), input, select, #page\.toolbox") == []
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    # a browser would print a pattern as an image of the page
    printed = page.pdf()
    assert printed.startswith(b"%PDF-")
    assert b"/Subtype /Image" not in printed


def serious(page: Page) -> list[str]:
    """The violations that keep someone from reading, each with one place."""
    found = Axe().run(page).response
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("settings", [{"color_scheme": "dark"}, {"viewport": NARROW}], ids=str)
def test_nobody_is_kept_from_reading(open_page: OpenPage, several: Path, settings: dict[str, Any]) -> None:
    page = open_page(several, **settings)
    open_all(page)
    assert serious(page) == []
