"""Figures of the report: what a mark says, where it stands, and the files that a figure is saved as."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pandas as pd
import pytest
from playwright.sync_api import Locator, Page
from scipy.stats import linregress
from tests.browser.chromium import open_all
from tests.browser.conftest import OpenPage
from tests.browser.reports import UNKIND_SERIES
from tests.waiting import wait_until

NUMBER = re.compile(r"\d[\d,]*\.?\d*")


@pytest.fixture
def page(open_page: OpenPage, two_series: Path) -> Page:
    """The report on two series, with everything open."""
    page = open_page(two_series)
    open_all(page)
    return page


CAP_POINTS = 5.0
"""Width of the lines that end the bar of an interval, on whatever scale."""


def figure_of(page: Page, name: str) -> Locator:
    """A figure of the report's first experiment."""
    return page.locator(f'figure[data-figure="{name}"]').first


def numbers(text: str) -> list[float]:
    """All numbers in a text."""
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def painted(page: Page) -> None:
    """Wait until the scripts of the page noticed that it was scrolled, which hides what a pointer shows."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def measured_marks(figure: Locator) -> list[dict[str, Any]]:
    """The marks of measured points with their series, devices and place on the screen."""
    found: list[dict[str, Any]] = figure.locator("svg use.mark").evaluate_all(
        """all => all.filter(each => !/expected|one run, /.test(each.getAttribute("aria-label")))
          .map(each => ({...each.dataset, said: each.getAttribute("aria-label"),
                         at: ["x", "y"].map(name => Number(each.getAttribute(name)))}))"""
    )
    return found


def test_a_mark_says_value_interval_runs_and_hosts_as_the_tables_of_the_study_have_them(
    page: Page, two_series: Path
) -> None:
    folder = two_series.parent / "unkind"
    scaling, runs = pd.read_csv(folder / "scaling.csv"), pd.read_csv(folder / "runs.csv")
    figure = figure_of(page, "speedup")
    figure.scroll_into_view_if_needed()
    painted(page)
    said = {}
    for mark in figure.locator("svg use.mark").all():
        box = mark.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        lines = page.locator(r"#page\.tooltip > *").all_inner_texts()
        assert page.locator(r"#page\.tooltip").is_visible()
        said[lines[0]] = lines[1:]
        page.mouse.move(0, 0)
        assert not page.locator(r"#page\.tooltip").is_visible()
    for series in UNKIND_SERIES.values():
        point = scaling[(scaling["series"] == series) & (scaling["devices"] == 2)].iloc[0]
        value, interval, n, names, hosts = said[f"{series}, 2 devices"]
        assert numbers(value) == pytest.approx([point["speedup"]], abs=0.005)
        bounds = [point["speedup_low"], point["speedup_high"]]
        assert interval.startswith("95 % interval ")
        assert numbers(interval)[1:] == pytest.approx(bounds, abs=0.051)
        assert n == f"n = {point['n']}"
        done = runs[(runs["series"] == series) & (runs["devices"] == 2)]
        assert names == f"runs {', '.join(done['run'])}"
        assert hosts == "on node1"


def test_marks_are_walked_through_by_the_keyboard(page: Page) -> None:
    figure = figure_of(page, "speedup")
    figure.locator('.mark[tabindex="0"]').focus()
    count = figure.locator("svg use.mark").count()
    heard = []
    for _ in range(count):
        assert page.locator(r"#page\.tooltip").is_visible()
        heard.append(page.locator(r"#page\.tooltip").inner_text())
        page.keyboard.press("ArrowRight")
    assert len(set(heard)) == count
    marks = figure.locator("svg use.mark").evaluate_all("all => all.map(each => each.ariaLabel)")
    assert [label.split("; ") for label in marks] == [words.split("\n") for words in heard]
    page.keyboard.press("Escape")
    assert not page.locator(r"#page\.tooltip").is_visible()
    assert figure.locator('.mark[tabindex="0"]').count() == 1


def test_a_focused_mark_keeps_its_words_where_the_page_scrolls_to_it(page: Page) -> None:
    page.evaluate("scrollTo(0, 0)")
    figure = figure_of(page, "memory")
    figure.locator('.mark[tabindex="0"]').focus()
    wait_until(lambda: page.evaluate("scrollY > 0"), "the page does not scroll")
    painted(page)
    assert page.locator(r"#page\.tooltip").is_visible()
    svg = figure.locator("svg")
    svg.evaluate("each => each.focus()")
    assert not svg.evaluate("each => each === document.activeElement")


def test_marks_of_a_series_that_is_switched_off_are_not_walked_through(page: Page) -> None:
    page.locator(".series-toggle").first.evaluate("each => each.click()")
    off = page.locator(".series-toggle").first.get_attribute("data-series")
    figure = figure_of(page, "throughput")
    figure.locator('.mark[tabindex="0"]').focus()
    page.keyboard.press("Home")
    walked = []
    for _ in range(figure.locator("svg use.mark").count()):
        walked.append(page.locator(":focus").get_attribute("data-series"))
        page.keyboard.press("ArrowRight")
    assert set(walked) == set(UNKIND_SERIES.values()) - {off}


def along(figure: Locator, axis: str) -> list[tuple[float, float]]:
    """The values at an axis and where they are written, in units of the drawing."""
    found: list[list[Any]] = figure.locator(f"svg .axis.{axis} .labels text").evaluate_all(
        f"all => all.map(each => [each.textContent, Number(each.getAttribute('{axis}'))])"
    )
    return [(float(text.replace(",", "")), place) for text, place in found]


def straightness(
    ticks: list[tuple[float, float]], points: list[tuple[float, float]], scale: str
) -> tuple[float, float]:
    """How far ticks and points lie from where the scale would have them, a shift of all points aside."""
    forward = math.log if scale == "log" else float
    shown = [(forward(value), place) for value, place in ticks if value > 0 or scale == "linear"]
    slope, start = linregress(*zip(*shown, strict=True))[:2]
    of_ticks = max(abs(place - start - slope * value) for value, place in shown)
    shifts = [place - start - slope * forward(value) for value, place in points]
    return of_ticks, max(shifts) - min(shifts)


def caps(figure: Locator) -> list[tuple[float, float]]:
    """Left and right of the lines that end the bars of intervals, in units of the drawing."""
    found: list[tuple[float, float]] = figure.locator("svg .panel use:not(.mark)").evaluate_all(
        """all => all.map(each => {
          const shape = document.getElementById(each.getAttribute("href").slice(1)).getAttribute("d");
          const [from, to] = shape.match(/-?[\\d.]+(?= )/g).map(Number).sort((a, b) => a - b);
          return [from + Number(each.getAttribute("x")), to + Number(each.getAttribute("x"))];
        })"""
    )
    return found


def test_marks_stand_where_the_axis_says_on_logarithmic_and_linear_axes(
    open_page: OpenPage, several: Path
) -> None:
    page = open_page(several)
    open_all(page)
    values = pd.read_csv(several.parent / "partial" / "chosen" / "scaling.csv").set_index("devices")[
        "speedup"
    ]
    figure = figure_of(page, "speedup")
    button = figure.locator("[data-action=scale]")
    places = []
    for _ in range(3):
        button.click()
        scale = "log" if button.get_attribute("aria-pressed") == "true" else "linear"
        marks = measured_marks(figure)
        assert sorted({int(mark["devices"]) for mark in marks}) == [1, 4, 8, 12, 16]
        for axis, of_mark in (("x", int), ("y", lambda devices: values[int(devices)])):
            points = [(of_mark(mark["devices"]), mark["at"]["xy".index(axis)]) for mark in marks]
            of_ticks, of_points = straightness(along(figure, axis), points, scale)
            assert of_ticks < 0.3, (scale, axis)
            assert of_points < 0.6, (scale, axis)
        for start, end in caps(figure):
            assert end - start == pytest.approx(CAP_POINTS, abs=0.2), scale
            assert min(abs((start + end) / 2 - mark["at"][0]) for mark in marks) < 0.2, scale
        places.append((scale, [mark["at"] for mark in marks]))
    assert caps(figure)
    assert places[0][0] != places[1][0]
    assert places[0] == places[2]
    assert places[0][1] != places[1][1]


def saved(page: Page, button: Locator) -> bytes:
    """What a button saves."""
    with page.expect_download() as download:
        button.click()
    return Path(download.value.path()).read_bytes()


def test_a_saved_svg_needs_no_other_file(page: Page, tmp_path: Path, open_page: OpenPage) -> None:
    content = saved(page, figure_of(page, "speedup").locator("[data-action=svg]"))
    root = fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = content.decode()
    assert "var(" not in text
    assert "currentColor" not in text
    inside = set(re.findall(r'\bid="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text)) <= inside
    said = " ".join(root.itertext())
    assert all(series in said for series in UNKIND_SERIES.values())
    file = tmp_path / "figure.svg"
    file.write_bytes(content)
    box = open_page(file).locator("use").last.bounding_box()
    assert box is not None
    assert box["width"] > 1


def test_a_figure_is_saved_as_a_pdf_of_one_page(page: Page) -> None:
    content = saved(page, figure_of(page, "speedup").locator("[data-action=pdf]"))
    assert content.startswith(b"%PDF-1.")
    assert content.rstrip().endswith(b"%%EOF")
    assert content.count(b"/Type /Page ") == 1
    # every object lies where the table at the end says
    table = int(content.rsplit(b"startxref\n", 1)[1].split()[0])
    assert content[table:].startswith(b"xref")
    places = [int(entry) for entry in re.findall(rb"(\d{10}) 00000 n", content[table:])]
    assert [content[place:].split(None, 1)[0] for place in places] == [
        str(number).encode() for number in range(1, len(places) + 1)
    ]
    for found in re.finditer(rb"/Length (\d+) >>\nstream\n", content):
        assert content[found.end() + int(found[1]) :].startswith(b"\nendstream")


def test_a_figure_is_saved_as_its_numbers_without_what_is_hidden(page: Page, two_series: Path) -> None:
    scaling = pd.read_csv(two_series.parent / "unkind" / "scaling.csv")
    page.locator(".series-toggle").first.evaluate("each => each.click()")
    off = page.locator(".series-toggle").first.get_attribute("data-series")
    (kept,) = set(UNKIND_SERIES.values()) - {off}
    content = saved(page, figure_of(page, "throughput").locator("[data-action=csv]")).decode()
    rows = [row for row in csv.DictReader(io.StringIO(content)) if row["kind"] == "measured"]
    assert [(row["series"], int(row["devices"])) for row in rows] == [(kept, 1), (kept, 2)]
    for row in rows:
        point = scaling[(scaling["series"] == kept) & (scaling["devices"] == int(row["devices"]))].iloc[0]
        for name, column in (("value", ""), ("low", "_low"), ("high", "_high")):
            expected = point[f"throughput_samples_per_second{column}"]
            assert float(row[name]) == pytest.approx(expected, rel=1e-5), name
        assert int(row["n"]) == point["n"]
