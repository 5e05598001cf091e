"""Which runs a speedup may join, what differs between the others, and what the provenance lists of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted_tables import ONLY, at, concluded, decision_on, make_runs, read_json, spread

from scalewise.analysis.analysis_spec import DIFFERED, EQUAL_IN_SERIES, HELD_EQUAL, NOT_KNOWN
from scalewise.analysis.analysis_spec import THROUGHPUT as RATE
from scalewise.analysis.comparison.comparability import differences, named, origin_cautions
from scalewise.analysis.comparison.fingerprint import EXCHANGE, PARAMETERS, Fingerprint, complete
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.analysis.tables import Tables, collect
from scalewise.plan.config.experiment import DecisionRule
from scalewise.records import read_summary

HASH = {"dataset": f"1024:{'a' * 64}", "weights": "b" * 64}


def environment(host: str, **changed: Any) -> dict[str, Any]:
    usual = {"cpu_model": "A CPU", "operating_system": "Linux 6", "versions": {"torch": "2.15.0"}}
    return {"hosts": [host]} | usual | changed


def gpu(watts: float = 700.0, clock: int = 1980) -> dict[str, float]:
    return {"power_watts": watts, "sm_clock_mhz": clock, "memory_clock_mhz": 2619}


NEW: dict[str, Any] = {
    "inputs": HASH,
    "environments": [environment("node-a"), environment("node-b")],
    "gpu_limits": [gpu(), gpu()],
    "hosts": ["node-a", "node-b"],
}
"""Provenance of a run on two nodes with a GPU each."""


def collected(tmp_path: Path, runs: Mapping[str, Mapping[str, Any]], **keys: Any) -> Tables:
    """Return the tables of a study on 1 and 2 devices.

    Args:
        runs: Run -> what it has unlike the others.
    """
    for run, changed in runs.items():
        write_run(tmp_path, run, **{"rate": 1000.0 * int(run[1]), **changed})
    repeats = max(int(run.rpartition("r")[2]) for run in runs)
    return collect("study", experiment(repeats=repeats, **keys), tmp_path)


def on_nodes(**changed: Any) -> dict[str, Any]:
    """Return what the provenance has of both nodes, of which the second differs."""
    return {"environments": [environment("node-a"), environment("node-b", **changed)]}


@pytest.mark.parametrize(
    ("changed", "field", "other", "usual"),
    [
        ({"parameters": 400_000}, "parameters of the model", "400,000", "650"),
        ({"launcher": "srun"}, "launcher", "srun", "torchrun"),
        ({"devices": ["CPU process", "NVIDIA H200"]}, "device model", "CPU process, NVIDIA H200",
         "CPU process"),
        ({"inputs": HASH | {"weights": "c" * 64}}, "contents of the weights", "sha256 cccccccccccc",
         "sha256 bbbbbbbbbbbb"),
        ({"inputs": HASH | {"dataset": f"1024:{'d' * 64}"}}, "contents of the dataset", "sha256 dddddddddddd",
         "sha256 aaaaaaaaaaaa"),
        (on_nodes(cpu_model="B CPU"), "CPU model", "A CPU, B CPU", "A CPU"),
        (on_nodes(versions={"torch": "2.16.0"}), "torch version", "2.15.0, 2.16.0", "2.15.0"),
        (on_nodes(versions={"torch": "2.15.0", "driver": "5.1"}), "driver version", "5.1, not recorded",
         "not recorded"),
        ({"gpu_limits": [gpu(), gpu(500.0)]}, "GPU power limit", "500 W, 700 W", "700 W"),
        ({"gpu_limits": [gpu(clock=1410)] * 2}, "GPU maximum clock", "1410 MHz", "1980 MHz"),
    ],
    ids=["parameters", "launcher", "a device", "weights", "data", "a host's CPU", "a host's torch",
         "a host's driver", "a power limit", "a clock"],
)  # fmt: skip
def test_no_speedup_joins_runs_that_differ_and_what_differs_is_named_with_both_values(
    tmp_path: Path, changed: dict[str, Any], field: str, other: str, usual: str
) -> None:
    run = changed if "parameters" in changed else {"origin": NEW | changed}
    tables = collected(tmp_path, {"d1.r1": {"origin": NEW}, "d2.r1": {"origin": NEW} | run})
    difference = f"{field} is {other}, not {usual}"
    conditions = [tables.conditions[found] for found in tables.runs["fingerprint"]]
    assert [str(one) for one in differences(*conditions)] == [difference]
    table = scaling_table(tables.runs, tables.conditions)
    # the other run has another row, next to the planned point that has no run left
    assert table["speedup"].isna().tolist() == [False, True, True]
    assert table["conditions"].tolist() == ["", "", f"{field} {other}"]
    assert table["n"].tolist() == [1, 0, 1]
    assert difference in table["note"].iloc[1]


def test_runs_on_other_nodes_with_another_kernel_commit_and_snakemake_are_joined(tmp_path: Path) -> None:
    moved = NEW | {
        "environments": [environment("node-c"), environment("node-d", operating_system="Linux 7")],
        "commit": "def456",
        "versions": {"torch": "2.15.0", "snakemake": "9.9"},
    }
    tables = collected(tmp_path, {"d1.r1": {"origin": NEW}, "d2.r1": {"origin": moved}})
    (fingerprint,) = set(tables.runs["fingerprint"])
    assert len(fingerprint) == 12
    assert any("the operating system (Linux 6; Linux 7)" in each for each in origin_cautions(tables.origins))


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ({}, {}, []),
        ({}, {"precision": "bf16"}, [("precision", "fp32", "bf16")]),
        ({}, {"momentum": 0.0}, [("momentum", "0.9", "0.0")]),
        ({}, {"bucket_cap_mb": 5}, [("bucket_cap_mb", "default", "5")]),
        # strong scaling keeps the global batch, and weak scaling the one per device
        ({"scaling": "weak"}, {"scaling": "weak"}, [("batch_size_per_device", "256", "128")]),
    ],
    ids=["none", "precision", "momentum", "one without a value", "batch of weak scaling"],
)
def test_settings_that_differ_between_device_counts_are_named_with_both_values(
    tmp_path: Path, one: dict[str, Any], two: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    written = write_run(tmp_path, "d1.r1", settings=one), write_run(tmp_path, "d2.r3", settings=two)
    first, other = (
        Fingerprint.of(record.definition, record.provenance) for record in map(read_summary, written)
    )
    assert differences(first.conditions, other.conditions) == expected
    assert (first.id == other.id) == (expected == [])


def imported(**files: str) -> dict[str, str]:
    return {f"contents of the imported /home/a/project/{name}.py": value for name, value in files.items()}


def test_imported_files_are_named_last_by_name_and_folder_and_without_hashes() -> None:
    first = imported(model="sha256 a", data="sha256 b") | {"precision": "fp32"}
    other = imported(model="sha256 c", loader="sha256 b") | {"precision": "bf16"}
    found = differences(first, other)
    assert named(found) == (
        "precision is bf16, not fp32; project/model.py differs; project/data.py was imported by some runs "
        "only; and 1 other file"
    )
    assert [difference.second_side for difference in found] == [
        "precision bf16", "another project/model.py", "without project/data.py", "with project/loader.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("differing", "more"),
    [
        (imported(**{f"m{number}": "x" for number in range(63)}), "; and 60 other files"),
        ({f"option {number}": "x" for number in range(5)} | imported(model="x"), "; and 3 other differences"),
    ],
)
def test_a_sentence_names_three_differences_and_counts_the_others(
    differing: dict[str, str], more: str
) -> None:
    sentence = named(differences(differing, dict.fromkeys(differing, "y")))
    assert sentence.count(";") == 3
    assert sentence.endswith(more)


# --- records that lack conditions ------------------------------------------------------------------------


def test_a_record_that_lacks_conditions_is_joined_with_those_that_agree_only(tmp_path: Path) -> None:
    alike = {"d1.r1": {}, "d1.r2": {"origin": NEW}, "d2.r1": {"origin": NEW}, "d2.r2": {}}
    tables = collected(tmp_path / "alike", alike)
    assert tables.runs["fingerprint"].nunique() == 1
    (conditions,) = tables.conditions.values()
    assert conditions["GPU power limit"] == "700 W"
    capped = NEW | {"gpu_limits": [gpu(500.0)] * 2}
    differing = {"d1.r1": {"origin": NEW}, "d1.r2": {}, "d2.r1": {"origin": NEW}, "d2.r2": {"origin": capped}}
    tables = collected(tmp_path / "differing", differing)
    assert tables.runs["fingerprint"].nunique() == 3
    note = scaling_table(tables.runs, tables.conditions)["note"].iloc[0]
    assert "1 of 2 runs on 1 device is not comparable with the baseline: GPU power limit is" in note
    assert "not recorded" in note


@pytest.mark.parametrize("condition", ["GPU power limit", PARAMETERS, EXCHANGE])
def test_a_record_may_lack_a_condition_and_no_setting(condition: str) -> None:
    new = Fingerprint({"precision": "fp32", condition: "known"})
    old = [Fingerprint({"precision": "fp32"}), Fingerprint({"precision": "bf16"})]
    assert list(complete([*old, new])[:2]) == [new, old[1]]
    compiled = Fingerprint({"precision": "fp32", "compile": "true"})
    assert complete([old[0], compiled]) == [old[0], compiled]


# --- runs under other conditions move no figure of the study ------------------------------------------------


def test_two_kinds_of_other_runs_are_never_mixed_though_they_differ_alike_at_first() -> None:
    known = {
        name: dict(zip(("CPU model", "GPU", "driver version"), values, strict=True))
        for name, values in {"a": "XG1", "b": "YH2", "c": "YH3"}.items()
    }
    runs = make_runs({(ONLY, 1): [100.0] * 3, (ONLY, 2): [190.0, 150.0, 50.0]})
    runs["fingerprint"] = ["a", "a", "a", "a", "b", "c"]
    table = scaling_table(runs, known)
    assert table.loc[table["conditions"] != "", RATE].tolist() == [150.0, 50.0]


def test_another_kind_of_gpu_has_its_own_rows_and_curves_from_the_records_on(tmp_path: Path) -> None:
    """Half of the runs on 4 devices are on GPUs of half the speed."""
    fast, slow = "A fast GPU", "A slow GPU"

    def tables(repeats: int) -> tuple[dict[str, Any], pd.DataFrame]:
        spec = experiment(devices=[1, 4], decision={"min_efficiency": 0.01}, repeats=repeats)
        return concluded(tmp_path, spec), pd.read_csv(tmp_path / "scaling.csv")

    def write(devices: int, rates: Sequence[float], model: str, first: int = 1, **origin: Any) -> None:
        for repeat, rate in enumerate(rates, start=first):
            name = f"d{devices}.r{repeat}"
            write_run(tmp_path / "runs", name, rate=rate, origin={"devices": [model] * devices} | origin)

    write(1, spread(1000.0), fast)
    write(4, spread(3600.0), fast)
    without, expected = tables(3)
    write(4, spread(1800.0), slow, first=4, ended_at="2026-01-01T00:03:00+00:00")
    mixed, scaling = tables(6)

    planned = scaling[scaling["conditions"].isna()].reset_index(drop=True)
    figures = ["n", RATE, "speedup_low", "wall_seconds", "device_hours"]
    pd.testing.assert_frame_equal(planned[figures], expected[figures])
    assert planned["n_not_comparable"].tolist() == [0, 3]
    basis = f"{without['card']['basis']} 3 runs are not comparable: see the cautions."
    assert mixed["card"] == without["card"] | {"basis": basis}
    assert [mixed[key] for key in ("numbers", "clear")] == [without[key] for key in ("numbers", "clear")]
    (other,) = (row for _, row in scaling[scaling["conditions"].notna()].iterrows())
    assert (other["devices"], other["n"], other["series"]) == (4, 3, f"all runs (device model {slow})")
    assert other[RATE] == pytest.approx(1800, rel=1e-3)
    curves = pd.read_csv(tmp_path / "epochs.csv")
    assert set(curves.loc[curves["series"] == other["series"], "run"]) == {"d4.r4", "d4.r5", "d4.r6"}
    (caution,) = (each for each in mixed["cautions"] if f"device model is {slow}, not {fast}" in each)
    assert caution.endswith("`partitions` in the site file compare kinds of GPU.")


# --- published figures --------------------------------------------------------------------------------
# Sources: Sigma2's guide for Olivia (WideResNet on CIFAR-100), NVIDIA's ResNet-50 for PyTorch on a DGX A100,
# Clemson's guide for Palmetto (ResNet-18 on CIFAR-10).

SINGLE = {"precision": "fp32", "batch_size_per_device": "32", "workers": "0", "optimizer": "plain SGD"}
SEVERAL = {"precision": "fp16", "batch_size_per_device": "256", "workers": "8", "optimizer": "momentum"}


def as_runs(
    published: Sequence[tuple[int, float, Mapping[str, str]]], **columns: Any
) -> tuple[pd.DataFrame, dict[str, Mapping[str, str]]]:
    """Return a table of one series with its conditions, as if all belonged together.

    Args:
        published: Devices, samples/s and conditions of each run.
    """
    met = [Fingerprint(conditions) for _, _, conditions in published]
    runs = make_runs({(ONLY, devices): [rate] for devices, rate, _ in published})
    usual = {"fingerprint": [each.id for each in met], "wall_seconds": None, "final_accuracy": None}
    return runs.assign(**usual | columns), {each.id: each.conditions for each in met}


def test_olivias_unlike_baseline_gives_no_speedup_and_its_alike_runs_do() -> None:
    runs, conditions = as_runs([(1, 2598.0, SINGLE), (4, 36927.0, SEVERAL), (8, 62450.0, SEVERAL)])
    table = scaling_table(runs, conditions)
    planned, others = (table[(table["conditions"] == "") == own] for own in (True, False))
    for devices in (4, 8):
        (row,) = (row for _, row in planned.iterrows() if row["devices"] == devices)
        assert row[["speedup", "parallel_efficiency", RATE]].isna().all()
        assert row["n_not_comparable"] == 1
        assert "precision is fp16, not fp32; batch_size_per_device is 256, not 32" in row["note"]
    assert others["baseline_devices"].tolist() == [4, 4]
    assert others["speedup"].round(2).tolist() == [1.0, 1.69]
    assert others["parallel_efficiency"].iloc[1] == pytest.approx(0.846, abs=5e-4)
    decision = decision_on(runs, DecisionRule(min_efficiency=0.3), conditions=conditions)
    assert decision.devices in {None, 1}
    assert "precision is fp16, not fp32" in json.dumps(decision.as_dict())
    for claimed in ("14.2", "15.2", "3.55", "3.74"):
        assert claimed not in table.to_csv() + json.dumps(decision.as_dict())


def test_nvidias_mixed_precision_is_an_options_gain_and_never_part_of_a_speedup() -> None:
    tf32, amp = {"precision": "tf32"}, {"precision": "amp"}
    runs, conditions = as_runs([(1, 938.0, tf32), (8, 7248.0, tf32)])
    assert at(scaling_table(runs, conditions), 8)["speedup"] == pytest.approx(7.73, abs=5e-3)
    mixed, both = as_runs([(1, 938.0, tf32), (8, 16621.0, amp)])
    table = scaling_table(mixed, both)
    assert table.loc[table["devices"] == 8, "speedup"].isna().all()
    assert "17.7" not in table.to_csv()
    of_one = [
        as_runs([(1, rate, met)], precision=met["precision"])[0] for rate, met in ((938, tf32), (2470, amp))
    ]
    (row,) = option_table(pd.concat(of_one), {"precision": ["tf32", "amp"]}, both).to_dict("records")
    assert (round(row["throughput_ratio"], 2), row["also_differs"]) == (2.63, "")


def test_palmettos_walls_give_speedups_that_are_said_to_include_start_up() -> None:
    walls = {1: 151.0, 2: 111.0, 4: 96.0}
    runs, _ = as_runs([(devices, 1.0, {}) for devices in walls])
    runs = runs.assign(wall_seconds=list(walls.values()), device_hours=None, **{RATE: float("nan")})
    table = scaling_table(runs)
    for column in ("speedup", "wall_speedup"):
        assert table[column].round(2).tolist() == [1.0, 1.36, 1.57]
    assert (table["note"] == "of walls, which include start-up").all()
    assert table[RATE].isna().all()
    assert table["device_hours"].tolist() == pytest.approx([151 / 3600, 222 / 3600, 384 / 3600])
    decision = decision_on(runs, DecisionRule(min_efficiency=0.3))
    # single runs that scatter by 5 %: 1.16x is 1.4 standard errors above 1.05x, 1.36x is 3.7
    assert (decision.devices, decision.card.figures[0].text) == (2, "1.36x")
    assert "about 1.16 times as fast as 2 devices" in decision.cautions[0]
    assert "walls, which include start-up" in " ".join(decision.cautions)


# --- what the provenance lists --------------------------------------------------------------------------


def origin(host: str, **changed: Any) -> dict[str, Any]:
    recorded = {"hosts": [host], "inputs": HASH, "environments": [environment(host)], "gpu_limits": [None]}
    return recorded | changed


def listed(
    tmp_path: Path, origins: Mapping[str, dict[str, Any]], **swept: list[Any]
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Return ``provenance.json`` and ``decision.json`` of a study on 1 and 2 devices."""
    for run, met in origins.items():
        options = {name: run.split(".")[1].endswith("on") for name in swept}
        write_run(tmp_path / "runs", run, origin=met, options=options, rate=1000.0 * int(run[1]))
    decision = concluded(tmp_path, experiment(repeats=1, sweep=swept))
    return read_json(tmp_path / "provenance.json"), decision


