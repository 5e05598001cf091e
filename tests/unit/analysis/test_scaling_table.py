"""Speedup and efficiency, joined within a series alone, against numbers worked out by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import geometric_mean

import pandas as pd
import pytest
import yaml
from tests.unit.analysis.planted_tables import ALONE, at, make_runs
from tests.unit.analysis.reference import next_bound, t_bounds, welch_bounds, welch_p

from scalewise.analysis.scaling import SCALING_COLUMNS, karp_flatt, option_table, scaling_table

NAN = float("nan")


@pytest.mark.parametrize(
    ("speedup", "ratio", "fraction"),
    [
        (2.0, 2.0, 0.0),
        (1.0, 2.0, 1.0),
        (1.5, 2.0, 1 / 3),
        (3.2, 4.0, 1 / 12),
        (4.71, 8.0, (1 / 4.71 - 1 / 8) / (7 / 8)),
    ],
)
def test_the_serial_fraction_is_karp_and_flatts(speedup: float, ratio: float, fraction: float) -> None:
    assert karp_flatt(speedup, ratio) == pytest.approx(fraction)


def test_speedup_and_efficiency_by_hand() -> None:
    on_one, on_four = [98.0, 100.0, 105.0], [310.0, 320.0, 330.0]
    runs = make_runs({(ALONE, 1): on_one, (ALONE, 2): [170.0, 180.0, 190.0], (ALONE, 4): on_four})
    table = scaling_table(runs, "strong")
    assert list(table.columns) == SCALING_COLUMNS
    assert table["devices"].tolist() == [1, 2, 4]
    assert (table["n"] == 3).all()
    assert (table["n_failed"] == 0).all()
    assert (table["note"] == "").all()
    assert (table["baseline_devices"] == 1).all()

    one = at(table, 1)
    assert one["throughput_samples_per_second"] == pytest.approx(geometric_mean(on_one))
    bounds = [one[f"throughput_samples_per_second_{end}"] for end in ("low", "high")]
    assert bounds == pytest.approx(t_bounds(on_one))
    assert one["speedup"] == one["parallel_efficiency"] == 1.0
    assert pd.isna(one["karp_flatt_fraction"])

    four = at(table, 4)
    low, high = welch_bounds(on_four, on_one)
    assert four["speedup"] == pytest.approx(geometric_mean(on_four) / geometric_mean(on_one))
    assert four["speedup_low"] == pytest.approx(low)
    assert four["speedup_high"] == pytest.approx(high)
    assert four["speedup_n"] == 3
    assert four["parallel_efficiency"] == pytest.approx(four["speedup"] / 4)
    assert four["parallel_efficiency_low"] == pytest.approx(low / 4)
    assert four["parallel_efficiency_high"] == pytest.approx(high / 4)
    fraction = [four[f"karp_flatt_fraction{end}"] for end in ("", "_low", "_high")]
    assert fraction == pytest.approx([karp_flatt(each, 4) for each in (four["speedup"], high, low)])
    assert at(table, 2)["parallel_efficiency"] == pytest.approx(
        geometric_mean([170, 180, 190]) / geometric_mean(on_one) / 2
    )


def test_other_columns_are_means_or_medians() -> None:
    runs = make_runs({(ALONE, 1): [1.0, 1.0, 1.0], (ALONE, 2): [1.0, 1.0, 1.0]})
    two = runs["devices"] == 2
    runs.loc[two, "final_accuracy"] = [0.95, 0.99, 0.97]
    runs.loc[two, "time_to_accuracy_seconds"] = [5.0, NAN, 3.0]
    runs.loc[two, "epochs_to_accuracy"] = [4.0, NAN, 2.0]
    runs.loc[two, "peak_memory_bytes"] = [1e6, 3e6, 2e6]
    runs.loc[two, "device_hours"] = [0.1, 0.4, 0.2]
    row = at(scaling_table(runs, "strong"), 2)
    accuracy = [row[f"final_accuracy{end}"] for end in ("", "_low", "_high")]
    half = 4.302653 * 0.02 / math.sqrt(3)
    assert accuracy == pytest.approx([0.97, 0.97 - half, 0.97 + half])
    reached = [row[f"time_to_accuracy_seconds{end}"] for end in ("", "_low", "_high")]
    assert reached == pytest.approx([math.sqrt(15), *t_bounds([5.0, 3.0])])
    assert row["n_reached"] == 2
    assert row["epochs_to_accuracy"] == 3
    memory = [row[f"peak_memory_bytes{end}"] for end in ("", "_low", "_high")]
    assert memory == pytest.approx([2e6, 2e6 - 50 * half * 1e6, 2e6 + 50 * half * 1e6])
    assert row["device_hours"] == 0.2


@pytest.mark.parametrize("first", [["plain"], ["out-of-memory"] * 3])
def test_each_series_has_a_baseline_of_its_own_the_fewest_devices_that_it_fits_on(first: list[str]) -> None:
    fits = first == ["plain"]
    runs = make_runs(
        {
            ("plain", 1): [100.0] * 3 if fits else first,
            ("plain", 2): [180.0] * 3,
            ("plain", 8): [540.0] * 3,
            ("fast", 1): [200.0] * 3,
            ("fast", 2): [300.0] * 3,
        }
    )
    table = scaling_table(runs, "strong")
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


def test_the_order_of_the_runs_changes_nothing() -> None:
    runs = make_runs({(ALONE, 1): [90.0, 100.0, 110.0], (ALONE, 2): [150.0, 160.0, "failed"]})
    shuffled = runs.sample(frac=1, random_state=3)
    pd.testing.assert_frame_equal(scaling_table(runs, "strong"), scaling_table(shuffled, "strong"))


def test_without_a_baseline_there_is_no_speedup_and_a_note_says_why() -> None:
    runs = make_runs(
        {
            (ALONE, 1): ["failed", "timed-out", "failed"],
            (ALONE, 2): [180.0, 180.0, 180.0],
            (ALONE, 4): [320.0, 320.0, 320.0],
        }
    )
    table = scaling_table(runs, "strong")
    assert table["speedup"].isna().all()
    assert table["parallel_efficiency"].isna().all()
    assert at(table, 1)["note"] == "no completed run (failed, timed-out)"
    assert at(table, 1)["n_failed"] == 3
    assert at(table, 2)["note"] == "no baseline: no completed run on 1 device"
    assert at(table, 4)["throughput_samples_per_second"] == pytest.approx(320.0)
    (alone,) = scaling_table(make_runs({(ALONE, 2): [180.0, 190.0]}), "strong").to_dict("records")
    assert alone["note"] == "no baseline: the series has one device count"
    assert pd.isna(alone["speedup"])


def test_runs_without_a_result_are_counted_by_their_outcome_and_never_averaged_in() -> None:
    ended = ["diverged", "out-of-memory", "diverged", "interrupted", "not run yet"]
    runs = make_runs({(ALONE, 1): [100.0] * 3, (ALONE, 2): [150.0, *ended]})
    runs.loc[runs["outcome"] == "diverged", "throughput_samples_per_second"] = 9e9
    row = at(scaling_table(runs, "strong"), 2)
    assert (row["n"], row["n_failed"], row["n_unsuccessful"], row["speedup_n"]) == (1, 5, 3, 1)
    assert row["unsuccessful"] == "2 diverged, 1 out-of-memory"
    assert row["throughput_samples_per_second"] == 150.0


def test_weak_scaling_has_no_serial_fraction_of_a_fixed_work() -> None:
    runs = make_runs({(ALONE, 1): [100.0] * 3, (ALONE, 2): [190.0] * 3})
    table = scaling_table(runs, "weak")
    assert table["karp_flatt_fraction"].isna().all()
    assert at(table, 2)["parallel_efficiency"] == pytest.approx(0.95)


KNOWN = {"a": {"CPU model": "X", "driver version": "1"}, "b": {"CPU model": "Y", "driver version": "1"}}


def test_runs_under_other_conditions_are_left_out_and_named_and_have_a_row_of_their_own() -> None:
    runs = make_runs({(ALONE, 1): [100.0] * 3, (ALONE, 4): [300.0, 700.0, 900.0]})
    runs["fingerprint"] = ["a", "a", "a", "a", "b", "b"]
    table = scaling_table(runs, "strong", KNOWN)
    row = at(table, 4)
    assert (row["n"], row["n_not_comparable"], row["speedup_n"]) == (1, 2, 1)
    assert row["speedup"] == pytest.approx(3.0)
    assert row["throughput_samples_per_second"] == pytest.approx(300.0)
    assert row["conditions"] == ""
    other = at(table, 4, f"{ALONE} (CPU model Y)")
    assert (other["conditions"], other["n"], round(other["throughput_samples_per_second"], 1)) == (
        "CPU model Y", 2, 793.7,
    )  # fmt: skip
    assert pd.isna(other["speedup"])
    assert other["note"] == "no baseline: the series has one device count"
    assert row["note"].startswith("2 of 3 runs on 4 devices are not comparable")
    assert row["note"].endswith("CPU model is Y, not X (2.67x the others' rate)")


def test_the_baseline_is_what_most_of_its_runs_met() -> None:
    runs = make_runs({(ALONE, 1): [100.0, 100.0, 50.0], (ALONE, 2): [200.0, 90.0, 90.0, 90.0]})
    runs["fingerprint"] = ["b", "b", "a", "b", "a", "a", "a"]
    table = scaling_table(runs, "strong", KNOWN)
    assert at(table, 1)["n_not_comparable"] == 1
    assert (at(table, 2)["speedup"], at(table, 2)["speedup_low"]) == pytest.approx((2.0, 2.0))
    others = f"{ALONE} (CPU model X)"
    assert (at(table, 2, others)["speedup"], at(table, 2, others)["baseline_devices"]) == (1.8, 1)


def test_of_two_equally_frequent_conditions_the_series_own_is_the_baseline() -> None:
    runs = make_runs({(ALONE, 1): [50.0, 100.0], (ALONE, 2): [200.0] * 2})
    runs["fingerprint"] = ["a", "b", "b", "b"]
    assert at(scaling_table(runs, "strong", KNOWN), 2)["speedup"] == pytest.approx(2.0)


def test_conditions_that_nobody_kept_are_named_by_their_fingerprints() -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): [150.0]}, fingerprint=["a", None])
    assert at(scaling_table(runs, "strong"), 2)["note"].endswith("fingerprint is not recorded, not a")


def test_hardware_and_statistical_efficiency_stand_apart() -> None:
    runs = make_runs({(ALONE, 1): [100.0] * 3, (ALONE, 2): [200.0] * 3})
    two = runs["devices"] == 2
    runs.loc[~two, "epochs_to_accuracy"] = [4.0, 4.0, 5.0]
    runs.loc[two, "epochs_to_accuracy"] = [5.0, 5.0, 8.0]
    runs.loc[~two, "time_to_accuracy_seconds"] = [12.0, 12.0, 15.0]
    runs.loc[two, "time_to_accuracy_seconds"] = [7.5, 7.5, 12.0]
    row = at(scaling_table(runs, "strong"), 2)
    assert row["parallel_efficiency"] == pytest.approx(1.0)
    statistical = [row[f"statistical_efficiency{end}"] for end in ("", "_low", "_high")]
    assert statistical == pytest.approx(
        [
            geometric_mean([4.0, 4.0, 5.0]) / geometric_mean([5.0, 5.0, 8.0]),
            *welch_bounds([4.0, 4.0, 5.0], [5.0, 5.0, 8.0]),
        ]
    )
    gained = [row[f"time_to_accuracy_speedup{end}"] for end in ("", "_low", "_high")]
    low, high = welch_bounds([12.0, 12.0, 15.0], [7.5, 7.5, 12.0])
    assert gained == pytest.approx([math.sqrt(low * high), low, high])
    assert row["time_to_accuracy_speedup"] == pytest.approx(row["speedup"] * row["statistical_efficiency"])


def test_a_run_that_did_not_reach_the_target_leaves_no_statistical_efficiency_and_costs_its_time() -> None:
    """Three of four reach it in 1 s each and one trains for 2 s in vain: 5 s for three successes."""
    runs = make_runs({(ALONE, 1): [100.0] * 2, (ALONE, 2): [200.0] * 4}, train_seconds=2.0)
    runs.loc[5, ["epochs_to_accuracy", "time_to_accuracy_seconds"]] = NAN
    table = scaling_table(runs, "strong")
    one, two = at(table, 1), at(table, 2)
    assert one["statistical_efficiency"] == 1.0
    assert pd.isna(two["statistical_efficiency"])
    assert (one["expected_seconds_to_accuracy"], two["time_to_accuracy_seconds"]) == (1.0, 1.0)
    assert two["expected_seconds_to_accuracy"] == pytest.approx(5 / 3)
    assert two["time_to_accuracy_speedup"] == pytest.approx(3 / 5)


def test_the_time_to_a_target_is_relative_to_the_fewest_devices_that_reach_it() -> None:
    runs = make_runs({(ALONE, n): [100.0 * n] * 3 for n in (1, 2, 4)})
    runs["time_to_accuracy_seconds"] = [NAN] * 3 + [30.0] * 3 + [20.0] * 3
    runs.loc[runs["devices"] == 1, "epochs_to_accuracy"] = NAN
    table = scaling_table(runs, "strong")
    assert (table["time_to_accuracy_baseline_devices"] == 2).all()
    assert at(table, 4)["time_to_accuracy_speedup"] == pytest.approx(1.5)
    assert pd.isna(at(table, 1)["time_to_accuracy_speedup"])


def test_walls_start_up_and_the_parts_of_a_step_are_medians() -> None:
    runs = make_runs({(ALONE, 1): [100.0] * 3, (ALONE, 2): [200.0] * 3})
    runs["wall_seconds"] = [60.0, 61.0, 62.0, 40.0, 42.0, 41.0]
    runs["step_seconds"] = [0.3, 0.1, 0.2, 0.1, 0.15, 0.2]
    table = scaling_table(runs, "strong")
    row = at(table, 2)
    assert [row[f"wall_seconds{end}"] for end in ("", "_low", "_high")] == pytest.approx(
        [geometric_mean([40.0, 42.0, 41.0]), *t_bounds([40.0, 42.0, 41.0])]
    )
    assert row["wall_speedup"] == pytest.approx(
        geometric_mean([60.0, 61.0, 62.0]) / geometric_mean([40.0, 42.0, 41.0])
    )
    assert row["wall_speedup_low"] == pytest.approx(welch_bounds([60.0, 61.0, 62.0], [40.0, 42.0, 41.0])[0])
    assert row["wall_seconds_next"] == pytest.approx(next_bound([40.0, 42.0, 41.0]))
    assert row["wall_n"] == 3
    assert at(table, 1)["wall_speedup"] == 1.0
    assert row["startup_seconds"] == pytest.approx(2.0 + 0.1 + 0.1 + 1.5 + 0.3)
    assert row["step_seconds"] == 0.15
    assert pd.isna(row["straggler_seconds"])


def test_a_run_that_was_all_warm_up_has_no_throughput_and_says_so() -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): [NAN]})
    row = at(scaling_table(runs, "strong"), 2)
    assert row["note"] == "no throughput: all steps were warm-up"
    assert pd.isna(row["speedup"])


def test_an_option_that_was_measured_elsewhere_says_so() -> None:
    runs = make_runs({("off", 1): [100.0] * 2, ("on", 1): [150.0] * 2})
    runs["compile"] = [False, False, True, True]
    runs["fingerprint"] = ["a", "a", "b", "b"]
    known = {name: met | {"compile": str(name == "b").lower()} for name, met in KNOWN.items()}
    (row,) = option_table(runs, {"compile": [False, True]}, known).to_dict("records")
    assert row["also_differs"] == "CPU model is Y, not X"


def test_an_option_is_compared_at_equal_devices_and_equal_other_options() -> None:
    swept: dict[str, list[str] | list[bool]] = {
        "model": ["linear", "digits_cnn"],
        "gradient_as_bucket_view": [False, True],
    }
    tables = []
    rate = 100.0
    for model in swept["model"]:
        for view in swept["gradient_as_bucket_view"]:
            for devices in (1, 2):
                rates = [rate * 0.9, rate, rate * 1.1]
                tables.append(
                    make_runs(
                        {(f"{model}-{view}", devices): rates},
                        model=model,
                        gradient_as_bucket_view=view,
                        peak_memory_bytes=600e6 if view else 800e6,
                    )
                )
                rate *= 2
    table = option_table(pd.concat(tables, ignore_index=True), swept)
    assert len(table) == 2 * 2 + 2 * 2

    views = table[table["option"] == "gradient_as_bucket_view"]
    assert (views["throughput_ratio"] - 4.0).abs().max() < 1e-9
    low, high = welch_bounds([3.6, 4.0, 4.4], [0.9, 1.0, 1.1])
    assert views["throughput_ratio_low"].tolist() == pytest.approx([low] * 4)
    assert views["throughput_ratio_high"].tolist() == pytest.approx([high] * 4)
    p = 2 * welch_p([3.6, 4.0, 4.4], [0.9, 1.0, 1.1])
    assert views["p"].tolist() == pytest.approx([p] * 4)
    # the model's four p values are less, so Holm takes the options' times 4 and less, and never back
    assert views["p_adjusted"].tolist() == pytest.approx([4 * p] * 4)
    assert (views["peak_memory_ratio"] - 0.75).abs().max() < 1e-9
    assert sorted(zip(views["devices"], views["beside"], strict=True)) == [
        (1, "model digits_cnn"),
        (1, "model linear"),
        (2, "model digits_cnn"),
        (2, "model linear"),
    ]
    models = table[table["option"] == "model"]
    assert (models["throughput_ratio"] - 16.0).abs().max() < 1e-9
    assert set(models["reference"]) == {"linear"}
    assert set(models["value"]) == {"digits_cnn"}


def test_every_further_value_is_compared_with_the_first() -> None:
    runs = pd.concat(
        [make_runs({(f"cpus-{c}", 1): [10.0 * c] * 3}, cpus_per_device=c) for c in (1, 2, 4)],
        ignore_index=True,
    )
    table = option_table(runs, {"cpus_per_device": [1, 2, 4]})
    assert table["value"].tolist() == [2, 4]
    assert table["throughput_ratio"].tolist() == pytest.approx([2.0, 4.0])
    assert (table["reference"] == 1).all()
    assert (table["beside"] == "").all()


def test_an_option_whose_runs_failed_gains_nothing_that_could_be_said() -> None:
    runs = pd.concat(
        [
            make_runs({("off", 1): [100.0] * 3}, gradient_as_bucket_view=False),
            make_runs({("on", 1): ["failed"] * 3}, gradient_as_bucket_view=True),
        ],
        ignore_index=True,
    )
    assert len(option_table(runs, {"gradient_as_bucket_view": [False, True]})) == 0
    assert len(option_table(runs, {})) == 0, "nothing is swept"


def test_an_option_is_judged_by_runs_with_a_rate_under_the_same_conditions() -> None:
    runs = make_runs({("off", 1): [90.0, 91.0, 92.0], ("on", 1): [100.0, 101.0, 102.0, 330.0]})
    runs["compile"] = [False] * 3 + [True] * 4
    runs["fingerprint"] = [*"aaa", *"bbb", "c"]
    runs.loc[[1, 5], "throughput_samples_per_second"] = NAN
    (row,) = option_table(runs, {"compile": [False, True]}).to_dict("records")
    assert row["n"] == 2
    expected = geometric_mean([100.0, 101.0]) / geometric_mean([90.0, 92.0])
    assert row["throughput_ratio"] == pytest.approx(expected)


def test_a_swept_null_is_a_value_like_any_other() -> None:
    runs = make_runs({("default", 1): [100.0] * 3, ("fifty", 1): [150.0] * 3})
    runs["bucket_cap_mb"] = [NAN] * 3 + [50.0] * 3
    (row,) = option_table(runs, {"bucket_cap_mb": [None, 50]}).to_dict("records")
    assert (row["reference"], row["value"], row["throughput_ratio"]) == (None, 50, pytest.approx(1.5))


def test_a_start_takes_no_longer_than_the_run_less_its_training() -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): [180.0]}, train_seconds=20.0)
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
