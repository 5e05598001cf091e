"""Speedup and efficiency, joined within a series alone, against numbers worked out by hand."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from tests.unit.analysis.planted_tables import ONLY, at, make_runs
from tests.unit.analysis.reference import next_bound, t_bounds, welch_bounds, welch_p

from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.scaling import SCALING_COLUMNS, karp_flatt, option_table, scaling_table

NAN = float("nan")


@pytest.mark.parametrize(
    ("speedup", "ratio", "fraction"),
    [(2.0, 2.0, 0.0), (1.5, 2.0, 1 / 3), (4.71, 8.0, (1 / 4.71 - 1 / 8) / (7 / 8))],
)
def test_the_serial_fraction_is_karp_and_flatts(speedup: float, ratio: float, fraction: float) -> None:
    assert karp_flatt(speedup, ratio) == pytest.approx(fraction)


BOUNDS = ("", "_low", "_high")


def interval(row: pd.Series, column: str) -> list[float]:
    return [row[f"{column}{end}"] for end in BOUNDS]


def test_speedup_and_efficiency_by_hand() -> None:
    on_one, on_four = [98.0, 100.0, 105.0], [310.0, 320.0, 330.0]
    runs = make_runs({(ONLY, 1): on_one, (ONLY, 2): [170.0, 180.0, 190.0], (ONLY, 4): on_four})
    table = scaling_table(runs, "strong")
    assert list(table.columns) == SCALING_COLUMNS
    assert table["devices"].tolist() == [1, 2, 4]
    usual = {"n": 3, "n_failed": 0, "note": "", "baseline_devices": 1}
    assert table[list(usual)].drop_duplicates().to_dict("records") == [usual]

    one, two, four = (at(table, devices) for devices in (1, 2, 4))
    mean = geometric_mean(on_one)
    assert interval(one, "throughput_samples_per_second") == pytest.approx([mean, *t_bounds(on_one)])
    assert one["speedup"] == one["parallel_efficiency"] == 1.0
    assert pd.isna(one["karp_flatt_fraction"])
    low, high = welch_bounds(on_four, on_one)
    speedup = geometric_mean(on_four) / mean
    assert interval(four, "speedup") == pytest.approx([speedup, low, high])
    assert four["speedup_n"] == 3
    assert interval(four, "parallel_efficiency") == pytest.approx([speedup / 4, low / 4, high / 4])
    fractions = [karp_flatt(each, 4) for each in (speedup, high, low)]
    assert interval(four, "karp_flatt_fraction") == pytest.approx(fractions)
    assert two["parallel_efficiency"] == pytest.approx(geometric_mean([170, 180, 190]) / mean / 2)
    shuffled = runs.sample(frac=1, random_state=3)
    pd.testing.assert_frame_equal(table, scaling_table(shuffled, "strong"))
    # of weak scaling, the work is not fixed
    weak = scaling_table(runs, "weak")
    assert weak["karp_flatt_fraction"].isna().all()
    assert weak["parallel_efficiency"].tolist() == table["parallel_efficiency"].tolist()


def test_other_columns_are_means_or_medians() -> None:
    runs = make_runs({(ONLY, 1): [100.0] * 3, (ONLY, 2): [200.0] * 3})
    on_two = {
        "final_accuracy": [0.95, 0.99, 0.97],
        "time_to_accuracy_seconds": [5.0, NAN, 3.0],
        "epochs_to_accuracy": [4.0, NAN, 2.0],
        "peak_memory_bytes": [1e6, 3e6, 2e6],
        "device_hours": [0.1, 0.4, 0.2],
    }
    walls = [60.0, 61.0, 62.0], [40.0, 42.0, 41.0]
    runs = runs.assign(wall_seconds=[*walls[0], *walls[1]], step_seconds=[0.3, 0.1, 0.2, 0.1, 0.15, 0.2])
    runs.loc[runs["devices"] == 2, list(on_two)] = pd.DataFrame(on_two, index=range(3, 6))
    table = scaling_table(runs, "strong")
    row = at(table, 2)
    half = 4.302653 * 0.02 / math.sqrt(3)
    # 0.97 + half is 1.02, and no accuracy
    assert interval(row, "final_accuracy") == pytest.approx([0.97, 0.97 - half, 1.0])
    reached = interval(row, "time_to_accuracy_seconds")
    assert reached == pytest.approx([math.sqrt(15), math.nan, math.nan], nan_ok=True)
    assert row["n_reached"] == 2
    assert row["epochs_to_accuracy"] == 3
    assert interval(row, "peak_memory_bytes") == pytest.approx([2e6, 2e6 - 5e7 * half, 2e6 + 5e7 * half])
    assert row["device_hours"] == 0.2

    wall = [geometric_mean(walls[1]), *t_bounds(walls[1])]
    assert interval(row, "wall_seconds") == pytest.approx(wall)
    gained = [geometric_mean(walls[0]) / wall[0], *welch_bounds(*walls)]
    assert interval(row, "wall_speedup") == pytest.approx(gained, rel=1e-3)
    assert row["wall_seconds_next"] == pytest.approx(next_bound(walls[1]))
    assert row["wall_n"] == 3
    assert at(table, 1)["wall_speedup"] == 1.0
    assert row["startup_seconds"] == pytest.approx(2.0 + 0.1 + 0.1 + 1.5 + 0.3)
    assert row["step_seconds"] == 0.15
    assert pd.isna(row["straggler_seconds"])


@pytest.mark.parametrize("fits", [True, False])
def test_each_series_has_a_baseline_of_its_own_the_fewest_devices_that_it_fits_on(fits: bool) -> None:
    plain = {1: [100.0] * 3 if fits else ["out-of-memory"] * 3, 2: [180.0] * 3, 8: [540.0] * 3}
    points = {("plain", devices): rates for devices, rates in plain.items()}
    table = scaling_table(make_runs(points | {("fast", 1): [200.0] * 3, ("fast", 2): [300.0] * 3}), "strong")
    assert list(dict.fromkeys(table["series"])) == ["plain", "fast"]
    assert at(table, 2, "fast")["speedup"] == pytest.approx(1.5)
    base = 1 if fits else 2
    row = at(table, 8, "plain")
    assert row["baseline_devices"] == base
    assert row["speedup"] == pytest.approx(5.4 if fits else 3.0)
    assert row["parallel_efficiency"] == pytest.approx(row["speedup"] * base / 8)
    assert row["karp_flatt_fraction"] == pytest.approx(karp_flatt(row["speedup"], 8 / base))
    assert row["note"] == ("" if fits else "relative to 2 devices, not to 1")
    assert pd.isna(at(table, 1, "plain")["speedup"]) != fits


def test_without_a_baseline_there_is_no_speedup_and_a_note_says_why() -> None:
    failed = ["failed", "timed-out", "failed"]
    runs = make_runs({(ONLY, 1): failed, (ONLY, 2): [180.0] * 3, (ONLY, 4): [320.0] * 3})
    table = scaling_table(runs, "strong")
    assert table[["speedup", "parallel_efficiency"]].isna().all(axis=None)
    assert at(table, 1)["note"] == "no completed run (failed, timed-out)"
    assert at(table, 1)["n_failed"] == 3
    assert at(table, 2)["note"] == "no baseline: no completed run on 1 device"
    assert at(table, 4)["throughput_samples_per_second"] == pytest.approx(320.0)
    alone = at(scaling_table(make_runs({(ONLY, 2): [180.0, 190.0]}), "strong"), 2)
    assert alone["note"] == "no baseline: the series has one device count"
    assert pd.isna(alone["speedup"])
    warming = at(scaling_table(make_runs({(ONLY, 1): [100.0], (ONLY, 2): [NAN]}), "strong"), 2)
    assert warming["note"] == "no throughput: all steps were warm-up"
    assert pd.isna(warming["speedup"])


def test_runs_without_a_result_are_counted_by_their_outcome_and_never_averaged_in() -> None:
    ended = ["diverged", "out-of-memory", "diverged", "interrupted", "not run yet"]
    runs = make_runs({(ONLY, 1): [100.0] * 3, (ONLY, 2): [150.0, *ended]})
    runs.loc[runs["outcome"] == "diverged", "throughput_samples_per_second"] = 9e9
    row = at(scaling_table(runs, "strong"), 2)
    assert (row["n"], row["n_failed"], row["n_unsuccessful"], row["speedup_n"]) == (1, 5, 3, 1)
    assert row["unsuccessful"] == "2 diverged, 1 out-of-memory"
    assert row["throughput_samples_per_second"] == 150.0


def test_hardware_and_statistical_efficiency_stand_apart() -> None:
    epochs, seconds = ([4.0, 4.0, 5.0], [5.0, 5.0, 8.0]), ([12.0, 12.0, 15.0], [7.5, 7.5, 12.0])
    runs = make_runs(
        {(ONLY, 1): [100.0] * 3, (ONLY, 2): [200.0] * 3},
        epochs_to_accuracy=[*epochs[0], *epochs[1]],
        time_to_accuracy_seconds=[*seconds[0], *seconds[1]],
    )
    row = at(scaling_table(runs, "strong"), 2)
    assert row["parallel_efficiency"] == pytest.approx(1.0)
    ratio = geometric_mean(epochs[0]) / geometric_mean(epochs[1])
    assert interval(row, "statistical_efficiency") == pytest.approx([ratio, *welch_bounds(*epochs)])
    low, high = welch_bounds(*seconds)
    gained = interval(row, "time_to_accuracy_speedup")
    assert gained == pytest.approx([math.sqrt(low * high), low, high])
    assert gained[0] == pytest.approx(row["speedup"] * row["statistical_efficiency"])


def test_the_time_to_a_target_is_relative_to_the_fewest_devices_that_reach_it() -> None:
    runs = make_runs({(ONLY, n): [100.0 * n] * 3 for n in (1, 2, 4)})
    runs["time_to_accuracy_seconds"] = [NAN] * 3 + [30.0] * 3 + [20.0] * 3
    runs.loc[runs["devices"] == 1, "epochs_to_accuracy"] = NAN
    table = scaling_table(runs, "strong")
    assert (table["time_to_accuracy_baseline_devices"] == 2).all()
    assert at(table, 4)["time_to_accuracy_speedup"] == pytest.approx(1.5)
    assert pd.isna(at(table, 1)["time_to_accuracy_speedup"])


def test_an_option_is_compared_at_equal_devices_and_equal_other_options() -> None:
    swept: dict[str, list[Any]] = {
        "model": ["linear", "digits_cnn"],
        "gradient_as_bucket_view": [False, True],
    }
    cases = product(*swept.values(), (1, 2))
    tables = [
        make_runs(
            {(f"{model}-{view}", devices): [90.0 * 2**place, 100.0 * 2**place, 110.0 * 2**place]},
            model=model,
            gradient_as_bucket_view=view,
            peak_memory_bytes=600e6 if view else 800e6,
        )
        for place, (model, view, devices) in enumerate(cases)
    ]
    table = option_table(pd.concat(tables, ignore_index=True), swept)
    assert len(table) == 2 * 2 + 2 * 2

    views = table[table["option"] == "gradient_as_bucket_view"]
    fast, slow = [3.6, 4.0, 4.4], [0.9, 1.0, 1.1]
    p = 2 * welch_p(fast, slow)
    # the model's four p values are less, so Holm takes the options' times 4 and less, and never back
    expected = [4.0, *welch_bounds(fast, slow), p, 4 * p, 0.75]
    columns = [*(f"throughput_ratio{end}" for end in BOUNDS), "p", "p_adjusted", "peak_memory_ratio"]
    assert views[columns].to_numpy() == pytest.approx(np.array([expected] * 4))
    assert sorted(zip(views["devices"], views["beside"], strict=True)) == [
        *((1, "model digits_cnn"), (1, "model linear"), (2, "model digits_cnn"), (2, "model linear")),
    ]
    models = table[table["option"] == "model"]
    assert models["throughput_ratio"].to_numpy() == pytest.approx(16.0)
    assert set(models["reference"]) == {"linear"}
    assert set(models["value"]) == {"digits_cnn"}


@pytest.mark.parametrize(
    ("swept", "in_table", "rates", "rows"),
    [
        ([1, 2, 4], [1, 2, 4], [10.0, 20.0, 40.0], [(1, 2, 2.0), (1, 4, 4.0)]),
        ([None, 50], [NAN, 50.0], [100.0, 150.0], [(None, 50, 1.5)]),
        ([False, True], [False, True], [100.0, "failed"], []),
        ([False], [False, True], [100.0, 200.0], []),
    ],
    ids=["further values", "null", "failed runs", "one value"],
)
def test_every_further_value_is_compared_with_the_first(
    swept: list[Any], in_table: list[Any], rates: list[Any], rows: list[tuple[Any, ...]]
) -> None:
    runs = make_runs({(str(value), 1): [rate] * 3 for value, rate in zip(in_table, rates, strict=True)})
    runs["option"] = np.repeat(np.array(in_table, dtype=object), 3)
    found = option_table(runs, {"option": swept}).to_dict("records")
    assert [(row["reference"], row["value"], row["throughput_ratio"]) for row in found] == [
        (reference, value, pytest.approx(ratio)) for reference, value, ratio in rows
    ]
    assert all(row["beside"] == "" for row in found)


def test_an_option_is_judged_by_runs_with_a_rate_under_the_same_conditions() -> None:
    runs = make_runs({("off", 1): [90.0, 91.0, 92.0], ("on", 1): [100.0, 101.0, 102.0, 330.0]})
    runs["compile"] = [False] * 3 + [True] * 4
    runs.loc[6, "outcome"] = OTHER_CONDITIONS
    runs.loc[[1, 5], "throughput_samples_per_second"] = NAN
    (row,) = option_table(runs, {"compile": [False, True]}).to_dict("records")
    assert row["n"] == 2
    expected = geometric_mean([100.0, 101.0]) / geometric_mean([90.0, 92.0])
    assert row["throughput_ratio"] == pytest.approx(expected)


def test_a_start_takes_no_longer_than_the_run_less_its_training() -> None:
    runs = make_runs({(ONLY, 1): [100.0], (ONLY, 2): [180.0]}, train_seconds=20.0)
    runs["wall_seconds"] = 23.0
    runs["imports_seconds"] = [0.5, 30.0]  # of a rank that the others did not wait for
    runs[["process_group_seconds", "data_seconds", "model_seconds"]] = 0.0
    runs["first_step_seconds"] = 1.0
    table = scaling_table(runs, "strong")
    assert table["startup_seconds"].tolist() == [1.5, 4.0]


def test_a_person_reads_first_what_decides_and_every_column_is_explained() -> None:
    root = Path(__file__).parents[3]
    contract = yaml.safe_load((root / "tests/workflow/results_contract.yaml").read_text(encoding="utf-8"))
    columns = list(contract["{experiment}/scaling.csv"])
    without_bounds = [column for column in columns if not column.endswith(("_low", "_high"))]
    assert without_bounds[:8] == [
        *("series", "devices", "recommended", "n", "throughput_samples_per_second", "speedup"),
        *("parallel_efficiency", "device_hours"),
    ]
    text = (root / "docs/results.md").read_text(encoding="utf-8").split("## Columns of scaling.csv")[1]
    rows = re.findall(r"^\| (`.*?`) \| (\S.*) \|$", text, re.MULTILINE)
    explained = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert explained == list(dict.fromkeys(explained))
    assert set(explained) == set(without_bounds) == {each for each in columns if each in explained}
    # a column that is said to have an interval is followed by it
    with_interval = [re.findall(r"`(\w+)`", names)[0] for names, value in rows if "with interval" in value]
    for column in with_interval:
        place = columns.index(column)
        assert columns[place + 1 : place + 3] == [f"{column}_low", f"{column}_high"]
    assert len(columns) == len(without_bounds) + 2 * len(with_interval)
