"""A study whose speeds are planted: its records become the answer and the page by the rules' own commands."""

from __future__ import annotations

import csv
import json
from html import unescape

import pytest
from tests.planted_study import Law, PlantedStudy, experiments

pytestmark = pytest.mark.contract

STUDY = experiments(known={"title": "What is planted", "decision": {"min_efficiency": 0.7}})
LAW = Law(rate=1000.0, serial=0.1, scatter=0.002)
"""Efficiency 0.91 on 2 devices, 0.77 on 4, 0.59 on 8."""
ANSWER = 4


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedStudy:
    """The study, from its records to its report."""
    planted = PlantedStudy(tmp_path_factory.mktemp("planted") / "study", STUDY, LAW.speed)
    planted.finish()
    return planted


def test_the_planted_speeds_are_in_the_tables(planted: PlantedStudy) -> None:
    with (planted.results / "known" / "scaling.csv").open(encoding="utf-8") as file:
        points = {int(point["devices"]): point for point in csv.DictReader(file)}
    assert list(points) == [1, 2, 4, 8]
    for devices, point in points.items():
        efficiency = 1 / (1 + LAW.serial * (devices - 1))
        assert int(point["n"]) == 3
        assert float(point["throughput_samples_per_second"]) == pytest.approx(
            1000 * devices * efficiency, rel=0.01
        )
        assert float(point["parallel_efficiency"]) == pytest.approx(efficiency, rel=0.01)


def test_the_planted_answer_stands_in_decision_and_page(planted: PlantedStudy) -> None:
    (decision,) = json.loads((planted.results / "decision.json").read_text(encoding="utf-8"))
    assert decision == json.loads((planted.results / "known" / "decision.json").read_text(encoding="utf-8"))
    assert decision["devices"] == ANSWER
    page = unescape((planted.results / "report.html").read_text(encoding="utf-8"))
    assert decision["card"]["verdict"] in page
    assert "What is planted" in page
