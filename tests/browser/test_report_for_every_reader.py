"""Readers of a report: without scripts, on a phone, on paper, in the dark, by ear."""

import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from tests.browser.chromium import open_all, seen, texts
from tests.browser.conftest import OpenPage

REPORTS = ["shipped", "several"]

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


def test_without_scripts_everything_is_there_and_no_button_is_dead(open_page: OpenPage, report: Path) -> None:
    alive, plain = open_page(report), open_page(report, java_script_enabled=False)
    for selector in ("main p", "main table tbody tr", "figcaption", "main dd"):
        assert set(texts(plain, selector)) >= set(texts(alive, selector)), selector
    assert plain.locator("figure svg").count() == plain.locator("figure").count() > 0
    open_all(plain)
    assert seen(plain, "button, input, select") == []


def test_the_report_on_the_shipped_study_has_less_than_250_kb_and_six_pages(
    open_page: OpenPage, shipped: Path
) -> None:
    assert shipped.stat().st_size < 250_000
    page = open_page(shipped)
    assert len(re.findall(rb"/Type ?/Page\b", page.pdf(prefer_css_page_size=True))) <= 6
    open_all(page)
    assert len(re.findall(rb"/Type ?/Page\b", page.pdf(prefer_css_page_size=True))) <= 10


def test_on_a_narrow_screen_the_page_is_not_scrolled_sideways(open_page: OpenPage, report: Path) -> None:
    page = open_page(report, viewport=NARROW)
    assert page.evaluate(REACHES_BEYOND) == []
    open_all(page)
    assert page.evaluate(REACHES_BEYOND) == []


def test_on_paper_nothing_is_to_be_filled_in_and_figures_are_no_images(
    open_page: OpenPage, report: Path
) -> None:
    page = open_page(report)
    open_all(page)
    page.emulate_media(media="print")
    assert seen(page, "input") == []
    assert len(seen(page, "main figure svg")) == page.locator("main figure svg").count()
    assert b"/Subtype /Image" not in page.pdf()


def violations(page: Page) -> list[str]:
    """Return what keeps someone from reading, each with one place."""
    found = Axe().run(page).response
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found["violations"]
    ]


@pytest.mark.parametrize("settings", [{"color_scheme": "dark"}, {"viewport": NARROW}], ids=str)
def test_nobody_is_kept_from_reading(open_page: OpenPage, report: Path, settings: dict[str, Any]) -> None:
    page = open_page(report, **settings)
    open_all(page)
    assert violations(page) == []


# --- no foreign script runs ----------------------------------------------------------------------------


FOREIGN = """\
<script>(globalThis.ran ??= []).push("script")</script>
<img src='data:,' onerror='(globalThis.ran ??= []).push("handler")'>
<svg onload='(globalThis.ran ??= []).push("onload")'>
<script>(globalThis.ran ??= []).push("svg")</script></svg>
"""


@pytest.mark.parametrize(
    ("policy", "ran"),
    [("[^>]*", ["handler", "onload", "script", "svg"]), ("never", [])],
    ids=["without", "with"],
)
def test_the_policy_of_the_page_runs_its_own_scripts_and_no_other(
    policy: str, ran: list[str], shipped: Path, tmp_path: Path, browser: Browser
) -> None:
    text = shipped.read_text(encoding="utf-8").replace("<h1>", f"{FOREIGN}<h1>", 1)
    path = tmp_path / "page.html"
    path.write_text(re.sub(f"<meta http-equiv={policy}>", "", text), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    assert sorted(page.evaluate("globalThis.ran ?? []")) == ran
    # the page's own script makes the headings of tables buttons
    assert page.locator("thead button").count() > 5
    page.close()
