"""The table of points: speedups and efficiencies recomputed by hand, and published studies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.planted import ONLY, Planted, analysis_of, at, make_runs, make_spec, spread

from scalewise.analysis.analysis_spec import THROUGHPUT as RATE
from scalewise.analysis.points import choose_clock, known_columns

RATES = {1: spread(100.0, 0.02), 2: [186.0, 190.0, 194.0], 4: [300.0, 306.0, 297.0]}


def test_speedup_and_efficiency_are_ratios_of_geometric_means() -> None:
    analysis = Planted({(ONLY, devices): rates for devices, rates in RATES.items()}).analysis()
    means = {devices: math.exp(sum(map(math.log, rates)) / 3) for devices, rates in RATES.items()}
    for devices in (2, 4):
        row = at(analysis, devices)
        assert row["speedup"] == pytest.approx(means[devices] / means[1])
        assert row["parallel_efficiency"] == pytest.approx(means[devices] / means[1] / devices)
        assert row[RATE] == pytest.approx(means[devices])
        assert (row["n"], row["baseline_devices"]) == (3, 1)


def test_the_efficiency_is_relative_to_the_best_configuration_of_the_fewest_devices() -> None:
    study = Planted({("slow", 1): spread(80.0), ("slow", 2): spread(150.0), ("fast", 1): spread(100.0)})
    row = at(study.analysis(), 2, "slow")
    assert row["speedup"] == pytest.approx(150 / 80, rel=1e-3)
    assert row["parallel_efficiency"] == pytest.approx(150 / 100 / 2, rel=1e-3)
    assert row["best_baseline"] == "fast"


@pytest.mark.parametrize(
    ("keys", "columns", "total_times", "clock"),
    [
        ({}, {}, False, "steps"),
        ({}, {"epoch_throughput_samples_per_second": 90.0}, False, "epochs"),
        ({"decision": {"deadline_minutes": 60}}, {}, False, "runs"),
        ({"decision": {"max_device_hours": 60}}, {}, False, "runs"),
        ({"decision": {"deadline_minutes": 60}, "steps": 100}, {}, False, "steps"),
        ({"target": {"accuracy": 0.9}}, {"time_to_accuracy_seconds": 5.0}, False, "target"),
        ({"target": {"accuracy": 0.9}}, {}, False, "steps"),
        ({}, {RATE: None}, False, "runs"),
        ({}, {}, True, "runs"),
    ],
)
def test_one_clock_decides(
    keys: dict[str, Any], columns: dict[str, Any], total_times: bool, clock: str
) -> None:
    runs = known_columns(make_runs({(ONLY, 1): spread(100.0), (ONLY, 2): spread(190.0)}, **columns))
    assert choose_clock(make_spec([1, 2], **keys), runs, total_times=total_times) == clock


def test_where_epochs_are_inside_a_run_the_rate_over_whole_epochs_decides() -> None:
    """Steps scale, and the edges of epochs do not: 1.27x is paid for, not 1.78x."""
    study = Planted({(ONLY, 1): spread(100.0), (ONLY, 2): spread(178.0)})
    runs = study.runs
    epochs = {1: spread(50.0), 2: spread(63.5)}
    runs["epoch_throughput_samples_per_second"] = [
        epochs[devices][repeat - 1] for devices, repeat in zip(runs["devices"], runs["repeat"], strict=True)
    ]
    analysis = study.analysis(runs=runs)
    assert analysis.answer.clock == "epochs"
    assert at(analysis, 2)["speedup"] == pytest.approx(1.27, rel=1e-3)
    assert analysis.answer.devices == 1


# ---- published figures ----------------------------------------------------------------------------------
# Sources: Sigma2's guide for Olivia (WideResNet on CIFAR-100), NVIDIA's ResNet-50 for PyTorch on a DGX A100.


RULE = {"min_efficiency": 0.3}


def published(rates: Mapping[tuple[str, int], float]) -> pd.DataFrame:
    """Return the runs of published rates in samples/s, one each, of unknown starts and walls."""
    runs = make_runs({point: [rate] for point, rate in rates.items()}, started_at=None)
    return runs.assign(wall_seconds=math.nan, device_hours=math.nan)


def test_olivias_unlike_baseline_gives_no_speedup() -> None:
    runs = published({(ONLY, 1): 2598.0, (ONLY, 4): 36927.0, (ONLY, 8): 62450.0})
    runs.loc[runs["devices"] > 1, ["outcome", "reason"]] = ["other conditions", "precision is fp16, not fp32"]
    analysis = analysis_of(runs, decision=RULE)
    assert analysis.answer.devices in {None, 1}
    for devices in (4, 8):
        row = at(analysis, devices)
        assert row[["speedup", "parallel_efficiency", RATE]].isna().all()
        assert row["n_left_out"] == 1
        assert "precision is fp16, not fp32" in row["note"]
    for claimed in ("14.2", "15.2", "3.55", "3.74"):
        assert claimed not in analysis.scaling.to_csv() + analysis.answer.to_json()


def test_olivias_alike_runs_are_compared() -> None:
    row = at(analysis_of(published({(ONLY, 4): 36927.0, (ONLY, 8): 62450.0}), decision=RULE), 8)
    assert row["speedup"] == pytest.approx(1.69, abs=5e-3)
    assert row["parallel_efficiency"] == pytest.approx(0.846, abs=5e-4)


def test_nvidias_mixed_precision_is_an_options_gain_and_never_part_of_a_speedup() -> None:
    rates = {("tf32", 1): 938.0, ("tf32", 8): 7248.0, ("bf16", 1): 2470.0, ("bf16", 8): 16621.0}
    options = {name: (("precision", name),) for name in ("tf32", "bf16")}
    analysis = analysis_of(published(rates), options, decision=RULE, sweep={"precision": [*options]})
    assert at(analysis, 8, "tf32")["speedup"] == pytest.approx(7.73, abs=5e-3)
    assert at(analysis, 8, "bf16")["speedup"] == pytest.approx(6.73, abs=5e-3)
    assert (analysis.answer.devices, analysis.answer.series) == (8, "tf32")
    assert "17.7" not in analysis.scaling.to_csv() + analysis.answer.to_json()
    gain = analysis.options.iloc[0]
    assert gain[["option", "value", "reference", "devices"]].tolist() == ["precision", "bf16", "tf32", 1]
    assert gain["throughput_ratio"] == pytest.approx(2.63, abs=5e-3)
