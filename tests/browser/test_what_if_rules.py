"""The page's script decides as the package does: on the table of cases, and on studies drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page
from tests.unit.analysis.decision_cases import CASES
from tests.unit.analysis.planted_decisions import asked, concluded_by_script, random_rules, random_study

from scalewise.analysis.report import what_if

OpenPage = Callable[..., Page]


@pytest.fixture
def script(open_page: OpenPage, tmp_path: Path) -> Page:
    """An empty page with the script that decides."""
    file, script = tmp_path / "script.html", Path(what_if.__file__).with_suffix(".js")
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_script_and_package_agree_on_studies_drawn_at_random(script: Page, seed: int) -> None:
    """Devices, series, verdict, open questions, the next count and the criteria that every point misses."""
    jobs, expected, drawn = list[dict[str, Any]](), list[Any](), list[Sequence[Any]]()
    for number in range(15):
        chance = random.Random(f"{seed}.{number}")
        study = random_study(chance)
        facts = study.facts()
        for rule, queue_minutes in random_rules(chance, study) if "left_out" not in facts else ():
            jobs.append({"facts": facts, "rule": asked(rule, queue_minutes)})
            expected.append(study.concluded(rule, queue_minutes))
            drawn.append((seed, number, rule, queue_minutes))
    found = concluded_by_script(script, jobs)
    assert list(zip(drawn, found, strict=True)) == list(zip(drawn, expected, strict=True))
    # they would agree on nothing, too
    assert {each["devices"] is None for each in found} == {True, False}
    assert sum(len(each["open"]) for each in found) > 5
