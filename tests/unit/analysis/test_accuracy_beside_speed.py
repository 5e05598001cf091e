"""Speed is not sold without what it costs: accuracy lost, samples needed, runs that compare unlike things."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import pandas as pd
import pytest

from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule

Runs = Callable[..., pd.DataFrame]
Change = Callable[[pd.DataFrame], None]
Decide = Callable[[Change], Decision]

ALONE = "all runs"
TARGET = 0.97


@pytest.fixture
def answer(make_runs: Runs) -> Decide:
    """The decision on 1, 2 and 4 devices, 1.9 and 2.9 times as fast, after a change to their runs."""

    def decided(change: Change) -> Decision:
        rates = {1: 100.0, 2: 190.0, 4: 290.0}
        runs = make_runs({(ALONE, n): [0.99 * r, r, 1.01 * r] for n, r in rates.items()})
        change(runs)
        scaling = scaling_table(runs, "strong")
        rule = DecisionRule(min_efficiency=0.9)
        return decide("study", scaling, option_table(runs, {}), rule, target=TARGET)

    return decided


def on(devices: int, **columns: Any) -> Change:
    """Sets columns of the runs on so many devices."""

    def change(runs: pd.DataFrame) -> None:
        for name, values in columns.items():
            runs.loc[runs["devices"] == devices, name] = values

    return change


def test_an_alternative_that_loses_accuracy_says_so_in_its_own_sentence(answer: Decide) -> None:
    decision = answer(on(4, final_accuracy=[0.92, 0.93, 0.94], epochs_to_accuracy=nan))
    assert decision.devices == 2
    alternative = decision.alternatives[1]
    assert alternative.startswith("4 devices: 2.90x the throughput of 1 (")
    assert "5.0 points of accuracy lost; time to 97.0% not reached, efficiency" in alternative
    assert any("5.0 points of accuracy lost (93.0%, on 1 98.0%)" in line for line in decision.cautions)
    assert "as fast as" in decision.sentence, "2 devices lose nothing"


def test_a_chosen_point_that_loses_accuracy_is_not_called_faster(answer: Decide) -> None:
    decision = answer(on(2, final_accuracy=[0.92, 0.93, 0.94], epochs_to_accuracy=[nan, nan, 4.0]))
    assert decision.sentence.startswith("Use 2 devices: 1.90x the throughput of 1 (")
    assert "lost; time to 97.0% not reached in 2 of 3 runs, efficiency" in decision.sentence


def test_accuracy_within_the_intervals_is_not_called_lost(answer: Decide) -> None:
    decision = answer(on(2, final_accuracy=[0.96, 0.97, 0.98]))
    assert decision.cautions == []
    assert "as fast as" in decision.sentence


@pytest.mark.parametrize(("accuracy", "lost"), [(0.97, False), (0.93, True)])
def test_single_runs_must_differ_by_more_than_a_draw_of_test_images(
    make_runs: Runs, accuracy: float, lost: bool
) -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): [190.0]})
    on(2, final_accuracy=accuracy)(runs)
    decision = decide("study", scaling_table(runs, "strong"), option_table(runs, {}), DecisionRule())
    assert ("points of accuracy lost" in decision.sentence) is lost


def test_time_to_accuracy_is_shown_as_the_product_of_its_two_efficiencies(answer: Decide) -> None:
    def slower_learning(runs: pd.DataFrame) -> None:
        on(1, time_to_accuracy_seconds=19.0, epochs_to_accuracy=10.0)(runs)
        on(2, time_to_accuracy_seconds=11.0, epochs_to_accuracy=11.0)(runs)
        on(4, time_to_accuracy_seconds=[9.0, nan, 9.0], epochs_to_accuracy=[11.0, nan, 11.0])(runs)

    *_, times, products = answer(slower_learning).alternatives
    assert times == (
        "Training time to 97.0% accuracy: 19.00 s on 1 device, 11.00 s on 2 devices, 9.00 s on 4 "
        "devices (in 2 of 3 runs)."
    )
    assert products == (
        "To 97.0% accuracy: 1.73x as fast on 2 devices (1.73 to 1.73, n = 3; throughput 1.90x, samples "
        "needed 1.10x as many)."
    ), "4 devices did not reach it each time"


def test_more_throughput_that_reaches_the_target_later_is_cautioned_about(answer: Decide) -> None:
    def later(runs: pd.DataFrame) -> None:
        on(1, time_to_accuracy_seconds=10.0, epochs_to_accuracy=5.0)(runs)
        on(2, time_to_accuracy_seconds=12.0, epochs_to_accuracy=12.0)(runs)

    decision = answer(later)
    assert decision.devices == 2
    assert any(line.startswith("2 devices reach the target later than 1:") for line in decision.cautions)


def test_walls_that_stand_in_for_throughput_are_named_as_such() -> None:
    """Published: 151, 111 and 96 s on 1, 2 and 4 devices."""
    runs = pd.DataFrame({"devices": [1, 2, 4], "wall_seconds": [151.0, 111.0, 96.0]})
    runs = runs.assign(experiment="palmetto", series=ALONE, outcome="completed")
    scaling = scaling_table(runs, "strong")
    decision = decide("palmetto", scaling, option_table(runs, {}), DecisionRule(min_efficiency=0.6))
    assert decision.sentence.startswith("Use 2 devices: 1.36x as fast as 1 (n = 1)")
    assert decision.alternatives[0] == "1 device: the baseline, a run takes 2.52 minutes (n = 1)."
    assert decision.alternatives[1].startswith("4 devices: 1.57x as fast as 1 (n = 1)")
    assert "Speedups are of walls, which include start-up." in decision.cautions


def test_runs_that_no_speedup_joins_are_named_with_what_differs(make_runs: Runs) -> None:
    runs = make_runs({(ALONE, 1): [99.0, 100.0, 101.0], (ALONE, 2): [189.0, 190.0, 290.0]})
    runs["fingerprint"] = ["a"] * 5 + ["b"]
    conditions = {"a": {"CPU model": "Old"}, "b": {"CPU model": "New"}}
    scaling = scaling_table(runs, "strong", conditions)
    decision = decide("study", scaling, option_table(runs, {}), DecisionRule(min_efficiency=0.5))
    assert "n = 2" in decision.sentence
    assert any(
        line.startswith(
            "1 of 3 runs on 2 devices is not comparable with the baseline: CPU model is New, not Old"
        )
        for line in decision.cautions
    )


def test_what_differs_beside_an_option_stands_behind_its_gain(make_runs: Runs) -> None:
    runs = make_runs({(ALONE, 1): [99.0, 100.0, 101.0], (ALONE, 2): [189.0, 190.0, 191.0]})
    both = pd.concat([runs.assign(precision="fp32"), runs.assign(precision="bf16")], ignore_index=True)
    options = option_table(both, {"precision": ["fp32", "bf16"]}).assign(
        also_differs="CPU model is New, not Old"
    )
    decision = decide("study", scaling_table(runs, "strong"), options, DecisionRule())
    assert decision.options[0].endswith("The runs differ otherwise too: CPU model is New, not Old.")
