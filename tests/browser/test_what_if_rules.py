"""What if: the page decides by other criteria as the package does, by its script and by typed values."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page
from tests.browser.conftest import OpenPage
from tests.browser.reports import TWO_SERIES, UNKIND_SERIES
from tests.planted_study import PlantedStudy
from tests.unit.analysis.decision_cases import CASES
from tests.unit.analysis.planted_decisions import asked, concluded_by_script, random_rules, random_study

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.conclusion import conclude
from scalewise.analysis.report import what_if as what_if_module
from scalewise.analysis.tables import collect


@pytest.fixture
def script(open_page: OpenPage, tmp_path: Path) -> Page:
    """An empty page with the script that decides."""
    file, script = tmp_path / "script.html", Path(what_if_module.__file__).with_suffix(".js")
    head = "<!doctype html><meta charset=utf-8><title>script</title>"
    file.write_text(f"{head}<script>{script.read_text(encoding='utf-8')}</script>", encoding="utf-8")
    return open_page(file)


def test_the_script_gives_the_answers_of_the_table(script: Page) -> None:
    jobs = [{"facts": case.study.facts(), "rule": asked(case.rule, case.queue_minutes)} for case in CASES]
    found = concluded_by_script(script, jobs)
    given = {
        case.title: (each["devices"], each["clear"], each["series"] if case.devices else case.series)
        for case, each in zip(CASES, found, strict=True)
    }
    assert given == {case.title: (case.devices, case.clear, case.series) for case in CASES}
    assert found == [case.study.concluded(case.rule, case.queue_minutes) for case in CASES]


def test_script_and_package_agree_on_studies_drawn_at_random(script: Page) -> None:
    """Devices, series, verdict, open questions, the next count and the criteria that every point misses."""
    jobs, expected, drawn = list[dict[str, Any]](), list[Any](), list[Sequence[Any]]()
    for number in range(20):
        chance = random.Random(f"3.{number}")
        study = random_study(chance)
        facts = study.facts()
        for rule, queue_minutes in random_rules(chance, study) if "left_out" not in facts else ():
            jobs.append({"facts": facts, "rule": asked(rule, queue_minutes)})
            expected.append(study.concluded(rule, queue_minutes))
            drawn.append((number, rule, queue_minutes))
    found = concluded_by_script(script, jobs)
    assert list(zip(drawn, found, strict=True)) == list(zip(drawn, expected, strict=True))
    # they would agree on nothing, too
    assert {each["devices"] is None for each in found} == {True, False}
    assert sum(len(each["open"]) for each in found) > 5


def decided(report: Path, rules: Sequence[Mapping[str, float]]) -> list[tuple[int | None, str]]:
    """Return devices and series that the study answers if its criteria have each of these values."""
    planned = PlantedStudy(report.parents[1], TWO_SERIES).study.experiments["unkind"]
    asked = AnalysisSpec.from_json(planned.analysis_definition)
    tables = collect("unkind", asked.spec, report.parent / "unkind" / "runs")
    answers = []
    for rule in rules:
        spec = asked.spec.model_copy(update={"decision": asked.spec.decision.model_copy(update=dict(rule))})
        found = conclude(replace(asked, spec=spec), tables).decision
        answers.append((found.devices, UNKIND_SERIES[str(found.series)]))
    return answers


def test_typed_criteria_are_judged_as_the_study_would_judge_them(
    open_page: OpenPage, two_series: Path
) -> None:
    what_if = open_page(two_series).locator(r"#unkind\.what-if")
    what_if.scroll_into_view_if_needed()
    rules: list[dict[str, float]] = [
        {},
        {"deadline_minutes": 1.5},
        {"deadline_minutes": 30},
        {"max_device_hours": 0.034},
        {"min_efficiency": 0.999},
    ]
    answers = []
    for rule in rules:
        for name, value in rule.items():
            what_if.locator(f'[name="{name}"]').fill(str(value))
        data = what_if.locator(".what-if-answer").evaluate("each => ({...each.dataset})")
        answers.append((int(data["devices"]) if data["devices"] else None, data["series"]))
        what_if.get_by_role("button", name="Reset").click()
        # the page decides in a timer, and timers run in their order
        what_if.page.evaluate("new Promise(done => setTimeout(done))")
    assert answers == decided(two_series, rules)
    assert len({devices for devices, _ in answers}) > 1
