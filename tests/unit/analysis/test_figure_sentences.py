"""The sentence beside a figure says what the tables hold, to the word, and nothing that they do not."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.hand_made_study import results
from tests.unit.analysis.planted_tables import ALONE, make_epochs, make_runs

from scalewise.analysis.report.figure_sentences import figure_sentences
from scalewise.analysis.scaling import scaling_table

BOUNDS = ("", "_low", "_high")


def point(devices: int, series: str = "all runs", n: int = 3, **values: Any) -> dict[str, Any]:
    """A row of scaling.csv; a triple is a value with its bounds."""
    row: dict[str, Any] = {
        "series": series,
        "devices": devices,
        "n": n,
        "baseline_devices": 1,
        "speedup_n": float(n) if devices > 1 else None,
    }
    for name, value in values.items():
        row |= (
            zip((f"{name}{bound}" for bound in BOUNDS), value, strict=True)
            if isinstance(value, tuple)
            else {name: value}
        )
    return row


BASE = point(
    1,
    speedup=(1.0, 1.0, 1.0),
    parallel_efficiency=(1.0, 1.0, 1.0),
    throughput_samples_per_second=(1000.0, 990.0, 1010.0),
    final_accuracy=(0.98, 0.97, 0.99),
    peak_memory_bytes=(700e6, 690e6, 710e6),
    step_seconds=0.1,
    compute_seconds=0.1,
    communication_seconds=0.0,
)
TWO = point(
    2,
    speedup=(1.71, 1.6, 1.8),
    parallel_efficiency=(0.855, 0.8, 0.9),
    throughput_samples_per_second=(1710.0, 1600.0, 1800.0),
    final_accuracy=(0.975, 0.97, 0.98),
    peak_memory_bytes=(500e6, 490e6, 510e6),
    step_seconds=0.06,
    compute_seconds=0.05,
    communication_seconds=0.0054,
    loader_seconds=0.0012,
)
FOUR = point(
    4,
    speedup=(2.4, 2.2, 2.6),
    parallel_efficiency=(0.6, 0.55, 0.65),
    throughput_samples_per_second=(2400.0, 2200.0, 2600.0),
    step_seconds=0.04,
    communication_seconds=0.01,
)


def said(*rows: dict[str, Any], **fields: Any) -> dict[str, str]:
    return sentences(pd.DataFrame(rows), **fields)


def sentences(scaling: pd.DataFrame, runs: pd.DataFrame | None = None, **fields: Any) -> dict[str, str]:
    answer: dict[str, Any] = {name: fields.pop(name) for name in ("series", "devices") if name in fields}
    return figure_sentences(results(scaling, runs, decision=answer, **fields))


def test_the_gain_stands_with_its_interval_and_the_step_with_its_parts() -> None:
    found = said(BASE, TWO, devices=2)
    assert found["speedup"] == ("2 devices are 1.71x as fast as 1 (1.60 to 1.80, n = 3).")
    assert found["efficiency"] == "On 2 devices efficiency is 0.85 (0.80 to 0.90, n = 3)."
    assert found["step"] == (
        "On 2 devices a step takes 60.0 ms (mean of 3 runs). Of it, 9 % is communication and 2 % is waiting "
        "for data. Each sample costs 17 % more device time than on 1 device."
    )
    assert found["throughput"] == (
        "Throughput is 1,000 samples/s on 1 device (990 to 1,010, n = 3) and 1,710 on 2 (1,600 to 1,800, "
        "n = 3)."
    )
    assert found["accuracy"] == (
        "Final test accuracy is 98.0 % on 1 device (97.0 % to 99.0 %, n = 3) and 97.5 % on 2 "
        "(97.0 % to 98.0 %, n = 3)."
    )
    assert found["memory"] == (
        "The fullest device holds 700 MB on 1 device (690 to 710, n = 3) and 500 on 2 (490 to 510, n = 3)."
    )


def test_the_answer_is_told_beside_the_most_devices() -> None:
    found = said(BASE, TWO, FOUR, devices=2, min_efficiency=0.7)
    assert found["speedup"] == (
        "2 devices are 1.71x as fast as 1 (1.60 to 1.80, n = 3) and 4 are 2.40x (2.20 to 2.60, n = 3)."
    )
    assert found["efficiency"] == (
        "On 2 devices efficiency is 0.85 (0.80 to 0.90, n = 3); on 4 it is 0.60 (0.55 to 0.65, n = 3); "
        "0.7 or more is required."
    )
    assert found["throughput"].count(" on ") == 3


def test_what_an_interval_leaves_open_is_said_to_be_open() -> None:
    doubtful = TWO | {"speedup_low": 0.9, "parallel_efficiency_low": 0.45, "parallel_efficiency_high": 1.1}
    assert said(BASE, doubtful)["speedup"].startswith(
        "2 devices are 1.71x as fast as 1 (0.90 to 1.80, n = 3), no gain is shown."
    )
    assert said(BASE, doubtful)["efficiency"].endswith("(0.45 to 1.10, n = 3), no loss is shown.")
    slower = TWO | {"speedup": 0.97, "speedup_low": 0.9, "speedup_high": 1.1}
    assert said(BASE, slower)["speedup"].startswith(
        "2 devices are 0.97x as fast as 1 (0.90 to 1.10, n = 3), no difference is shown."
    )
    ideal = TWO | {"parallel_efficiency": 1.02, "parallel_efficiency_high": 1.1}
    assert said(BASE, ideal)["efficiency"].endswith("(0.80 to 1.10, n = 3), no difference is shown.")


def test_an_efficiency_is_never_rounded_to_the_one_asked_for() -> None:
    near = TWO | {"parallel_efficiency": 0.6996}
    assert said(BASE, near, min_efficiency=0.7)["efficiency"] == (
        "On 2 devices efficiency is 0.6996 (0.80 to 0.90, n = 3); 0.7 or more is required."
    )


def test_single_runs_of_a_study_have_no_interval_and_no_verdict() -> None:
    for rate in (200.0, 140.0):
        table = scaling_table(make_runs({(ALONE, 1): [100.0], (ALONE, 2): [rate]}), "strong")
        assert table["speedup_low"].isna().tolist() == [False, True]
        found = sentences(table)
        assert found["speedup"] == f"2 devices are {rate / 100:.2f}x as fast as 1 (n = 1)."
        assert found["efficiency"] == f"On 2 devices efficiency is {rate / 200:.2f} (n = 1)."


def test_what_a_gain_costs_in_accuracy_stands_beside_it() -> None:
    points = {(ALONE, 1): [99.0, 100.0, 101.0], (ALONE, 2): [178.0, 180.0, 182.0]}
    runs = make_runs(points | {(ALONE, 4): [300.0, 302.0, 304.0]})
    runs["final_accuracy"] = [0.98, 0.981, 0.979, 0.96, 0.961, 0.959, 0.98, 0.981, 0.979]
    found = sentences(scaling_table(runs, "strong"), devices=2)["speedup"]
    assert found.startswith("2 devices have 1.80x the throughput of 1 (1.")
    assert ", n = 3), 2.0 points of accuracy lost; 4 are 3.02x as fast as 1 (" in found


def test_other_series_are_told_by_their_range() -> None:
    others = [
        point(2, name, speedup=9.9, throughput_samples_per_second=rate)
        for name, rate in (("b", 855), ("c", 3420))
    ]
    mine = [row | {"series": "a"} for row in (BASE, TWO)]
    both = said(*mine, *others, series="a")
    assert "2 devices of a are 1.71x" in both["speedup"]
    assert both["speedup"].endswith("; the other 2 series have 0.50x to 2.00x that throughput (n = 3).")
    assert both["step"].startswith("On 2 devices of a a step takes")
    alone = said(*mine, others[0], series="a")["speedup"]
    assert alone.endswith("; b has 0.50x that throughput (n = 3).")
    for apart in ({"baseline_devices": 2}, {"conditions": "torch 2.14"}, {"n": 0}):
        assert said(*mine, others[0], others[1] | apart, series="a")["speedup"] == alone


def test_a_prediction_is_held_against_the_step_and_named_where_there_is_none() -> None:
    predicted = pd.DataFrame(
        [
            {"series": "all runs", "devices": devices, "step_seconds": seconds, "parallel_efficiency": 0.5,
             "parallel_efficiency_low": 0.4, "parallel_efficiency_high": 0.6}
            for devices, seconds in ((1, 0.1), (2, 0.054), (1024, 0.02))
        ]
    )  # fmt: skip
    assert said(BASE, TWO, prediction=predicted)["prediction"] == (
        "On 2 devices the predicted step is 0.90x the measured one (54.0 ms and 60.0 ms); on 1,024, not "
        "measured, an efficiency of 0.50 (0.40 to 0.60) is predicted."
    )
    for unknown in ("step_seconds", "n"):
        table = said(BASE, TWO | {unknown: 0 if unknown == "n" else None}, prediction=predicted)
        assert table["prediction"].startswith("On 1024 devices, not measured,")
    predicted.loc[predicted["devices"] == 2, "step_seconds"] = None
    assert said(BASE, TWO, prediction=predicted)["prediction"].startswith("On 1024 devices, not measured,")
    assert said(BASE, TWO, prediction=predicted[:2])["prediction"] == (
        "Of no two device counts are a predicted and a measured step known."
    )


def test_the_time_to_a_target_is_told_with_both_efficiencies() -> None:
    reached = TWO | point(2, time_to_accuracy_speedup=(1.5, 1.4, 1.6), statistical_efficiency=(0.9, 0.8, 1.0))
    found = said(BASE, reached | {"n_reached": 2})["efficiencies"]
    assert found == (
        "On 2 devices hardware efficiency is 0.85 (0.80 to 0.90, n = 3) and statistical efficiency 0.90 "
        "(0.80 to 1.00, n = 3); the target is reached 1.50x as fast as on 1 (1.40 to 1.60, n = 2)."
    )
    open_ = said(BASE, reached | {"time_to_accuracy_speedup_low": 0.9})["efficiencies"]
    assert open_.endswith("1.50x as fast as on 1 (0.90 to 1.60, n = 3), no gain is shown.")


def test_losses_are_compared_after_the_last_epoch_that_all_runs_have() -> None:
    losses = [("a", 1, 1, 0.5), ("a", 1, 2, 0.2), ("b", 2, 1, 0.6), ("b", 2, 2, 0.3), ("b", 2, 3, 0.1)]
    epochs = pd.DataFrame(losses, columns=["run", "devices", "epoch", "test_loss"]).assign(series="all runs")
    runs = pd.DataFrame({"run": ["a", "b"], "series": "all runs", "outcome": "completed"})
    assert said(BASE, TWO, runs=runs, epochs=epochs)["loss"] == (
        "After 2 epochs the test loss is 0.200 on 1 device (n = 1) and 0.300 on 2 (n = 1)."
    )
    by_step = epochs.rename(columns={"epoch": "step", "test_loss": "loss"})
    by_steps = said(BASE, TWO, runs=runs, epochs=by_step)["loss"]
    assert by_steps.startswith("After 2 steps the loss as backward gets it is")
    apart = epochs[(epochs["run"] == "a") == (epochs["epoch"] == 1)]
    assert (
        said(BASE, TWO, runs=runs, epochs=apart)["loss"]
        == "No epoch is told by all runs: there is nothing to compare."
    )


def test_losses_are_of_completed_runs_under_the_conditions_of_the_series() -> None:
    names = {(name, devices): [100.0 * devices] * 3 for name in ("a", "b") for devices in (1, 2)}
    runs = make_runs(names | {("a", 2): [200.0, 200.0, 200.0, "diverged"]})
    epochs = make_epochs(runs)
    early = epochs[epochs["run"] == "d2.a.r1"][:1].assign(run="d2.a.r4", test_loss=90.0)
    epochs = pd.concat([epochs, early])
    # runs of another condition are planned as the same series
    epochs.loc[epochs["series"] == "b", "series"] = "a"
    table = scaling_table(runs, "strong")
    assert sentences(table, runs, series="a", epochs=epochs)["loss"] == (
        "After 4 epochs the test loss is 0.570 on 1 device of a (n = 3) and 0.570 on 2 (n = 3)."
    )


def test_a_study_of_one_device_count_says_that_there_is_nothing_to_compare() -> None:
    found = said(BASE)
    for name in ("speedup", "efficiency", "efficiencies"):
        assert found[name] == "One device count has a result: there is nothing to compare."
    assert found["step"] == (
        "On 1 device a step takes 100 ms (mean of 3 runs). Nearly all of it is computing."
    )
    assert said(point(1), point(2))["speedup"] == "Of no two device counts is a speedup known."


@pytest.mark.parametrize("known", [{"loader_seconds": 0.01}, {"loader_seconds": None}])
def test_a_step_whose_exchange_nobody_counted_is_not_called_compute(known: dict[str, Any]) -> None:
    found = said(BASE, TWO | {"communication_seconds": None, "compute_seconds": None} | known)
    assert "comput" not in found["step"]
    assert "How much of it is communication is not known." in found["step"]


@pytest.mark.parametrize("column", [*FOUR, "all"])
def test_a_value_that_is_not_known_is_left_out(column: str) -> None:
    kept = {"series", "devices", "n", "baseline_devices"}
    rows = [BASE, TWO, FOUR]
    if column == "all":
        rows = [{key: value for key, value in row.items() if key in kept} for row in rows]
    elif column not in kept:
        rows = [{key: value for key, value in row.items() if not key.startswith(column)} for row in rows]
    for missing in (rows, [row | {column: None} for row in rows if column not in kept] or rows):
        for sentence in said(*missing, devices=2, min_efficiency=0.7).values():
            assert "nan" not in sentence
            assert "None" not in sentence


def test_a_figure_of_which_nothing_is_known_says_so() -> None:
    assert set(said(point(1, n=0), point(2, n=0)).values()) == {"No run has completed."}
    assert said(point(1))["accuracy"] == "No run tells its accuracy."
    assert (
        said(point(1, "a"), point(1, "b", final_accuracy=0.9))["accuracy"]
        == "No run of a tells its accuracy."
    )


@pytest.mark.parametrize(
    ("before", "after", "clause"),
    [
        (0.98, 0.977, ", 0.3 points of accuracy lost"),
        (0.98, 0.9797, ""),
        (0.98041, 0.97969, ", 0.07 points of accuracy lost"),
        (0.98051, 0.97949, ", 0.1 points of accuracy lost"),
    ],
)
def test_lost_accuracy_is_the_difference_of_the_means(before: float, after: float, clause: str) -> None:
    def exactly(value: float) -> tuple[float, float, float]:
        return value, value - 1e-6, value + 1e-6

    base, two = BASE | point(1, final_accuracy=exactly(before)), TWO | point(2, final_accuracy=exactly(after))
    gain = said(base, two)["speedup"]
    assert gain.endswith(f"(1.60 to 1.80, n = 3){clause}.")
