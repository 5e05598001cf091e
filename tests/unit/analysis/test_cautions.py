"""What could be wrong with an answer in a system: each question with its action and its certainty."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.planted import ONLY, Planted, make_runs, spread

from scalewise.analysis.answer import Answer
from scalewise.analysis.cautions import REDO

RATES = {1: 100.0, 2: 190.0, 4: 350.0, 8: 400.0}
"""Efficiencies 1, 0.95, 0.875 and 0.5: the answer is 4."""
QUIET = Planted({(ONLY, devices): spread(rate) for devices, rate in RATES.items()})


def answer_on(runs: pd.DataFrame, **keys: Any) -> Answer:
    return QUIET.analysis(runs=runs, **keys).answer


def where(runs: pd.DataFrame, devices: int, repeat: int | None = None) -> pd.Series:
    found = runs["devices"] == devices
    return found if repeat is None else found & (runs["repeat"] == repeat)


def test_a_quiet_study_is_clear_and_has_nothing_to_do() -> None:
    answer = QUIET.analysis().answer
    assert (answer.devices, answer.certainty) == (4, "clear")
    assert not answer.cautions
    assert answer.to_do == "Nothing more to measure."


@pytest.mark.parametrize(("apart", "certainty"), [(1, "clear"), (8, "likely")])
def test_many_disturbed_runs_leave_the_rest_uncertain(apart: int, certainty: str) -> None:
    study = Planted({(ONLY, devices): spread(rate, repeats=5) for devices, rate in RATES.items()})
    runs = study.runs
    taken = [(devices, repeat) for repeat in (1, 2) for devices in RATES][:apart]
    if apart == 8:
        taken += [(1, 5), (8, 5)]
    for devices, repeat in taken:
        runs.loc[where(runs, devices, repeat), ["outcome", "disturbance"]] = ["disturbed", "1 other job"]
    answer = study.analysis(runs=runs).answer
    assert answer.certainty == certainty
    assert answer.to_do == f"{len(taken)} of 20 runs were disturbed: make them again."
    assert answer.command == REDO


@pytest.mark.parametrize(("at_eight", "certainty"), [(0.10, "doubtful"), (0.955, "likely"), (0.98, "clear")])
def test_a_collapse_of_the_accuracy_is_never_clear(at_eight: float, certainty: str) -> None:
    study = Planted({(ONLY, devices): spread(100.0 * devices) for devices in RATES})
    runs = study.runs
    noise = runs["repeat"] * 0.001
    runs["final_accuracy"] = 0.98 + noise
    runs.loc[where(runs, 8), "final_accuracy"] = at_eight + noise
    answer = study.analysis(runs=runs).answer
    assert (answer.devices, answer.certainty) == (8, certainty)


def test_counts_of_another_day_are_named() -> None:
    runs = make_runs({(ONLY, devices): spread(rate) for devices, rate in RATES.items()})
    later = pd.to_datetime(runs["started_at"]) + pd.Timedelta(days=2)
    runs["started_at"] = runs["started_at"].where(runs["devices"] != 4, later.map(pd.Timestamp.isoformat))
    answer = answer_on(runs)
    assert answer.certainty == "doubtful"
    assert "4 GPUs are of other days" in answer.reason


def test_counts_on_nodes_of_their_own_are_named() -> None:
    runs = make_runs({(ONLY, devices): spread(rate) for devices, rate in RATES.items()})
    answer = answer_on(runs.assign(hosts="node" + runs["devices"].astype(str)))
    assert answer.certainty == "doubtful"
    assert "other nodes" in answer.reason


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_runs_are_never_clear(repeats: int) -> None:
    study = Planted({(ONLY, d): spread(rate, repeats=repeats) for d, rate in RATES.items()})
    answer = study.analysis().answer
    assert answer.devices == 4
    assert answer.certainty == "likely"
    assert "(" not in next(each for each in answer.figures if each.label == "Speed").text
