"""The sentence beside a figure says what the tables hold, to the word, and nothing that they do not."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from scalewise.analysis.report.captions import CAPTIONS
from scalewise.analysis.report.figure_sentences import SENTENCES, Findings, figure_sentences

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


def said(*rows: dict[str, Any], **findings: Any) -> dict[str, str]:
    return figure_sentences(Findings(pd.DataFrame(rows), **findings))


def test_the_gain_stands_with_its_interval_and_with_what_most_of_the_lost_time_went_to() -> None:
    found = said(BASE, TWO, devices=2)
    assert found["speedup"] == (
        "2 devices are 1.71x as fast as 1 (1.60 to 1.80, n = 3); 9 % of the step went to communication."
    )
    assert found["efficiency"] == "On 2 devices efficiency is 0.85 (0.80 to 0.90, n = 3)."
    assert found["step"] == (
        "On 2 devices a step takes 60.0 ms, of which 9 % went to communication and 2 % to waiting for "
        "data; a sample takes 1.17x the device time that it takes on 1 (medians of 3 runs)."
    )
    assert found["throughput"] == (
        "Throughput is 1,000 samples/s on 1 device (990 to 1,010, n = 3) and 1,710 on 2 (1,600 to 1,800, "
        "n = 3)."
    )
    assert found["accuracy"] == (
        "Final test accuracy is 98.0% on 1 device (97.0% to 99.0%, n = 3) and 97.5% on 2 (97.0% to 98.0%, "
        "n = 3)."
    )
    assert found["memory"] == (
        "The fullest device holds 700 MB on 1 device (690 to 710, n = 3) and 500 on 2 (490 to 510, n = 3)."
    )


def test_the_answer_is_told_beside_the_most_devices() -> None:
    found = said(BASE, TWO, FOUR, devices=2, min_efficiency=0.7)
    assert found["speedup"] == (
        "2 devices are 1.71x as fast as 1 (1.60 to 1.80, n = 3) and 4 are 2.40x (2.20 to 2.60, n = 3); on 4, "
        "25 % of the step went to communication."
    )
    assert found["efficiency"] == (
        "On 2 devices efficiency is 0.85 (0.80 to 0.90, n = 3), above the 0.7 asked for; on 4 it is 0.60 "
        "(0.55 to 0.65, n = 3), below the 0.7 asked for."
    )
    assert found["throughput"].count(" on ") == 3


def test_what_an_interval_leaves_open_is_said_to_be_open() -> None:
    doubtful = TWO | {"speedup_low": 0.9, "parallel_efficiency_low": 0.45, "parallel_efficiency_high": 1.1}
    assert said(BASE, doubtful)["speedup"].startswith(
        "2 devices are 1.71x as fast as 1 (0.90 to 1.80, n = 3), a gain that is not shown;"
    )
    assert said(BASE, doubtful)["efficiency"].endswith("(0.45 to 1.10, n = 3), a loss that is not shown.")
    assert said(BASE, doubtful, min_efficiency=0.7)["efficiency"].endswith(
        "which may be above or below the 0.7 asked for."
    )


def test_single_runs_have_no_interval_and_no_verdict() -> None:
    alone = point(2, n=1, speedup=1.71, parallel_efficiency=0.855, step_seconds=0.06)
    found = said(BASE, alone, min_efficiency=0.7)
    assert found["speedup"] == "2 devices are 1.71x as fast as 1 (n = 1)."
    assert found["efficiency"] == "On 2 devices efficiency is 0.85 (n = 1)."
    assert "medians" not in found["step"]


def test_other_series_are_told_by_their_range() -> None:
    others = [point(2, name, speedup=value) for name, value in (("b", 1.5), ("c", 1.9))]
    mine = [row | {"series": "a"} for row in (BASE, TWO)]
    assert "2 devices of a are 1.71x" in said(*mine, *others, series="a")["speedup"]
    assert "; the other 2 series reach 1.50x to 1.90x; " in said(*mine, *others, series="a")["speedup"]
    assert "; b reaches 1.50x; " in said(*mine, others[0], series="a")["speedup"]


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
    assert "prediction" not in said(BASE, TWO)


def test_the_time_to_a_target_is_told_with_both_efficiencies() -> None:
    reached = TWO | {"statistical_efficiency": 0.9} | point(2, time_to_accuracy_speedup=(1.5, 1.4, 1.6))
    assert said(BASE, reached)["efficiencies"] == (
        "On 2 devices hardware efficiency is 0.85 and statistical efficiency 0.90: the target is reached "
        "1.50x as soon as on 1 (1.40 to 1.60, n = 3)."
    )


def test_losses_are_compared_after_the_last_epoch_that_all_runs_have() -> None:
    losses = [("a", 1, 1, 0.5), ("a", 1, 2, 0.2), ("b", 2, 1, 0.6), ("b", 2, 2, 0.3), ("b", 2, 3, 0.1)]
    epochs = pd.DataFrame(losses, columns=["run", "devices", "epoch", "test_loss"]).assign(series="all runs")
    assert said(BASE, TWO, epochs=epochs)["loss"] == (
        "After 2 epochs the test loss is 0.200 on 1 device (n = 1) and 0.300 on 2 (n = 1)."
    )
    by_step = epochs.drop(columns="epoch").assign(step=1)
    assert "loss" not in said(BASE, TWO, epochs=by_step)


def test_a_study_of_one_device_count_has_no_gain_to_tell() -> None:
    found = said(BASE)
    assert not {"speedup", "efficiency", "efficiencies"} & set(found)
    assert found["step"] == "On 1 device a step takes 100 ms, nearly all of it compute (medians of 3 runs)."


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


def test_no_run_has_completed_and_nothing_is_said() -> None:
    assert said(point(1, n=0), point(2, n=0)) == {}


def test_every_figure_may_have_a_sentence() -> None:
    assert set(SENTENCES) == set(CAPTIONS)
