"""The table of cases, decided by the package; tests/browser has the page's script decide the same ones."""

from __future__ import annotations

import json

import pytest
from tests.unit.analysis.decision_cases import CASES, Case, both, of
from tests.unit.analysis.planted_decisions import PlantedResults


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_package_gives_the_answer_of_the_table(case: Case) -> None:
    decision = case.study.decision(case.rule, case.queue_minutes)
    assert decision.devices == case.devices
    assert decision.devices is None or decision.series == case.series
    assert decision.clear == case.clear


def test_twelve_series_on_eight_counts_come_to_few_bytes() -> None:
    """They are part of a page that is to stay small."""
    rates = {count: 100 * count / (1 + 0.01 * count) for count in (1, 2, 4, 8, 16, 32, 64, 128)}
    study = of(rates, series="s0")
    for index in range(1, 12):
        study = both(
            study, of({at: (1 + index / 100) * rate for at, rate in rates.items()}, series=f"s{index}")
        )
    facts = study.facts()
    assert len(facts["points"]) == 12 * 8
    assert len(json.dumps(facts, separators=(",", ":"))) < 70_000


def test_without_a_point_to_choose_the_part_says_so() -> None:
    failed = PlantedResults({("all runs", 1): ["failed"], ("all runs", 2): ["failed"]})
    assert failed.facts() == {"left_out": "There is nothing to choose among: no device count has a speedup."}
