"""Speed is not sold without what it costs: accuracy lost, samples needed, another training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.planted_records import program_experiment, write_program_run
from tests.unit.analysis.planted_tables import ONLY, concluded, decision_on, figure, make_runs, spread
from tests.unit.analysis.reference import ratio_bounds

from scalewise.analysis.comparison.gains import tries_of
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.statistics import Ratio, target_ratio
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.runs.runs import points

Change = Callable[[pd.DataFrame], None]

TARGET = 0.97
RATES = {1: 100.0, 2: 190.0, 4: 290.0}


def answer(change: Change, target: float | None = TARGET) -> Decision:
    """The decision on 1, 2 and 4 devices, 1.9 and 2.9 times as fast, after a change to their runs.

    All reach the target with 300 samples, of 500 that they train on.
    """
    runs = make_runs({(ONLY, n): spread(rate) for n, rate in RATES.items()})
    runs["time_to_accuracy_seconds"] = 300 / runs["throughput_samples_per_second"]
    runs["train_seconds"] = 500 / runs["throughput_samples_per_second"]
    change(runs)
    return decision_on(runs, DecisionRule(min_efficiency=0.9), target=target)


def on(devices: int, **columns: Any) -> Change:
    def change(runs: pd.DataFrame) -> None:
        for name, values in columns.items():
            runs.loc[runs["devices"] == devices, name] = values

    return change


@pytest.mark.parametrize("devices", [2, 4])
def test_accuracy_that_is_lost_stands_with_the_answer_or_the_alternative_that_loses_it(devices: int) -> None:
    decision = answer(on(devices, final_accuracy=[0.92, 0.93, 0.94]), target=None)
    assert decision.devices == 2
    (caution,) = decision.cautions
    assert f"5.0 points lower on {devices} devices: 93.0 % instead of 98.0 %" in caution
    assert figure(decision, "Final accuracy").text == ("93.0 %" if devices == 2 else "98.0 %")
    assert ("5.0 points" in figure(decision, "Final accuracy").note) == (devices == 2)
    # the gain of a count that loses accuracy is one of throughput
    assert ("2.90x the throughput of 1" in decision.alternatives[1]) == (devices == 4)
    assert ("5.0 points of accuracy lost" in decision.alternatives[1]) == (devices == 4)


@pytest.mark.parametrize(
    ("repeats", "accuracy", "lost"),
    [
        pytest.param(3, [0.96, 0.97, 0.98], False, id="within the intervals"),
        pytest.param(1, [0.97], False, id="single runs that differ by a draw of test images"),
        pytest.param(1, [0.93], True, id="single runs that differ by more"),
    ],
)
def test_accuracy_is_lost_only_if_the_runs_show_it(repeats: int, accuracy: list[float], lost: bool) -> None:
    runs = make_runs({(ONLY, n): spread(RATES[n])[:repeats] for n in (1, 2)})
    on(2, final_accuracy=accuracy)(runs)
    decision = decision_on(runs, DecisionRule(min_efficiency=0.9))
    assert ("points lower" in figure(decision, "Final accuracy").note) is lost
    assert any("points lower" in caution for caution in decision.cautions) is lost


def test_what_runs_spend_that_do_not_reach_the_target_counts_against_their_devices() -> None:
    """One of three on 2 devices: 500 / 0.99 and 500 samples in vain, and 300 / 1.01 with success."""
    decision = answer(
        on(2, epochs_to_accuracy=[nan, nan, 3.0], time_to_accuracy_seconds=[nan, nan, 300 / 191.9])
    )
    spent = (500 / 0.99 + 500 + 300 / 1.01) / 190
    assert decision.devices == 1
    assert f" {3.0 / spent:.2f}x as fast to the target as 1 device: efficiency 0.22 " in decision.card.next
    assert f"{spent:.2f} s of training, with what 2 of 3 runs spent in vain" in decision.alternatives[0]


def test_time_to_accuracy_is_shown_as_the_product_of_its_two_efficiencies() -> None:
    slow, fast = [18.5, 19.0, 19.5], [10.8, 11.0, 11.2]

    def slower_learning(runs: pd.DataFrame) -> None:
        on(1, time_to_accuracy_seconds=slow, epochs_to_accuracy=10.0)(runs)
        on(2, time_to_accuracy_seconds=fast, epochs_to_accuracy=11.0)(runs)
        on(4, time_to_accuracy_seconds=[9.0, nan, 9.0], epochs_to_accuracy=[11.0, nan, 11.0])(runs)
        on(4, train_seconds=12.0)(runs)

    *_, times, products = answer(slower_learning).alternatives
    assert "19.00 s on 1 device, 11.00 s on 2 devices, 9.00 s on 4 devices (in 2 of 3 runs)" in times
    two, four = products.split("; 1.27x the speed on 4 devices ")
    low, high = ratio_bounds(slow, fast)
    assert f"1.73x the speed on 2 devices ({low:.2f} to {high:.2f}, n = 3; " in two
    assert two.endswith("throughput 1.90x, 1.10x as many samples)")
    # 19 s against (9 + 12 + 9) / 2
    assert "throughput 2.90x" in four
    assert "samples" not in four, "one run's are not known"


def test_a_share_of_successes_widens_the_time_to_a_target_by_its_own_error() -> None:
    """The delta method, against the scatter of simulated studies in which 70 % of 40 runs succeed."""
    time_of_failure = 40.0

    def point(successes: int, n: int = 40) -> pd.DataFrame:
        reached = [float(successes > run) or nan for run in range(n)]
        return pd.DataFrame(
            {
                "epochs_to_accuracy": reached,
                "time_to_accuracy_seconds": [100.0 * each for each in reached],
                "train_seconds": [time_of_failure if isnan(each) else 200.0 for each in reached],
            }
        )

    def ratio(one: pd.DataFrame, other: pd.DataFrame) -> Ratio:
        tries, others = tries_of(one), tries_of(other)
        assert tries is not None
        assert others is not None
        found = target_ratio(tries, others)
        assert found is not None
        return found

    certain, found = ratio(point(40), point(40)), ratio(point(28), point(40))
    assert (certain.estimate, certain.standard_error) == (1.0, 0.0)
    assert found.estimate == pytest.approx((28 * 100 + 12 * time_of_failure) / (28 * 100))
    successes = np.random.default_rng(0).binomial(40, 0.7, 20_000)
    drawn = np.log(1 + (40 - successes) / successes * time_of_failure / 100)
    assert found.standard_error == pytest.approx(drawn.std(), rel=0.1)


def test_resumed_runs_that_reached_a_target_count_as_successes_of_unknown_time() -> None:
    """Three of four runs reach it in 100 s, of which two resumed: a success costs 400 s / 3."""
    point = pd.DataFrame(
        {
            "epochs_to_accuracy": [3.0, 3.0, 3.0, nan],
            "time_to_accuracy_seconds": [nan, nan, 100.0, nan],
            "train_seconds": 100.0,
        }
    )
    factors = [tries.factor for runs in (point, point.iloc[:3]) if (tries := tries_of(runs)) is not None]
    assert factors == pytest.approx([4 / 3, 1.0])


# --- series that train something else -----------------------------------------------------------------

SWEPT: dict[str, list[Any]] = {
    "precision": ["fp32", "bf16"],
    "gradient_as_bucket_view": [False, True],
}
RATES_BY_OPTIONS = {
    ("fp32", False): {1: 100, 8: 480},
    ("fp32", True): {1: 102, 8: 750},
    ("bf16", False): {1: 150, 8: 720},
    ("bf16", True): {1: 153, 8: 1050},
}
"""Samples/s by options and devices: the view is faster in both precisions, which are two trainings."""

Accuracies = Mapping[str, list[float | None]]
KEPT: dict[str, list[float | None]] = {"fp32": [0.9960, 0.9965, 0.9970], "bf16": [0.9961, 0.9964, 0.9968]}
LOST: Accuracies = KEPT | {"bf16": [0.97, 0.971, 0.972]}
UNKNOWN: Accuracies = KEPT | {"bf16": [0.99, None, None]}


def decided(accuracies: Accuracies, accept: list[str] | None = None) -> Decision:
    """The decision at an efficiency of 0.7 on three runs a point, which scatter by 1 %."""
    planted, precisions, views, accuracy = {}, [], [], []
    for (precision, view), rates in RATES_BY_OPTIONS.items():
        for devices, rate in rates.items():
            planted[f"{precision}, view {view}", devices] = [rate * each for each in (0.99, 1, 1.01)]
            precisions += [precision] * 3
            views += [view] * 3
            accuracy += accuracies[precision]
    runs = make_runs(planted).assign(
        precision=precisions, gradient_as_bucket_view=views, final_accuracy=pd.Series(accuracy, dtype=float)
    )
    return decision_on(runs, DecisionRule(min_efficiency=0.7, accept=accept or []), swept=SWEPT)


CHOSEN, OTHER = "fp32, view True", "bf16, view True"


@pytest.mark.parametrize(
    ("accuracies", "accept", "series", "line"),
    [
        (KEPT, [], CHOSEN, "99.6 %: no difference is shown ("),
        (LOST, [], CHOSEN, "97.1 %: 2.55 percentage points lower ("),
        (KEPT, ["precision"], OTHER, None),
        (LOST, ["precision"], CHOSEN, "not accepted: a loss of at most 0.5 points"),
        (UNKNOWN, ["precision"], CHOSEN, "not accepted: a loss of at most 0.5 points"),
    ],
    ids=["kept", "lost", "kept and accepted", "accepted but lost", "accepted but unknown"],
)
def test_another_training_is_one_line_with_its_accuracy_unless_it_is_accepted_and_loses_none(
    accuracies: Accuracies, accept: list[str], series: str, line: str | None
) -> None:
    decision = decided(accuracies, accept)
    assert (decision.series, decision.devices) == (series, 8)
    assert len(decision.other_trainings) == (line is not None)
    if line is not None:
        # 1050 / 750
        gain = f"{OTHER}: 8 devices, 1.40x as fast as this answer (1.37 to 1.43, "
        assert gain in decision.other_trainings[0]
        assert line in decision.other_trainings[0]
    assert any("accept: [precision]" in each for each in decision.card.options) == (accept == [])


def test_efficiency_is_relative_to_the_best_baseline_from_the_records_on(tmp_path: Path) -> None:
    """On 16 devices two CPUs a device have an efficiency of 0.69 by their own baseline, 0.57 by the best."""
    rates = {1: {1: 1157, 8: 6300, 16: 8200}, 2: {1: 953, 8: 6900, 16: 10500}}
    spec = program_experiment(
        devices=[1, 8, 16],
        sweep={"cpus_per_device": [1, 2], "argument.precision": ["fp32", "bf16"]},
        arguments=["--batch-size", "{batch_size_per_device}", "--precision", "{argument.precision}"],
        decision={"min_efficiency": 0.6},
    )
    for point in points(spec):
        options, devices = dict(point.options), int(point.devices)
        factor = 2.2 if options["argument.precision"] == "bf16" else 1
        for repeat, scatter in enumerate((0.995, 1.0, 1.005), start=1):
            step = 16 * devices / (rates[options["cpus_per_device"]][devices] * factor * scatter)
            write_program_run(tmp_path / "runs", point.run_name(repeat), spec, step, options=options)

    decision = concluded(tmp_path, spec)
    assert decision["devices"] == 8
    efficiency = next(each for each in decision["card"]["figures"] if each["label"] == "Efficiency")
    assert efficiency["note"].endswith(", the best baseline")
    (line,) = decision["other_trainings"]
    assert "8 devices, 2.20x as fast as this answer" in line
    assert "final accuracy not compared" in line
    table = pd.read_csv(tmp_path / "scaling.csv")
    chosen = table[(table["series"] == decision["series"]) & table["devices"].isin([8, 16])]
    for column, base in (("efficiency_to_best", 1157), ("parallel_efficiency", 953)):
        expected = [6900 / 8 / base, 10500 / 16 / base]
        assert chosen[column].tolist() == pytest.approx(expected, rel=1e-3)
    assert decision["numbers"]["efficiency_to_best"] == pytest.approx(6900 / 8 / 1157, rel=1e-3)
