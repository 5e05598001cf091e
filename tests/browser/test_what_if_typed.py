"""What if: a reader types other criteria, and the page answers as the study itself would have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page
from tests.browser.conftest import OpenPage
from tests.browser.reports import TWO_SERIES, UNKIND_SERIES
from tests.planted_study import PlantedStudy

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.conclusion import conclude
from scalewise.analysis.tables import collect


@pytest.fixture
def what_if(open_page: OpenPage, two_series: Path) -> Locator:
    """The fields of the report on two series."""
    section = open_page(two_series).locator(r"#unkind\.what-if")
    section.scroll_into_view_if_needed()
    return section


def decided(report: Path, rule: Mapping[str, float]) -> tuple[int | None, str]:
    """Devices and series that the study answers where its criteria have these values."""
    planned = PlantedStudy(report.parents[1], TWO_SERIES).study.experiments["unkind"]
    asked = AnalysisSpec.from_json(planned.analysis_definition)
    spec = asked.spec.model_copy(update={"decision": asked.spec.decision.model_copy(update=dict(rule))})
    tables = collect("unkind", spec, report.parent / "unkind" / "runs")
    found = conclude(replace(asked, spec=spec), tables).decision
    return found.devices, UNKIND_SERIES[str(found.series)]


def answered(what_if: Locator) -> tuple[int | None, str]:
    """The same by the page."""
    data = what_if.locator(".what-if-answer").evaluate("each => ({...each.dataset})")
    return int(data["devices"]) if data["devices"] else None, data["series"]


def decided_again(what_if: Locator) -> None:
    """Wait until the page has decided after a reset, which it does in a timer: timers run in their order."""
    what_if.page.evaluate("new Promise(done => setTimeout(done))")


def test_typed_criteria_are_judged_as_the_study_would_judge_them(what_if: Locator, two_series: Path) -> None:
    rules: list[dict[str, float]] = [
        {},
        {"deadline_minutes": 1.5},
        {"deadline_minutes": 30},
        {"max_device_hours": 0.034},
        {"min_efficiency": 0.999},
    ]
    answers = []
    for rule in rules:
        what_if.get_by_role("button", name="Reset").click()
        for name, value in rule.items():
            what_if.locator(f'[name="{name}"]').fill(str(value))
        decided_again(what_if)
        assert answered(what_if) == decided(two_series, rule), rule
        answers.append(answered(what_if)[0])
    assert len(set(answers)) > 1


def test_a_price_is_told_and_decides_nothing(what_if: Locator) -> None:
    before = answered(what_if)
    what_if.locator('[name="price"]').fill("2.5")
    assert answered(what_if) == before
    assert "EUR" in what_if.locator(".what-if-counts tbody").inner_text()


@pytest.mark.parametrize("value", ["-3", "0", "7"])
def test_a_value_that_makes_no_sense_is_named_and_nothing_is_decided(what_if: Locator, value: str) -> None:
    said = what_if.locator(".what-if-answer")
    before = said.inner_text()
    field = what_if.locator('[name="min_efficiency"]')
    field.fill(value)
    assert field.get_attribute("aria-invalid") == "true"
    assert what_if.locator(f"[id='{field.get_attribute('aria-describedby')}']").inner_text()
    assert said.inner_text().startswith("Not decided again.")
    what_if.get_by_role("button", name="Reset").click()
    decided_again(what_if)
    assert field.get_attribute("aria-invalid") is None
    assert said.inner_text() == before


def test_an_answer_can_be_sent_as_a_link(what_if: Locator, open_page: OpenPage, two_series: Path) -> None:
    what_if.locator('[name="max_device_hours"]').fill("0.034")
    address = what_if.locator(".what-if-link").evaluate("each => each.href")
    page: Page = open_page(two_series)
    page.goto(address)
    assert answered(page.locator(r"#unkind\.what-if")) == answered(what_if)
    assert page.locator(r'#unkind\.what-if [name="max_device_hours"]').input_value() == "0.034"
