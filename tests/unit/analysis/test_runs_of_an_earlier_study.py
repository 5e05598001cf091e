"""A study that goes over from a list of device counts to a choice among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.planted_study import CHOOSING, SITE, PlantedStudy, overhead

from scalewise.analysis.tables import collect

LIST = CHOOSING.replace("{up_to: 16}", "[1, 8]")


def runs_counted(folder: Path, text: str = CHOOSING, site: dict[str, object] | None = None) -> dict[str, int]:
    """Runs of each point that the first judgement of the choice counts as made."""
    PlantedStudy(folder, LIST, overhead(0.1)).make_runs()
    judged = PlantedStudy(folder, text, overhead(0.1), site).judge()
    return {point.point: point.completed for point in judged.points if point.completed}


def test_runs_of_the_list_are_not_made_again(tmp_path: Path) -> None:
    assert runs_counted(tmp_path) == {"d1": 3, "d8": 3}


@pytest.mark.parametrize(
    ("text", "site"),
    [
        pytest.param(CHOOSING, {**SITE, "devices_per_node": 8}, id="other nodes"),
        pytest.param(CHOOSING.replace("steps: 300", "steps: 300\n    seed: 7"), SITE, id="other settings"),
    ],
)
def test_runs_made_in_another_way_are_not_taken(text: str, site: dict[str, object], tmp_path: Path) -> None:
    assert "d8" not in runs_counted(tmp_path, text, site)


def test_runs_that_are_made_and_runs_that_are_missing_are_of_the_same_series(tmp_path: Path) -> None:
    """The options of a sweep stand in another order in the plan than in the records, which sort them."""
    sweep = "steps: 300\n    sweep: {precision: [fp32, bf16], gradient_as_bucket_view: [false, true]}"
    study = PlantedStudy(tmp_path, CHOOSING.replace("steps: 300", sweep), overhead(0.1))
    study.make_runs(most=5)
    judged = study.judge()
    assert sum(point.completed for point in judged.points) == 5
    assert len(judged.choices) == 4
    runs = collect("gpt", study.planned.experiment, study.folder / "runs").runs
    assert runs["series"].nunique() == 4
