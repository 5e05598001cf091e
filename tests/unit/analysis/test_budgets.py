"""What a study with rounds counts: all its jobs in the budget, and the runs of an earlier study as made."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.planted_records import all_reduce, leave_history
from tests.planted_study import CHOOSING, SITE, PlantedStudy, overhead
from tests.small_runs import definition

from scalewise.analysis.tables import collect
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.rounds import Round
from scalewise.plan.runs.spending import Spending
from scalewise.records import HISTORY, SUMMARY, Start, later

pytestmark = pytest.mark.slow

ONE_MINUTE_RUNS = CHOOSING.replace("runtime_minutes: 10", "runtime_minutes: 1")
"""Runs take 35 s of their minute, and the answer, 16 devices, is measured 3 times."""
OF_A_MINUTE = 1 / 60
"""Device-hours of the most that a run may take on one device."""


def limited(budget: float, text: str = ONE_MINUTE_RUNS) -> str:
    return text.replace("steps: 300", f"steps: 300\n    budget: {{device_hours: {budget:.6f}}}")


def requested(judged: Round) -> dict[str, int]:
    """Further runs of each point."""
    return {
        each.point: each.next_asked - each.asked for each in judged.points if each.next_asked > each.asked
    }


def spent(judged: Round) -> float:
    assert judged.spent_device_hours is not None
    return judged.spent_device_hours


def most(judged: Round) -> float:
    """Device-hours if all runs that a round requests start at once, and each takes all of its time."""
    devices = {point: int(point.split(".")[0].removeprefix("d")) for point in requested(judged)}
    return sum(devices[point] * more * OF_A_MINUTE for point, more in requested(judged).items())


KILLED = None
"""The seconds of a start that was killed after it had begun: it may have taken its limit of a minute."""


def leave_starts(folder: Path, shape: str, *seconds: float | None) -> None:
    starts = []
    for number, taken in enumerate(seconds):
        began = later("2026-03-01T00:00:00+00:00", 1000 * number)
        ended_at = None if taken is KILLED else later(began, taken)
        starts.append(Start(started_at=began, limit_seconds=60, ended_at=ended_at))
    run = definition().model_copy(update={"shape": Shape.parse(shape)})
    leave_history(folder, run, *starts)


@pytest.mark.parametrize("series", [1, 2])
def test_runs_of_a_round_that_start_at_once_and_take_all_their_time_keep_to_the_budget(
    tmp_path: Path, series: int
) -> None:
    text = ONE_MINUTE_RUNS
    if series == 2:
        text = text.replace("steps: 300", "steps: 300\n    sweep: {gradient_as_bucket_view: [false, true]}")
    asked: set[str] = set()
    for budget in (0.2, 0.5, 1.1):
        study = PlantedStudy(tmp_path / str(budget), limited(budget, text), overhead(0.04))
        for judged in study.play():
            assert spent(judged) + most(judged) <= budget + 1e-9, judged
            asked |= requested(judged).keys()
    # larger budgets reach the most expensive count
    assert {"16" in point for point in asked} == {True, False}


def test_a_rest_that_pays_for_one_of_two_repeats_buys_that_one(tmp_path: Path) -> None:
    free = PlantedStudy(tmp_path / "free", ONE_MINUTE_RUNS, overhead(0.04)).play()
    (before,) = (each for each in free if requested(each) == {"d16": 2})
    budget = spent(before) + 1.5 * 16 * OF_A_MINUTE
    rounds = PlantedStudy(tmp_path / "limited", limited(budget), overhead(0.04)).play()

    assert requested(rounds[before.number - 1]) == {"d16": 1}
    last = rounds[-1]
    assert requested(last) == {}
    assert {each.point: each.verdict for each in last.points}["d16"] == "over the budget"
    assert spent(before) < spent(last) <= budget


@pytest.mark.parametrize(
    "further",
    [
        pytest.param([], id="one job"),
        pytest.param([KILLED, KILLED], id="put back twice"),
    ],
)
def test_jobs_that_were_put_back_into_the_queue_are_paid_from_the_budget(
    tmp_path: Path, further: list[float | None]
) -> None:
    # two runs of the baseline, and one on 8 devices with all of its time
    budget = 2 * 35.4 / 3600 + 8.5 * OF_A_MINUTE
    study = PlantedStudy(tmp_path, limited(budget), overhead(0.04))
    for run in study.make_runs():
        leave_starts(study.folder / "runs" / run, "1x1", *further, 35.4)
    judged = study.judge()

    assert judged.spent_device_hours == pytest.approx(2 * (35.4 + 60 * len(further)) / 3600)
    assert ("d8" in requested(judged)) == (not further)
    assert spent(judged) + most(judged) <= budget


def test_spending_is_of_all_jobs_of_all_runs_and_measurements_as_they_are_billed(tmp_path: Path) -> None:
    played = PlantedStudy(tmp_path / "played", ONE_MINUTE_RUNS, overhead(0.04))
    played.make_runs()
    runs = tmp_path / "runs"
    leave_starts(runs / "d2.r1", "1x2", 100.0, 50.0)
    leave_starts(runs / "d8.r1", "2x4", 10.0)  # it failed, or still runs
    (runs / "d16.r1").mkdir()  # nothing is known of it
    leave_starts(runs / "d4.r1", "1x4", 30.0)
    (runs / "d4.r1" / HISTORY).write_text("{", encoding="utf-8")
    # without a history: from its start to its end
    (runs / "d1.r1").mkdir()
    summary = (played.folder / "runs" / "d1.r1" / SUMMARY).read_text(encoding="utf-8")
    (runs / "d1.r1" / SUMMARY).write_text(summary, encoding="utf-8")
    measured = all_reduce("1x4", {}, job_seconds=36.0)

    found = Spending.of(runs, {2: 4.0}, [measured])

    seconds = found.seconds["d1.r1"]
    assert 30 < seconds < 60
    assert dict(found.seconds) == {"d1.r1": seconds, "d2.r1": 150.0, "d8.r1": 10.0}
    # 2 devices are billed as the 4 of their node
    assert found.device_hours == pytest.approx((seconds + 4 * 150 + 8 * 10 + 4 * 36) / 3600)


# --- a study that goes from a list of device counts to a choice among them ------------------------------

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
