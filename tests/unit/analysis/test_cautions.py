"""What could be wrong with an answer in a system: each question with its action and its certainty."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.unit.analysis.planted import ONLY, Planted, make_runs, make_spec, make_tables, spread

from scalewise.analysis.analysis_spec import WITH_NO_GRAD, AnalysisSpec
from scalewise.analysis.answer import Answer
from scalewise.analysis.cautions import CAUTIONS, CERTAINTIES, REDO
from scalewise.analysis.study import Part, conclude

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


def test_an_answer_that_rests_on_disturbed_runs_is_doubtful_and_the_command_makes_them_again() -> None:
    runs = QUIET.runs
    runs.loc[where(runs, 4), "disturbance"] = "other processes took 40 % of the CPUs"
    answer = answer_on(runs)
    assert (answer.devices, answer.certainty) == (4, "doubtful")
    assert answer.command == REDO
    assert "3 of 6" in answer.reason


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


def started(runs: pd.DataFrame, order: list[int]) -> pd.DataFrame:
    """Return the runs with starts ten minutes apart, in an order of their rows."""
    begin = pd.Timestamp("2026-01-05T09:00:00+00:00")
    place = {row: rank for rank, row in enumerate(order)}
    times = [(begin + pd.Timedelta(minutes=10 * place[row])).isoformat() for row in range(len(runs))]
    return runs.assign(started_at=times)


def test_counts_that_ran_one_after_the_other_are_not_separable_from_time() -> None:
    """A queue starts small jobs first while all speeds rise by 15 %: 2 is right, and 4 looks efficient."""
    rates = {1: 100.0, 2: 180.0, 4: 264.0}
    runs = Planted({(ONLY, devices): spread(rate) for devices, rate in rates.items()}).runs
    order = sorted(range(len(runs)), key=lambda row: (runs["devices"].iloc[row], runs["repeat"].iloc[row]))
    drift = {row: 1 + 0.15 * rank / (len(order) - 1) for rank, row in enumerate(order)}
    for column in ("throughput_samples_per_second",):
        runs[column] = [value * drift[row] for row, value in enumerate(runs[column])]
    answer = answer_on(started(runs, order))
    assert answer.certainty == "doubtful"
    assert "in the order of their size" in answer.reason
    assert "turns" in answer.to_do


def test_the_same_drift_in_blocks_changes_no_ratio() -> None:
    generator = np.random.default_rng(2)
    rates: dict[int, float] = {1: 100.0, 2: 180.0, 4: 320.0}
    rows: list[tuple[int, int, float, str]] = []
    begin = pd.Timestamp("2026-01-05T09:00:00+00:00")
    for repeat in range(1, 5):
        for devices in generator.permutation(list(rates)).tolist():
            rate = rates[devices] * (1 + 0.2 * len(rows) / 12) * math.exp(generator.normal(0, 0.003))
            rows.append((devices, repeat, rate, (begin + pd.Timedelta(minutes=10 * len(rows))).isoformat()))
    runs = pd.concat(
        [
            make_runs({(ONLY, d): [rate]}, repeat=repeat, started_at=at, run=f"d{d}.r{repeat}")
            for d, repeat, rate, at in rows
        ],
        ignore_index=True,
    )
    answer = answer_on(runs)
    speed = next(each for each in answer.figures if each.label == "Speed")
    assert (answer.devices, answer.certainty) == (4, "clear")
    assert speed.low is not None
    assert speed.high is not None
    assert speed.low < 3.2 < speed.high
    assert speed.high / speed.low < 1.3


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


def test_partitions_that_were_measured_days_apart_are_not_clear() -> None:
    parts, tables = [], []
    for number, name in enumerate(("a100", "h200")):
        runs = make_runs({(ONLY, 1): spread(100.0 + 50 * number, repeats=4)})
        times = pd.to_datetime(runs["started_at"]) + pd.Timedelta(days=7 * number)
        tables.append(make_tables(runs.assign(started_at=times.map(pd.Timestamp.isoformat))))
        spec = make_spec([1], decision={"by": "cost"})
        parts.append(Part(name, AnalysisSpec("x", spec, accelerator="cuda"), price=1.0, unit="price"))
    answer = conclude("x", parts, tables).answer
    assert (answer.partition, answer.certainty) == ("h200", "doubtful")
    assert "days apart" in answer.reason


def test_survivors_of_a_point_that_loses_runs_are_not_clear() -> None:
    study = Planted({**QUIET.points} | {(ONLY, 4): [*spread(350.0), "timed-out"]})
    answer = study.analysis().answer
    assert (answer.devices, answer.certainty) == (4, "likely")
    assert "1 of 4 runs have no result" in answer.reason


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_runs_are_never_clear(repeats: int) -> None:
    study = Planted({(ONLY, d): spread(rate, repeats=repeats) for d, rate in RATES.items()})
    answer = study.analysis().answer
    assert answer.devices == 4
    assert answer.certainty == "likely"
    assert "(" not in next(each for each in answer.figures if each.label == "Speed").text


def test_an_efficiency_above_one_is_an_error_until_it_is_explained() -> None:
    study = Planted({(ONLY, 1): spread(100.0), (ONLY, 2): spread(240.0)})
    answer = study.analysis().answer
    assert (answer.devices, answer.certainty) == (2, "likely")
    assert "above 1 (1.20)" in answer.reason


def test_runs_that_were_left_out_are_named_with_what_differs() -> None:
    runs = QUIET.runs
    left_out = ["other conditions", "driver version is 2, not 1"]
    runs.loc[where(runs, 8), ["outcome", "reason"]] = left_out
    answer = answer_on(runs)
    assert answer.certainty == "likely"
    assert "driver version is 2, not 1" in answer.reason
    assert "8 GPUs" in answer.reason


def test_slow_files_that_only_many_ranks_make_slow_are_the_cost_of_scaling() -> None:
    """Every third run on 8 waits for shared files: none is set apart, and 8 is no clear answer."""
    study = Planted({**QUIET.points} | {(ONLY, 8): [584.0, 580.0, 320.0, 588.0, 575.0, 318.0]})
    answer = study.analysis().answer
    assert answer.devices == 4 or not answer.is_clear


def test_unknown_passes_without_gradients_that_change_the_speedup_are_asked_for() -> None:
    runs = QUIET.runs
    rates = runs["throughput_samples_per_second"]
    runs[WITH_NO_GRAD] = rates * runs["devices"].map({1: 0.9, 2: 0.8, 4: 0.7, 8: 0.6})
    answer = answer_on(runs)
    assert answer.certainty == "likely"
    assert "no_grad_passes" in answer.to_do


def test_the_to_do_is_the_action_of_the_worst_caution() -> None:
    runs = QUIET.runs
    runs.loc[where(runs, 4), "disturbance"] = "1 other job on its nodes"
    left_out = ["other conditions", "driver version is 2, not 1"]
    runs.loc[where(runs, 8), ["outcome", "reason"]] = left_out
    answer = answer_on(runs)
    assert len(answer.cautions) == 2
    sentence, action = answer.cautions[0]
    assert answer.reason == sentence
    assert answer.to_do == action


def test_every_caution_asks_one_question() -> None:
    for ask in CAUTIONS:
        assert (ask.__doc__ or "").startswith("Ask "), ask.__name__
    assert CERTAINTIES == ("clear", "likely", "doubtful", "open")
