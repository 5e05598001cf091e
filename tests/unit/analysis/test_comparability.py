"""Which runs a speedup may join, what differs between the others, and what the provenance lists of both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted_tables import ALONE, decision_on

from scalewise.analysis.analysis_spec import DIFFERED, EQUAL_IN_SERIES, HELD_EQUAL, NOT_KNOWN, AnalysisSpec
from scalewise.analysis.comparison.comparability import differences, named, origin_cautions
from scalewise.analysis.comparison.fingerprint import (
    EXCHANGE,
    PARAMETERS,
    PRECISION,
    Fingerprint,
    complete,
)
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.analysis.tables import Tables, collect
from scalewise.plan.config.experiment import DecisionRule
from scalewise.records import RunRecord, read_summary


def summary_of(tmp_path: Path, run: str = "d2.r1", **changed: Any) -> RunRecord:
    """The summary of a run that is written and read back."""
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    return read_summary(write_run(folder, run, **changed))


def fingerprint(summary: RunRecord) -> Fingerprint:
    return Fingerprint.of(summary.definition, summary.provenance)


def test_runs_that_differ_in_devices_repeat_host_and_commit_have_one_fingerprint(
    tmp_path: Path,
) -> None:
    first = fingerprint(summary_of(tmp_path, "d1.r1"))
    other = fingerprint(summary_of(tmp_path, "d4.r3", origin={"hosts": ["node-b"], "commit": "def456"}))
    assert first.id == other.id
    assert len(first.id) == 12
    assert differences(first.conditions, other.conditions) == []


@pytest.mark.parametrize(
    ("changed", "field", "values"),
    [
        ({"settings": {"precision": "bf16"}}, "precision", ("fp32", "bf16")),
        ({"settings": {"momentum": 0.0}}, "momentum", ("0.9", "0.0")),
        ({"settings": {"bucket_cap_mb": 5}}, "bucket_cap_mb", ("default", "5")),
        ({"settings": {"channels_last": True}}, "channels_last", ("false", "true")),
        ({"origin": {"cpu_model": "B CPU"}}, "CPU model", ("A CPU", "B CPU")),
        ({"origin": {"launcher": "srun"}}, "launcher", ("torchrun", "srun")),
        (
            {"origin": {"devices": ["CPU process", "NVIDIA H200"]}},
            "device model",
            ("CPU process", "CPU process, NVIDIA H200"),
        ),
        ({"origin": {"versions": {"torch": "2.16.0"}}}, "torch version", ("2.15.0", "2.16.0")),
        (
            {"origin": {"versions": {"torch": "2.15.0", "driver": "580.1"}}},
            "driver version",
            ("not recorded", "580.1"),
        ),
    ],
)
def test_whatever_else_differs_is_named_with_both_values(
    tmp_path: Path, changed: dict[str, Any], field: str, values: tuple[str, str]
) -> None:
    first, other = fingerprint(summary_of(tmp_path)), fingerprint(summary_of(tmp_path, **changed))
    assert first.id != other.id
    assert differences(first.conditions, other.conditions) == [(field, *values)]


def test_a_newer_snakemake_changes_no_throughput(tmp_path: Path) -> None:
    newer = summary_of(tmp_path, origin={"versions": {"torch": "2.15.0", "snakemake": "9.9"}})
    assert fingerprint(summary_of(tmp_path)).id == fingerprint(newer).id


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


def test_strong_scaling_keeps_the_global_batch_and_weak_the_one_per_device(
    tmp_path: Path,
) -> None:
    small, large = summary_of(tmp_path, "d1.r1"), summary_of(tmp_path, "d2.r1")
    assert small.definition.batch_size_per_device != large.definition.batch_size_per_device
    assert fingerprint(small).id == fingerprint(large).id
    weak = [summary_of(tmp_path, f"d{n}.r1", settings={"scaling": "weak"}) for n in (1, 2)]
    assert differences(*(fingerprint(summary).conditions for summary in weak)) == [
        ("batch_size_per_device", "256", "128")
    ]


# --- in a table of runs ------------------------------------------------------------------------------

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


def collected(tmp_path: Path, runs: Mapping[str, Mapping[str, Any]]) -> Tables:
    """The tables of a study on 1 and 2 devices, by what its runs have unlike the others."""
    for run, changed in runs.items():
        devices = int(run[1])
        write_run(tmp_path, run, **{"rate": 1000.0 * devices, **changed})
    repeats = max(int(run.rpartition("r")[2]) for run in runs)
    return collect("study", experiment(repeats=repeats), tmp_path)


@pytest.mark.parametrize(
    ("changed", "field", "values"),
    [
        ({"parameters": 400_000}, "parameters of the model", ("650", "400,000")),
        (
            {"origin": {"inputs": HASH | {"weights": "c" * 64}}},
            "contents of the weights",
            ("sha256 bbbbbbbbbbbb", "sha256 cccccccccccc"),
        ),
        (
            {"origin": {"inputs": HASH | {"dataset": f"1024:{'d' * 64}"}}},
            "contents of the dataset",
            ("sha256 aaaaaaaaaaaa", "sha256 dddddddddddd"),
        ),
        (
            {"origin": {"environments": [environment("node-a"), environment("node-b", cpu_model="B CPU")]}},
            "CPU model",
            ("A CPU", "A CPU, B CPU"),
        ),
        (
            {
                "origin": {
                    "environments": [
                        environment("node-a"),
                        environment("node-b", versions={"torch": "2.15.0", "driver": "580.1"}),
                    ]
                }
            },
            "driver version",
            ("not recorded", "580.1, not recorded"),
        ),
        ({"origin": {"gpu_limits": [gpu(), gpu(500.0)]}}, "GPU power limit", ("700 W", "500 W, 700 W")),
        ({"origin": {"gpu_limits": [gpu(clock=1410)] * 2}}, "GPU maximum clock", ("1980 MHz", "1410 MHz")),
    ],
    ids=["parameters", "weights", "data", "a host's CPU", "a host's driver", "a power limit", "a clock"],
)
def test_no_speedup_joins_runs_of_another_model_or_on_other_hardware(
    tmp_path: Path, changed: dict[str, Any], field: str, values: tuple[str, str]
) -> None:
    other = {"parameters": changed.get("parameters", 650), "origin": NEW | changed.get("origin", {})}
    tables = collected(tmp_path, {"d1.r1": {"origin": NEW}, "d2.r1": other})
    assert [
        str(one) for one in differences(*(tables.conditions[id_] for id_ in tables.runs["fingerprint"]))
    ] == [f"{field} is {values[1]}, not {values[0]}"]
    table = scaling_table(tables.runs, "strong", tables.conditions)
    # the other run has a row of its own, beside the planned point that has no run left
    assert table["speedup"].isna().tolist() == [False, True, True]
    assert table["conditions"].tolist() == ["", "", f"{field} {values[1]}"]
    assert table["n"].tolist() == [1, 0, 1]
    assert f"{field} is {values[1]}, not {values[0]}" in table["note"].iloc[1]


def test_other_nodes_of_one_kind_and_another_kernel_on_one_of_them_are_joined(tmp_path: Path) -> None:
    moved = NEW | {"environments": [environment("node-c"), environment("node-d", operating_system="Linux 7")]}
    tables = collected(tmp_path, {"d1.r1": {"origin": NEW}, "d2.r1": {"origin": moved}})
    assert tables.runs["fingerprint"].nunique() == 1
    (caution,) = origin_cautions(tables.origins)
    assert "the operating system (Linux 6; Linux 7)" in caution


def test_a_record_that_lacks_conditions_is_joined_with_those_that_agree(tmp_path: Path) -> None:
    tables = collected(
        tmp_path, {"d1.r1": {}, "d1.r2": {"origin": NEW}, "d2.r1": {"origin": NEW}, "d2.r2": {}}
    )
    assert tables.runs["fingerprint"].nunique() == 1
    (conditions,) = tables.conditions.values()
    assert conditions["GPU power limit"] == "700 W"


def test_a_record_that_lacks_conditions_does_not_join_those_that_differ(tmp_path: Path) -> None:
    capped = NEW | {"gpu_limits": [gpu(500.0)] * 2}
    tables = collected(
        tmp_path,
        {"d1.r1": {"origin": NEW}, "d1.r2": {}, "d2.r1": {"origin": NEW}, "d2.r2": {"origin": capped}},
    )
    assert tables.runs["fingerprint"].nunique() == 3
    note = scaling_table(tables.runs, "strong", tables.conditions)["note"].iloc[0]
    assert "1 of 2 runs on 1 device is not comparable with the baseline: GPU power limit is" in note
    assert "not recorded" in note


@pytest.mark.parametrize("condition", ["GPU power limit", PARAMETERS, EXCHANGE, PRECISION])
def test_a_record_that_lacks_a_condition_and_has_another_precision_stays_apart(condition: str) -> None:
    new = Fingerprint({"precision": "fp32", condition: "known"})
    old = [Fingerprint({"precision": "fp32"}), Fingerprint({"precision": "bf16"})]
    alike, apart = complete([*old, new])[:2]
    assert alike == new
    assert apart == old[1]


def test_a_setting_that_is_missing_is_a_difference() -> None:
    first, second = Fingerprint({"precision": "fp32"}), Fingerprint({"precision": "fp32", "compile": "true"})
    assert complete([first, second]) == [first, second]


# --- published figures --------------------------------------------------------------------------------
# Sources: Sigma2's guide for Olivia (WideResNet on CIFAR-100), NVIDIA's ResNet-50 for PyTorch on a DGX A100,
# Clemson's guide for Palmetto (ResNet-18 on CIFAR-10).


RATE = "throughput_samples_per_second"
SINGLE = {"precision": "fp32", "batch_size_per_device": "32", "workers": "0", "optimizer": "plain SGD"}
SEVERAL = {"precision": "fp16", "batch_size_per_device": "256", "workers": "8", "optimizer": "momentum"}
OLIVIA: list[dict[str, Any]] = [
    {"devices": 1, RATE: 2598.0, "final_accuracy": 0.74, "met": SINGLE},
    {"devices": 4, RATE: 36927.0, "final_accuracy": 0.69, "met": SEVERAL},
    {"devices": 8, RATE: 62450.0, "final_accuracy": None, "met": SEVERAL},
]
NVIDIA: list[dict[str, Any]] = [
    {"devices": devices, RATE: rate, "precision": precision, "met": {"precision": precision}}
    for precision, rates in (("tf32", {1: 938.0, 8: 7248.0}), ("amp", {1: 2470.0, 8: 16621.0}))
    for devices, rate in rates.items()
]
PALMETTO: list[dict[str, Any]] = [
    {"devices": devices, RATE: None, "wall_seconds": wall, "met": {}}
    for devices, wall in ((1, 151.0), (2, 111.0), (4, 96.0))
]


def as_runs(published: list[dict[str, Any]]) -> tuple[pd.DataFrame, dict[str, Mapping[str, str]]]:
    """A table of one series, as somebody loads it who believes that all belongs together."""
    met = [Fingerprint(each["met"]) for each in published]
    runs = pd.DataFrame(published).drop(columns="met").assign(series=ALONE, outcome="completed")
    runs = runs.assign(fingerprint=[each.id for each in met], **{RATE: runs[RATE].astype(float)})
    defaults = {"wall_seconds": float("nan"), "final_accuracy": float("nan")}
    missing = {name: value for name, value in defaults.items() if name not in runs}
    return runs.assign(**missing), {each.id: each.conditions for each in met}


def at(table: pd.DataFrame, devices: int) -> pd.Series:
    return table[table["devices"] == devices].iloc[0]


def test_olivias_table_shows_throughput_and_no_speedup_over_its_unlike_baseline() -> None:
    runs, conditions = as_runs(OLIVIA)
    table = scaling_table(runs, "strong", conditions)
    planned, others = (table[(table["conditions"] == "") == own] for own in (True, False))
    assert at(others, 4)[RATE] == pytest.approx(36927.0)
    like_for_like = at(others, 8)
    assert like_for_like["baseline_devices"] == 4
    assert round(like_for_like["speedup"], 2) == 1.69
    assert round(like_for_like["parallel_efficiency"], 3) == 0.846
    for devices in (4, 8):
        row = at(planned, devices)
        assert row[["speedup", "parallel_efficiency", "karp_flatt_fraction", RATE]].isna().all()
        assert row["n_not_comparable"] == 1
        assert "precision is fp16, not fp32; batch_size_per_device is 256, not 32" in row["note"]
    for claimed in ("14.21", "15.21", "3.55", "3.74"):
        assert claimed not in table.to_csv()


def test_a_decision_on_olivias_table_claims_no_speedup_over_one_gpu() -> None:
    runs, conditions = as_runs(OLIVIA)
    decision = decision_on(runs, DecisionRule(min_efficiency=0.3), conditions=conditions)
    assert decision.devices in {None, 1}
    said = json.dumps(decision.as_dict())
    assert "precision is fp16, not fp32" in said
    for claimed in ("14.2", "15.2"):
        assert claimed not in said


@pytest.mark.parametrize(("precision", "speedup"), [("tf32", 7.73), ("amp", 6.73)])
def test_nvidias_eight_a100_have_a_speedup_in_each_precision(precision: str, speedup: float) -> None:
    table = scaling_table(as_runs([each for each in NVIDIA if each["precision"] == precision])[0], "strong")
    assert round(at(table, 8)["speedup"], 2) == speedup


def test_nvidias_mixed_precision_is_an_options_gain_and_never_part_of_a_speedup() -> None:
    runs, conditions = as_runs(NVIDIA)
    on_one = runs[runs["devices"] == 1].assign(peak_memory_bytes=1.0)
    (row,) = option_table(on_one, {"precision": ["tf32", "amp"]}, conditions).to_dict("records")
    assert (round(row["throughput_ratio"], 2), row["also_differs"]) == (2.63, "")
    table = scaling_table(runs.iloc[[0, 3]], "strong", conditions)
    assert pd.isna(at(table, 8)["speedup"])
    assert "17.7" not in table.to_csv()


def test_palmettos_walls_give_speedups_that_are_said_to_include_start_up() -> None:
    runs, _ = as_runs(PALMETTO)
    table = scaling_table(runs, "strong")
    for column in ("speedup", "wall_speedup"):
        assert table[column].round(2).tolist() == [1.0, 1.36, 1.57]
    assert (table["note"] == "of walls, which include start-up").all()
    assert table[RATE].isna().all()
    assert table["device_hours"].tolist() == pytest.approx([151 / 3600, 222 / 3600, 384 / 3600])
    decision = decision_on(runs, DecisionRule(min_efficiency=0.3))
    # single runs that scatter by 5 %: 1.16x is 1.4 standard errors above 1.05x, 1.36x is 3.7
    assert (decision.devices, decision.card.figures[0].text) == (2, "1.36x")
    assert "a run takes 2.52 minutes (n = 1)" in decision.alternatives[0]
    assert "1.57x as fast as 1" in decision.alternatives[1]
    assert "1.01 to 1.33 times as fast as 2 devices" in decision.cautions[0]
    assert "walls, which include start-up" in " ".join(decision.cautions)


# --- what the provenance lists --------------------------------------------------------------------------


Results = tuple[dict[str, list[str]], dict[str, Any]]

ENVIRONMENT = {"cpu_model": "A CPU", "operating_system": "Linux 6", "versions": {"torch": "2.15.0"}}


def origin(host: str, **changed: Any) -> dict[str, Any]:
    recorded = {
        "hosts": [host],
        "inputs": {"dataset": f"1024:{'a' * 64}"},
        "environments": [{"hosts": [host]} | ENVIRONMENT],
        "gpu_limits": [None],
    }
    return recorded | changed


def results(tmp_path: Path, origins: dict[str, dict[str, Any]], **swept: list[Any]) -> Results:
    """What ``provenance.json`` and ``decision.json`` say of a study on 1 and 2 devices."""
    folder = tmp_path / "runs"
    for run, met in origins.items():
        options = {name: run.split(".")[1].endswith("on") for name in swept}
        devices = int(run[1])
        write_run(folder, run, origin=met, options=options, rate=1000.0 * devices)
    repeats = max(int(run.rpartition("r")[2]) for run in origins)
    spec = experiment(repeats=repeats, sweep=swept)
    compute(AnalysisSpec("study", spec), folder, tmp_path / "out")
    found = [
        json.loads((tmp_path / "out" / name).read_text()) for name in ("provenance.json", "decision.json")
    ]
    return found[0], found[1]


def test_all_that_is_equal_is_listed_and_all_that_is_not(tmp_path: Path) -> None:
    moved = origin("node-b", commit="def456", started_at="2026-01-02T00:00:00+00:00")
    moved |= {"environments": [{"hosts": ["node-b"]} | ENVIRONMENT | {"operating_system": "Linux 7"}]}
    moved |= {"ended_at": "2026-01-02T00:01:00+00:00"}
    found, decision = results(tmp_path, {"d1.r1": origin("node-a"), "d2.r1": moved})
    for held in (
        "precision fp32",
        "global_batch_size 256",
        "parameters of the model 650",
        "contents of the dataset sha256 aaaaaaaaaaaa",
        "CPU model A CPU",
        "torch version 2.15.0",
    ):
        assert held in found[HELD_EQUAL], held
    assert found[DIFFERED] == [
        "devices",
        "repeat and seed",
        "batch size per device",
        "hosts (node-a, node-b)",
        "operating system (Linux 6, Linux 7)",
        "commit (abc123, def456)",
        "day (UTC) (2026-01-01, 2026-01-02)",
    ]
    assert found[EQUAL_IN_SERIES] == found[NOT_KNOWN] == []
    assert not decision["clear"]
    assert decision["cautions"][0].startswith("Device count and nodes cannot be told apart")
    cautions = " ".join(decision["cautions"])
    for caution in (
        "Device count and nodes cannot be told apart (1 device: node-a in 1 run; 2 devices: node-b in 1 run)",
        "Device count and time cannot be told apart",
        "the commit of the workflow (abc123; def456)",
        "the operating system (Linux 6; Linux 7)",
    ):
        assert caution in cautions, caution


def test_a_swept_option_is_equal_within_its_series_alone(tmp_path: Path) -> None:
    names = [f"d{devices}.bucket-view-{side}.r1" for devices in (1, 2) for side in ("off", "on")]
    found, _ = results(
        tmp_path, {name: origin("node-a") for name in names}, gradient_as_bucket_view=[False, True]
    )
    assert found[EQUAL_IN_SERIES] == ["gradient_as_bucket_view (false, true)"]
    assert {"hosts node-a", "commit abc123", "day (UTC) 2026-01-01"} <= set(found[HELD_EQUAL])
    assert found[DIFFERED] == ["devices", "repeat and seed", "batch size per device"]


def test_limits_that_gpus_do_not_tell_are_said(tmp_path: Path) -> None:
    silent = {"devices": ["A GPU"], "hosts": ["node-a", "node-b"]}
    found, _ = results(tmp_path, {"d1.r1": silent, "d2.r1": silent | {"devices": ["A GPU"] * 2}})
    assert found[NOT_KNOWN] == [
        "power limits and clocks of GPUs, in 2 of 2 runs",
    ]


def test_another_kind_of_gpu_moves_no_figure_of_the_study(tmp_path: Path) -> None:
    """Half of the runs on 4 devices are on GPUs of half the speed."""
    rates, fast, slow = {1: 1000.0, 2: 1900.0, 4: 3600.0}, "A fast GPU", "A slow GPU"
    scatter = (0.99, 1.0, 1.01)

    def tables(repeats: int) -> tuple[dict[str, Any], pd.DataFrame]:
        spec = experiment(devices=list(rates), decision={"min_efficiency": 0.01}, repeats=repeats)
        compute(AnalysisSpec("study", spec), tmp_path / "runs", tmp_path)
        decision = json.loads((tmp_path / "decision.json").read_text(encoding="utf-8"))
        return decision, pd.read_csv(tmp_path / "scaling.csv")

    for devices, rate in rates.items():
        for repeat, factor in enumerate(scatter, start=1):
            run = f"d{devices}.r{repeat}"
            write_run(tmp_path / "runs", run, rate=rate * factor, origin={"devices": [fast] * devices})
    alone, expected = tables(3)
    for repeat, factor in enumerate(scatter, start=4):
        met = {"devices": [slow] * 4, "ended_at": "2026-01-01T00:03:00+00:00"}
        write_run(tmp_path / "runs", f"d4.r{repeat}", rate=1800.0 * factor, origin=met)
    mixed, scaling = tables(6)

    own = scaling[scaling["conditions"].isna()].reset_index(drop=True)
    figures = ["n", "throughput_samples_per_second", "speedup_low", "wall_seconds", "device_hours"]
    pd.testing.assert_frame_equal(own[figures], expected[figures])
    assert mixed["numbers"] == alone["numbers"]
    (other,) = (row for _, row in scaling[scaling["conditions"].notna()].iterrows())
    assert (other["devices"], other["n"], other["series"]) == (4, 3, f"all runs (device model {slow})")
    assert other["throughput_samples_per_second"] == pytest.approx(1800, rel=1e-3)
    curves = pd.read_csv(tmp_path / "epochs.csv")
    assert set(curves.loc[curves["series"] == other["series"], "run"]) == {"d4.r4", "d4.r5", "d4.r6"}
    (caution,) = (each for each in mixed["cautions"] if f"device model is {slow}, not {fast}" in each)
    assert caution.endswith("`partitions` in the site file compare kinds of GPU.")
