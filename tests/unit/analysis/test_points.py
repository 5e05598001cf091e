"""The table of points: speedups and efficiencies recomputed by hand, and published studies."""

import math
import re
from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

import pandas as pd
import pytest
from scipy import stats
from tests.paths import ROOT
from tests.unit.analysis.planted import ONLY, Planted, analysis_of, at, make_runs, make_spec, spread

from scalewise.analysis.analysis_spec import THROUGHPUT as RATE
from scalewise.analysis.points import SCALING_COLUMNS, choose_clock, known_columns
from scalewise.analysis.statistics import next_value_bound

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


# --- columns of scaling.csv ----------------------------------------------------------------------------


NAN = math.nan


def test_each_column_is_explained_and_its_interval_follows_it() -> None:
    named = [column for column in SCALING_COLUMNS if not column.endswith(("_low", "_high"))]
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8").split("## Columns of scaling.csv")[1]
    rows = re.findall(r"^\| (`.*?`) \| (\S.*) \|$", text, re.MULTILINE)
    explained = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert explained == list(dict.fromkeys(explained))
    assert set(explained) == set(named)
    bounded = [column for column in named if f"{column}_low" in SCALING_COLUMNS]
    said = [
        name for names, value in rows if "with interval" in value for name in re.findall(r"`(\w+)`", names)
    ]
    assert set(said) == set(bounded)
    for column in bounded:
        place = SCALING_COLUMNS.index(column)
        assert SCALING_COLUMNS[place + 1 : place + 3] == [f"{column}_low", f"{column}_high"]


def test_columns_are_means_or_medians_of_the_runs_that_know_them() -> None:
    known = {
        "final_accuracy": [0.95, 0.99, 0.97],
        "time_to_accuracy_seconds": [5.0, NAN, 3.0],
        "epochs_to_accuracy": [4.0, NAN, 2.0],
        "peak_memory_bytes": [1e6, 3e6, 2e6],
        "wall_seconds": [40.0, 42.0, 41.0],
        "step_seconds": [0.1, 0.15, 0.2],
        "loader_wait_fraction": [0.1, 0.2, 0.6],
    }
    (row,) = analysis_of(make_runs({(ONLY, 2): spread(200.0)}, **known)).scaling.to_dict("records")
    half = stats.t.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    # 0.97 + half is 1.02, and no accuracy
    assert [row[f"final_accuracy{end}"] for end in ("", "_low", "_high")] == pytest.approx(
        [0.97, 0.97 - half, 1]
    )
    assert row["time_to_accuracy_seconds"] == pytest.approx(math.sqrt(15))
    assert math.isnan(row["time_to_accuracy_seconds_low"])
    assert (row["n_reached"], row["epochs_to_accuracy"], row["loader_wait_fraction"]) == (2, 3, 0.2)
    assert (row["peak_memory_bytes"], row["step_seconds"]) == pytest.approx((2e6, 0.15))
    assert row["wall_seconds"] == pytest.approx(geometric_mean(known["wall_seconds"]))
    # the next run is slower than that with a probability of 5 %
    bound = next_value_bound(known["wall_seconds"])
    assert (row["wall_seconds_next"], row["wall_n"]) == (pytest.approx(bound), 3)


@pytest.mark.parametrize("fits", [True, False])
def test_each_series_has_a_baseline_of_its_own_the_fewest_devices_that_it_fits_on(fits: bool) -> None:
    plain = {1: spread(100.0) if fits else ["out-of-memory"] * 3, 2: spread(180.0), 8: spread(540.0)}
    points = {("plain", devices): rates for devices, rates in plain.items()}
    found = analysis_of(make_runs(points | {("fast", 1): spread(200.0), ("fast", 2): spread(300.0)}))
    assert at(found, 8, "plain")["baseline_devices"] == (1 if fits else 2)
    assert at(found, 8, "plain")["speedup"] == pytest.approx(5.4 if fits else 3.0)
    assert at(found, 2, "fast")["speedup"] == pytest.approx(1.5)
    assert ("relative to 2 devices" in at(found, 8, "plain")["note"]) == (not fits)


def test_a_count_that_was_added_on_a_slower_day_is_compared_with_that_days_baseline() -> None:
    """The second day is 20 % slower: by all runs of the baseline, 8 devices would look 11 % slower."""
    first = make_runs({(ONLY, devices): spread(100.0 * devices**0.9) for devices in (1, 2, 4)})
    second = make_runs({(ONLY, devices): spread(80.0 * devices**0.9) for devices in (1, 8)})
    later = pd.to_datetime(second["started_at"]) + pd.Timedelta(days=3)
    second = second.assign(repeat=second["repeat"] + 3, started_at=later.map(pd.Timestamp.isoformat))
    second["run"] += "b"
    found = analysis_of(pd.concat([first, second], ignore_index=True))
    assert at(found, 8)["speedup"] == pytest.approx(8**0.9, rel=0.005)
    assert at(found, 4)["speedup"] == pytest.approx(4**0.9, rel=0.005)
    assert at(found, 1)[RATE] < 95