def test_all_that_is_equal_is_listed_and_all_that_is_not(tmp_path: Path) -> None:
    moved = origin(
        "node-b",
        commit="def456",
        environments=[environment("node-b", operating_system="Linux 7")],
        started_at="2026-01-02T00:00:00+00:00",
        ended_at="2026-01-02T00:01:00+00:00",
    )
    found, decision = listed(tmp_path, {"d1.r1": origin("node-a"), "d2.r1": moved})
    assert {
        "precision fp32", "global_batch_size 256", "parameters of the model 650",
        "contents of the dataset sha256 aaaaaaaaaaaa", "CPU model A CPU", "torch version 2.15.0",
    } <= set(found[HELD_EQUAL])  # fmt: skip
    assert found[DIFFERED] == [
        "devices", "repeat and seed", "batch size per device", "hosts (node-a, node-b)",
        "operating system (Linux 6, Linux 7)", "commit (abc123, def456)",
        "day (UTC) (2026-01-01, 2026-01-02)",
    ]  # fmt: skip
    assert found[EQUAL_IN_SERIES] == found[NOT_KNOWN] == []
    assert not decision["clear"]
    assert decision["cautions"][0].startswith("Device count and nodes cannot be told apart")
    cautions = " ".join(decision["cautions"])
    for caution in (
        "Device count and time cannot be told apart",
        "the commit of the workflow (abc123; def456)",
        "the operating system (Linux 6; Linux 7)",
    ):
        assert caution in cautions, caution


def test_a_swept_option_is_equal_within_its_series_only(tmp_path: Path) -> None:
    names = [f"d{devices}.bucket-view-{side}.r1" for devices in (1, 2) for side in ("off", "on")]
    found, _ = listed(tmp_path, dict.fromkeys(names, origin("node-a")), gradient_as_bucket_view=[False, True])
    assert found[EQUAL_IN_SERIES] == ["gradient_as_bucket_view (false, true)"]
    assert {"hosts node-a", "commit abc123", "day (UTC) 2026-01-01"} <= set(found[HELD_EQUAL])
    assert found[DIFFERED] == ["devices", "repeat and seed", "batch size per device"]


def test_limits_that_gpus_do_not_report_are_listed(tmp_path: Path) -> None:
    silent = {"devices": ["A GPU"], "hosts": ["node-a", "node-b"]}
    found, _ = listed(tmp_path, {"d1.r1": silent, "d2.r1": silent | {"devices": ["A GPU"] * 2}})
    assert found[NOT_KNOWN] == ["power limits and clocks of GPUs, in 2 of 2 runs"]
