"""The sentence below a figure says what the tables hold; golden_answers.txt has its words."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.planted_tables import ONLY, make_epochs, make_runs, results

from scalewise.analysis.report.figure_sentences import figure_sentences
from scalewise.analysis.scaling import scaling_table

BOUNDS = ("", "_low", "_high")


def point(devices: int, series: str = "all runs", n: int = 3, **values: Any) -> dict[str, Any]:
    """A row of scaling.csv; a triple is a value with its bounds."""
    ratio_n = float(n) if devices > 1 else None
    row = {"series": series, "devices": devices, "n": n, "baseline_devices": 1, "speedup_n": ratio_n}
    for name, value in values.items():
        triple = value if isinstance(value, tuple) else (value,)
        row |= dict(zip([f"{name}{end}" for end in BOUNDS], triple, strict=False))
    return row


BASE = point(
    1, speedup=(1.0, 1.0, 1.0), parallel_efficiency=(1.0, 1.0, 1.0),
    throughput_samples_per_second=(1000.0, 990.0, 1010.0), final_accuracy=(0.98, 0.97, 0.99),
    peak_memory_bytes=(700e6, 690e6, 710e6), step_seconds=0.1, compute_seconds=0.1, communication_seconds=0.0,
)  # fmt: skip
TWO = point(
    2, speedup=(1.71, 1.6, 1.8), parallel_efficiency=(0.855, 0.8, 0.9),
    throughput_samples_per_second=(1710.0, 1600.0, 1800.0), final_accuracy=(0.975, 0.97, 0.98),
    peak_memory_bytes=(500e6, 490e6, 510e6), step_seconds=0.06, compute_seconds=0.05,
    communication_seconds=0.0054, loader_seconds=0.0012,
)  # fmt: skip
FOUR = point(
    4, speedup=(2.4, 2.2, 2.6), parallel_efficiency=(0.6, 0.55, 0.65),
    throughput_samples_per_second=(2400.0, 2200.0, 2600.0), step_seconds=0.04, communication_seconds=0.01,
)  # fmt: skip


def said(*rows: dict[str, Any], **fields: Any) -> dict[str, str]:
    return sentences(pd.DataFrame(rows), **fields)


def sentences(scaling: pd.DataFrame, runs: pd.DataFrame | None = None, **fields: Any) -> dict[str, str]:
    answer: dict[str, Any] = {name: fields.pop(name) for name in ("series", "devices") if name in fields}
    return figure_sentences(results(scaling, runs, decision=answer, **fields))


@pytest.mark.parametrize(
    ("figure", "values", "clause"),
    [
        ("speedup", {"speedup": (1.71, 0.9, 1.8)}, "no gain is shown"),
        ("speedup", {"speedup": (0.97, 0.9, 1.1)}, "no difference is shown"),
        ("efficiency", {"parallel_efficiency": (0.86, 0.45, 1.1)}, "no loss is shown"),
        ("efficiency", {"parallel_efficiency": (1.02, 0.8, 1.1)}, "no difference is shown"),
        (
            "efficiencies",
            {"time_to_accuracy_speedup": (1.5, 0.9, 1.6), "statistical_efficiency": 0.9, "n_reached": 2},
            "(0.90 to 1.60, n = 2), no gain is shown",
        ),
    ],
)
def test_what_an_interval_leaves_open_is_said_to_be_open(
    figure: str, values: dict[str, Any], clause: str
) -> None:
    assert clause in said(BASE, TWO | point(2, **values))[figure]


def test_an_efficiency_is_never_rounded_to_the_required_one() -> None:
    near = TWO | {"parallel_efficiency": 0.6996}
    assert " 0.6996 (" in said(BASE, near, min_efficiency=0.7)["efficiency"]


def test_other_series_are_named_by_the_range_of_their_throughput() -> None:
    others = [
        point(2, name, speedup=9.9, throughput_samples_per_second=rate)
        for name, rate in (("b", 855), ("c", 3420))
    ]
    own = [row | {"series": "a"} for row in (BASE, TWO)]
    both = said(*own, *others, series="a")["speedup"]
    assert "2 devices of a are 1.71x" in both
    assert "the other 2 series have 0.50x to 2.00x that" in both
    alone = said(*own, others[0], series="a")["speedup"]
    assert "b has 0.50x that" in alone
    for apart in ({"baseline_devices": 2}, {"n": 0}):
        assert said(*own, others[0], others[1] | apart, series="a")["speedup"] == alone


def test_a_prediction_is_compared_with_the_step_or_stated_without_one() -> None:
    rows = [(1, 0.1), (2, 0.054), (1024, 0.02)]
    predicted = pd.DataFrame(rows, columns=["devices", "step_seconds"]).assign(
        series=ONLY, parallel_efficiency=0.5, parallel_efficiency_low=0.4, parallel_efficiency_high=0.6
    )
    clauses = ("0.90x the measured one (54.0 ms and 60.0 ms)", "0.50 (0.40 to 0.60)")

    def clauses_in(two: dict[str, Any], table: pd.DataFrame) -> list[bool]:
        words = said(BASE, two, prediction=table)["prediction"]
        return [clause in words for clause in clauses]

    assert clauses_in(TWO, predicted) == [True, True]
    assert clauses_in(TWO, predicted[:2]) == [True, False]
    unknown = predicted.assign(step_seconds=predicted["step_seconds"].where(predicted["devices"] != 2))
    for two in (TWO | {"step_seconds": None}, TWO | {"n": 0}):
        assert clauses_in(two, predicted) == [False, True]
    assert clauses_in(TWO, unknown) == [False, True]


def test_losses_are_compared_after_the_last_epoch_that_all_runs_have() -> None:
    losses = [("a", 1, 1, 0.5), ("a", 1, 2, 0.2), ("b", 2, 1, 0.6), ("b", 2, 2, 0.3), ("b", 2, 3, 0.1)]
    epochs = pd.DataFrame(losses, columns=["run", "devices", "epoch", "test_loss"]).assign(series=ONLY)
    runs = pd.DataFrame({"run": ["a", "b"], "series": ONLY, "outcome": "completed"})
    by_step = epochs.rename(columns={"epoch": "step", "test_loss": "loss"})
    for table, unit in ((epochs, "epochs"), (by_step, "steps")):
        loss = said(BASE, TWO, runs=runs, epochs=table)["loss"]
        assert f"2 {unit}" in loss
        assert all(value in loss for value in ("0.200 on 1 device", "0.300 on 2"))
    apart = epochs[(epochs["run"] == "a") == (epochs["epoch"] == 1)]
    assert "nothing to compare" in said(BASE, TWO, runs=runs, epochs=apart)["loss"]


def test_losses_are_of_completed_runs_under_the_conditions_of_the_series() -> None:
    names = {(name, devices): [100.0 * devices] * 3 for name in ("a", "b") for devices in (1, 2)}
    runs = make_runs(names | {("a", 2): [200.0, 200.0, 200.0, "diverged"]})
    epochs = make_epochs(runs)
    early = epochs[epochs["run"] == "d2.a.r1"][:1].assign(run="d2.a.r4", test_loss=90.0)
    epochs = pd.concat([epochs, early])
    # runs of another condition are planned as the same series
    epochs.loc[epochs["series"] == "b", "series"] = "a"
    loss = sentences(scaling_table(runs, "strong"), runs, series="a", epochs=epochs)["loss"]
    assert "0.570 on 1 device of a (n = 3) and 0.570 on 2 (n = 3)" in loss


@pytest.mark.parametrize("loader", [0.01, None])
def test_a_step_whose_exchange_is_unknown_is_not_called_compute(loader: float | None) -> None:
    unknown = {"communication_seconds": None, "compute_seconds": None, "loader_seconds": loader}
    found = said(BASE, TWO | unknown)["step"]
    assert "comput" not in found
    assert "How much of it is communication is not known." in found


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


def test_a_figure_without_data_states_that() -> None:
    assert len(set(said(point(1, n=0), point(2, n=0)).values())) == 1
    assert said(point(1))["accuracy"] == "No run tells its accuracy."
    assert " of a " in said(point(1, "a"), point(1, "b", final_accuracy=0.9))["accuracy"]


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
    base, two = (
        row | point(row["devices"], final_accuracy=(value, value - 1e-6, value + 1e-6))
        for row, value in ((BASE, before), (TWO, after))
    )
    assert said(base, two)["speedup"].endswith(f"(1.60 to 1.80, n = 3){clause}.")
