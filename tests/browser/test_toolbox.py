"""The toolbox: one place for all figures and tables, with links, colours and paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page
from tests.browser.chromium import open_all, seen
from tests.browser.conftest import OpenPage
from tests.browser.reports import UNKIND_SERIES

OFF, ON = UNKIND_SERIES["bucket-view-off"], UNKIND_SERIES["bucket-view-on"]

OF_SERIES = """series => [...document.querySelectorAll("main [data-series]")]
  .filter(each => each.dataset.series === series)
  .map(each => each.checkVisibility() && each.getClientRects().length > 0)"""
"""Which of the elements that are of a series are seen."""


OF_NO_SERIES = "main :not([data-series], [data-series] *, :has([data-series]))"


def shown_of(page: Page, series: str) -> set[bool]:
    """Whether the elements of a series are seen: both where some are and some are not."""
    return set(page.evaluate(OF_SERIES, series))


def toggle(page: Page, selector: str, **data: str) -> None:
    """Change a box of the toolbox."""
    box = page.locator(rf"#page\.toolbox {selector}")
    for key, value in data.items():
        box = box.and_(page.locator(f"[data-{key}={css_text(value)}]"))
    box.click()


def css_text(value: str) -> str:
    """A text as a selector takes it, whatever it holds."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@pytest.fixture
def page(open_page: OpenPage, two_series: Path) -> Page:
    """The report on two series, with everything open, the toolbox too."""
    page = open_page(two_series, viewport={"width": 1600, "height": 900})
    open_all(page)
    page.locator(r"#page\.toolbox details").evaluate("each => each.open = true")
    return page


def test_a_series_is_switched_off_in_all_tables_and_figures_and_nothing_else_is(page: Page) -> None:
    assert shown_of(page, OFF) == shown_of(page, ON) == {True}
    before = seen(page, OF_NO_SERIES)
    toggle(page, ".series-toggle", series=OFF)
    assert shown_of(page, OFF) == {False}
    of_series = page.locator(r"#unkind\.runs-table tbody tr, #unkind\.options-table tbody tr")
    assert of_series.count() == of_series.and_(page.locator("[data-series]")).count() > 20
    assert shown_of(page, ON) == {True}
    assert seen(page, OF_NO_SERIES) == before
    toggle(page, ".series-toggle", series=OFF)
    assert shown_of(page, OFF) == {True}


def test_whoever_comes_back_to_the_page_finds_boxes_that_say_what_is_shown(page: Page) -> None:
    toggle(page, ".series-toggle", series=OFF)
    page.goto("about:blank")
    page.go_back()
    box = page.locator(rf"#page\.toolbox .series-toggle[data-series={css_text(OFF)}]")
    open_all(page)
    assert box.is_checked() == (True in shown_of(page, OFF))


def test_a_value_of_an_option_switches_off_the_series_that_have_it(open_page: OpenPage, large: Path) -> None:
    page = open_page(large, viewport={"width": 1600, "height": 900})
    open_all(page)
    names = page.locator(".series-toggle").evaluate_all("all => all.map(each => each.dataset.series)")
    assert len(names) == 6
    toggle(page, ".option-toggle", option="precision", value="fp16")
    toggle(page, ".option-toggle", option="gradient_as_bucket_view", value="true")
    off = {name for name in names if "fp16" in name or "bucket-view-on" in name}
    assert len(off) == 4
    for name in names:
        assert shown_of(page, name) == {name not in off}, name


def test_all_figures_get_another_scale_in_one_place_and_their_own_back(page: Page) -> None:
    def ticks() -> list[str]:
        """Of each figure that has two scales."""
        found: list[str] = page.locator("figure.figure:has([data-action=scale]:not([hidden]))").evaluate_all(
            "all => all.map(each => [...each.querySelectorAll('.axis')].map(axis => axis.innerHTML).join())"
        )
        return found

    drawn = ticks()
    assert len(drawn) > 4
    scales = {}
    for scale in ("log", "linear", "drawn"):
        page.locator(rf"#page\.toolbox [data-scale={scale}]").click()
        scales[scale] = ticks()
    assert scales["drawn"] == drawn
    assert [each for each in scales["log"] if each in scales["linear"]] == []


def test_a_link_opens_what_it_leads_to(page: Page, two_series: Path) -> None:
    page.locator("main details").evaluate_all("all => all.forEach(each => each.open = false)")
    behind = page.locator("main details figure[id]").last
    assert not behind.is_visible()
    address = behind.locator("a.permalink").evaluate("each => each.href")
    page.goto(address)
    assert behind.is_visible()
    assert behind.evaluate("each => each.getBoundingClientRect().top < innerHeight")


def test_an_address_that_is_none_stops_nothing(open_page: OpenPage, several: Path) -> None:
    page = open_page(several)
    page.evaluate("location.hash = '#%zz'")
    page.reload()
    assert page.locator(r"#page\.toolbox").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("main details:not([open], .help)").count() == 0


def test_an_experiment_without_a_result_states_that_once_and_draws_nothing(
    open_page: OpenPage, several: Path
) -> None:
    page = open_page(several)
    assert page.locator("#nothing figure").count() == 0
    assert (
        page.locator("#nothing").get_by_text("No run has completed: nothing measured is drawn.").count() == 1
    )
    assert page.locator("#listed").get_by_text("4 devices: no result (3 failed).").count() == 1


def test_every_decision_and_every_figure_has_a_link_to_itself(open_page: OpenPage, several: Path) -> None:
    page = open_page(several)
    targets = page.locator("a.permalink").evaluate_all("all => all.map(each => each.getAttribute('href'))")
    decisions = [f"#{name}.decision" for name in ("chosen", "listed")]
    figures = page.locator("figure").evaluate_all("all => all.map(each => '#' + each.id)")
    assert set(decisions + figures) <= set(targets)
    assert page.locator(", ".join(each.replace(".", r"\.") for each in decisions)).count() == 2


def background(page: Page) -> str:
    """The colour behind the text."""
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_colours_follow_the_system_until_the_reader_chooses(open_page: OpenPage, several: Path) -> None:
    page = open_page(several, color_scheme="dark", viewport={"width": 1600, "height": 900})
    dark = background(page)
    page.get_by_label("Colours").select_option("light")
    light = background(page)
    assert light != dark
    page.reload()
    assert background(page) == light
    page.get_by_label("Colours").select_option("auto")
    assert background(page) == dark
    page.emulate_media(color_scheme="light")
    assert background(page) == light


def test_everything_opens_and_closes_by_one_button(page: Page) -> None:
    page.get_by_role("button", name="close all").click()
    assert page.locator("main details[open]:not(.help)").count() == 0
    page.get_by_role("button", name="open all").click()
    assert page.locator("main details:not([open], .help)").count() == 0
