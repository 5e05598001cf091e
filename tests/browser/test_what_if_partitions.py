"""The fields of the page on partitions: the reader's prices and waits give the answer of the same rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from tests.truth.partitions import CASES, studies_of

from scalewise.analysis.partitions.answer import PartitionAnswer, answer
from scalewise.analysis.partitions.compare import write_comparison
from scalewise.analysis.partitions.points import Aim, collect_points
from scalewise.analysis.report.partition_page import draw_partitions, write_partition_report

OpenPage = Callable[..., Page]

CASE = "cheap and slow, fast and expensive"
AIMS: dict[str, Aim] = {"The lowest cost: ": "cost", "The earliest end: ": "soonest"}
"""Beginnings of the lines of the answer, and what their points have the least of."""


def answer_with(prices: Mapping[str, float], waits: Mapping[str, float]) -> PartitionAnswer:
    """Return the package's answer on the same runs with other prices and waits, in minutes."""
    studies = []
    for study in studies_of(CASES[CASE], np.random.default_rng(5), 0.01, 3):
        minutes = waits.get(study.partition)
        own = study.waits if minutes is None else dict.fromkeys(study.waits, 60 * minutes)
        studies.append(replace(study, price=prices.get(study.partition, study.price), waits=own))
    return answer(collect_points(studies))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on a study on two partitions."""
    folder = tmp_path_factory.mktemp("digits")
    found = answer_with({}, {})
    write_comparison("digits", found, folder)
    draw_partitions(folder)
    own = {name: study.results.decision for name, study in found.points.studies.items()}
    write_partition_report(folder, own, title="Digits")
    return folder / "report.html"


@pytest.fixture
def fields(open_page: OpenPage, report: Path) -> Page:
    """The page of this study."""
    return open_page(report)


def line(page: Page, start: str) -> str:
    """Return the line of the answer that begins with these words."""
    texts = page.locator(".what-if-answer p").all_inner_texts()
    return next(text for text in texts if text.startswith(start))


def least(found: PartitionAnswer, aim: Aim) -> str:
    """Return the point with the least mean, in words."""
    amounts = {
        place: interval.estimate
        for place, point in found.points.points.items()
        if (interval := point.interval(aim)) is not None
    }
    place = min(amounts, key=amounts.__getitem__)
    return f"{place.devices} GPU{'s' if place.devices > 1 else ''} on {place.partition}"


def test_prices_and_waits_of_the_reader_give_the_points_of_the_package(fields: Page) -> None:
    for prices, waits in (
        ({}, {}),
        ({"h200": 1.0}, {"h200": 60.0}),
        ({"a100": 3.0, "h200": 4.5}, {"h200": 60.0, "a100": 90.0}),
        ({"a100": 0.0}, {}),
    ):
        for name, values in (("price", prices), ("wait", waits)):
            for partition, value in values.items():
                fields.locator(f'[name="{name}.{partition}"]').fill(str(value))
        found = answer_with(prices, waits)
        for start, aim in AIMS.items():
            assert line(fields, start).startswith(f"{start}{least(found, aim)}, "), (prices, waits)
        fields.get_by_role("button", name="Reset").click()


def test_measured_ends_are_compared_as_on_the_card(fields: Page) -> None:
    found = answer_with({}, {}).aims["soonest"]
    open_ones = [
        f"{rival.place.devices} GPUs on {rival.place.partition}"
        for rival in found.rivals
        if rival.state == "open"
    ]
    lines = fields.locator(".what-if-answer p").all_inner_texts()
    after = lines[lines.index(line(fields, "The earliest end: ")) + 1 :]

    assert found.partition_status == "clear"
    assert after == ([f"Not shown to be worse: {' and '.join(open_ones)}."] if open_ones else [])


def test_an_end_that_differs_by_less_than_is_worth_having_is_not_worse(fields: Page) -> None:
    # 10 h and 32 minutes, and 10 h and 49 minutes: 2.7 % apart, with intervals that do not meet
    for partition in ("a100", "h200"):
        fields.locator(f'[name="wait.{partition}"]').fill("600")
    lines = fields.locator(".what-if-answer p").all_inner_texts()
    after = lines[lines.index(line(fields, "The earliest end: 2 GPUs on h200, ")) + 1 :]

    assert len(after) == 1
    assert "4 GPUs on a100" in after[0]


def test_points_that_cost_more_by_their_price_are_not_named(fields: Page) -> None:
    lines = fields.locator(".what-if-answer p").all_inner_texts()
    cheapest = lines.index(line(fields, "The lowest cost: 1 GPU on a100, "))
    after = lines[cheapest + 1 : lines.index(line(fields, "The earliest end: "))]

    # h200 is three times as fast as a100, at five times its price
    assert not any("h200" in text for text in after)


def test_points_that_may_cost_as_little_are_named(fields: Page) -> None:
    # 1 GPU of a100 at 1.00 and of h200 at 2.96 cost the same
    fields.locator('[name="price.h200"]').fill("2.96")

    assert "1 GPU on " in line(fields, "Not shown to be worse: ")


def test_the_parts_of_a_partition_are_those_of_its_name_with_an_at_sign(
    open_page: OpenPage, two_partitions: Path
) -> None:
    page = open_page(two_partitions)
    here, other = (page.locator(rf"#known\@{name}") for name in ("h200", "a100"))
    before = other.locator(".what-if-answer").inner_text()
    here.locator('[name="min_efficiency"]').fill("0.99")
    expect(here.locator(".what-if-answer")).to_contain_text("1 GPU")
    assert other.locator(".what-if-answer").inner_text() == before

    address = here.locator("figure a.permalink").first.evaluate("each => each.href")
    assert "#known@h200." in address
    page.goto(address)
    figure = here.locator("figure").first
    assert figure.evaluate("each => each.getBoundingClientRect().top < innerHeight")

    link = page.get_by_role("link", name="Figures and all points of this comparison")
    assert link.get_attribute("href") == "known/report.html"
    page = open_page(two_partitions.parent / "known" / "report.html")
    expect(page.get_by_role("heading", level=1)).to_have_text("What is planted: which partition?")
    link = page.get_by_role("link", name="h200")
    assert link.get_attribute("href") == "../known%40h200/report.html"


def test_a_price_that_is_none_is_refused_and_reset_restores_the_study(fields: Page) -> None:
    before = fields.locator(".what-if-answer").inner_text()
    price = fields.locator('[name="price.a100"]')
    price.fill("-1")
    expect(price).to_have_attribute("aria-invalid", "true")
    assert fields.locator(".what-if-answer").inner_text() == "Write numbers from 0 on."

    fields.get_by_role("button", name="Reset to the study's values").click()
    expect(fields.locator(".what-if-answer p").first).to_have_text(before.splitlines()[0])
    expect(price).not_to_have_attribute("aria-invalid", "true")
