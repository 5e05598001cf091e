"""Speed is not sold without what it costs: accuracy lost, samples needed, runs that compare unlike things."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.unit.analysis.decisions import decision_on, figure
from tests.unit.analysis.planted_tables import ALONE, make_runs, spread
from tests.unit.analysis.reference import welch_bounds

from scalewise.analysis.comparison.gains import gains, target_contrast
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule

Change = Callable[[pd.DataFrame], None]

TARGET = 0.97
RATES = {1: 100.0, 2: 190.0, 4: 290.0}


def answer(change: Change, target: float | None = TARGET) -> Decision:
    """The decision on 1, 2 and 4 devices, 1.9 and 2.9 times as fast, after a change to their runs.

    All reach the target with 300 samples, of 500 that they train on.
    """
    runs = make_runs({(ALONE, n): spread(rate) for n, rate in RATES.items()})
    runs["time_to_accuracy_seconds"] = 300 / runs["throughput_samples_per_second"]
    runs["train_seconds"] = 500 / runs["throughput_samples_per_second"]
    change(runs)
    return decision_on(runs, DecisionRule(min_efficiency=0.9), target=target)


def on(devices: int, **columns: Any) -> Change:
    """Sets columns of the runs on so many devices."""

    def change(runs: pd.DataFrame) -> None:
        for name, values in columns.items():
            runs.loc[runs["devices"] == devices, name] = values

    return change


def unreached(devices: int, **columns: Any) -> Change:
    """No run on so many devices reaches the target."""
    return on(devices, epochs_to_accuracy=nan, time_to_accuracy_seconds=nan, **columns)


def test_an_alternative_that_loses_accuracy_says_so_in_its_own_sentence() -> None:
    decision = answer(on(4, final_accuracy=[0.92, 0.93, 0.94]), target=None)
    assert decision.devices == 2
    alternative = decision.alternatives[1]
    assert alternative.startswith("4 devices: 2.90x the throughput of 1 (")
    assert "5.0 points of accuracy lost, efficiency 0.73" in alternative
    assert any(
        "5.0 points lower on 4 devices: 93.0 % instead of 98.0 %" in line for line in decision.cautions
    )
    assert figure(decision, "Final accuracy").note == "", "2 devices lose nothing"


def test_what_is_open_of_the_time_to_a_target_is_not_told_as_speed() -> None:
    decision = answer(on(2, time_to_accuracy_seconds=[1.0, 1.4, 2.9]))
    assert decision.devices == 1
    (caution,) = (each for each in decision.cautions if "worth having" in each)
    assert caution.startswith("2 devices may be worth having: ")
    assert " times as fast to the target as 1 device. " in caution


def test_devices_on_which_no_run_reaches_the_target_are_named_and_no_answer() -> None:
    decision = answer(unreached(4))
    assert (decision.devices, decision.measure) == (2, "time to target")
    assert "0 of 3 runs on 4 devices reached 97.0 % accuracy." in decision.cautions


def test_a_chosen_point_that_loses_accuracy_says_how_much() -> None:
    decision = answer(on(2, final_accuracy=[0.92, 0.93, 0.94]), target=None)
    accuracy = figure(decision, "Final accuracy")
    assert (accuracy.text, accuracy.note) == ("93.0 %", "5.0 points lower than on 1 device")


def test_what_runs_spend_that_do_not_reach_the_target_counts_against_their_devices() -> None:
    """One of three on 2 devices: 500 / 0.99 and 500 samples in vain, beside 300 / 1.01 with success."""
    decision = answer(
        on(2, epochs_to_accuracy=[nan, nan, 3.0], time_to_accuracy_seconds=[nan, nan, 300 / 191.9])
    )
    spent = (500 / 0.99 + 500 + 300 / 1.01) / 190
    assert decision.devices == 1
    bring = f"2 devices would be {3.0 / spent:.2f}x as fast to the target as 1 device: efficiency 0.22 "
    assert decision.card.next.startswith(bring)
    assert f"{spent:.2f} s of training, with what 2 of 3 runs spent in vain" in decision.alternatives[0]


def test_where_no_run_reaches_the_target_throughput_decides_and_that_is_said() -> None:
    def no_run(runs: pd.DataFrame) -> None:
        for devices in RATES:
            unreached(devices)(runs)

    decision = answer(no_run)
    assert (decision.devices, decision.measure) == (2, "throughput")
    assert decision.cautions[0].startswith("No run reached 97.0 % accuracy, so throughput decides")


def test_accuracy_within_the_intervals_is_not_called_lost() -> None:
    decision = answer(on(2, final_accuracy=[0.96, 0.97, 0.98]), target=None)
    assert decision.cautions == []
    assert figure(decision, "Final accuracy").note == ""


@pytest.mark.parametrize(("accuracy", "lost"), [(0.97, False), (0.93, True)])
def test_single_runs_must_differ_by_more_than_a_draw_of_test_images(accuracy: float, lost: bool) -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): [190.0]})
    on(2, final_accuracy=accuracy)(runs)
    decision = decision_on(runs)
    assert ("points lower" in figure(decision, "Final accuracy").note) is lost


def test_time_to_accuracy_is_shown_as_the_product_of_its_two_efficiencies() -> None:
    slow, fast = [18.5, 19.0, 19.5], [10.8, 11.0, 11.2]

    def slower_learning(runs: pd.DataFrame) -> None:
        on(1, time_to_accuracy_seconds=slow, epochs_to_accuracy=10.0)(runs)
        on(2, time_to_accuracy_seconds=fast, epochs_to_accuracy=11.0)(runs)
        on(4, time_to_accuracy_seconds=[9.0, nan, 9.0], epochs_to_accuracy=[11.0, nan, 11.0])(runs)
        on(4, train_seconds=12.0)(runs)

    *_, times, products = answer(slower_learning).alternatives
    assert times == (
        "Training time to 97.0 % accuracy: 19.00 s on 1 device, 11.00 s on 2 devices, 9.00 s on 4 "
        "devices (in 2 of 3 runs)."
    )
    low, high = welch_bounds(slow, fast)
    two, four = products.split("; 1.27x the speed on 4 devices ")
    assert two == (
        f"To 97.0 % accuracy: 1.73x the speed on 2 devices ({low:.2f} to {high:.2f}, n = 3; throughput "
        "1.90x, 1.10x as many samples)"
    )
    # 19 s against (9 + 12 + 9) / 2
    assert "throughput 2.90x" in four
    assert "samples" not in four, "one run's are not known"


def test_more_throughput_that_reaches_the_target_later_is_not_recommended() -> None:
    def later(runs: pd.DataFrame) -> None:
        on(1, time_to_accuracy_seconds=[9.8, 10.0, 10.2], epochs_to_accuracy=5.0)(runs)
        for devices in (2, 4):
            on(devices, time_to_accuracy_seconds=[11.8, 12.0, 12.2], epochs_to_accuracy=12.0)(runs)

    decision = answer(later)
    assert decision.devices == 1
    assert decision.card.next.startswith("2 devices would be 0.83x as fast to the target as 1 device (")
    assert decision.card.next.endswith("efficiency 0.42 to the target, below the 0.90 required.")


def test_walls_that_stand_in_for_throughput_are_named_as_such() -> None:
    """Published: 151, 111 and 96 s on 1, 2 and 4 devices."""
    runs = pd.DataFrame({"devices": [1, 2, 4], "wall_seconds": [151.0, 111.0, 96.0]})
    runs = runs.assign(experiment="palmetto", series=ALONE, outcome="completed")
    decision = decision_on(runs, DecisionRule(min_efficiency=0.6))
    assert (decision.devices, figure(decision, "Speed").text) == (2, "1.36x")
    assert decision.alternatives[0] == "1 device: the baseline, a run takes 2.52 minutes (n = 1)."
    assert decision.alternatives[1].startswith("4 devices: 1.57x as fast as 1 (n = 1)")
    assert "Speedups are of walls, which include start-up." in decision.cautions


def test_runs_that_no_speedup_joins_are_named_with_what_differs() -> None:
    runs = make_runs({(ALONE, 1): [99.0, 100.0, 101.0], (ALONE, 2): [189.0, 190.0, 290.0]})
    runs["fingerprint"] = ["a"] * 5 + ["b"]
    conditions = {"a": {"CPU model": "Old"}, "b": {"CPU model": "New"}}
    decision = decision_on(runs, DecisionRule(min_efficiency=0.5), conditions=conditions)
    assert decision.card.basis.startswith("2 runs of each device count.")
    assert decision.card.basis.endswith("1 run is not comparable: see the cautions.")
    assert any(
        line.startswith(
            "1 of 3 runs on 2 devices is not comparable with the baseline: CPU model is New, not Old"
        )
        for line in decision.cautions
    )


def test_what_differs_beside_an_option_stands_behind_its_gain() -> None:
    runs = make_runs({(ALONE, 1): [99.0, 100.0, 101.0], (ALONE, 2): [189.0, 190.0, 191.0]})
    both = pd.concat([runs.assign(precision="fp32"), runs.assign(precision="bf16")], ignore_index=True)
    options = option_table(both, {"precision": ["fp32", "bf16"]}).assign(
        also_differs="CPU model is New, not Old"
    )
    decision = decide(
        "study", scaling_table(runs, "strong"), options, DecisionRule(), compared=gains(known_columns(runs))
    )
    assert decision.options[0].endswith("The runs differ otherwise too: CPU model is New, not Old.")


@pytest.mark.parametrize("time_of_failure", [100.0, 40.0])
def test_a_share_of_successes_widens_the_time_to_a_target_by_its_own_error(time_of_failure: float) -> None:
    """The delta method, against the scatter of simulated studies in which 70 % of 40 runs succeed."""

    def point(successes: int, n: int = 40) -> pd.DataFrame:
        reached = [float(successes > run) or nan for run in range(n)]
        return pd.DataFrame(
            {
                "epochs_to_accuracy": reached,
                "time_to_accuracy_seconds": [100.0 * each for each in reached],
                "train_seconds": [time_of_failure if isnan(each) else 200.0 for each in reached],
            }
        )

    certain = target_contrast(point(40), point(40))
    found = target_contrast(point(40), point(28))
    assert certain is not None
    assert found is not None
    assert (certain.log_mean, certain.standard_error) == (0.0, 0.0)
    assert found.estimate == pytest.approx((28 * 100 + 12 * time_of_failure) / (28 * 100))
    successes = np.random.default_rng(0).binomial(40, 0.7, 20_000)
    drawn = np.log(1 + (40 - successes) / successes * time_of_failure / 100)
    assert found.standard_error == pytest.approx(drawn.std(), rel=0.05)
