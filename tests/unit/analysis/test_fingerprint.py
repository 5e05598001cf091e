"""What a run met on every host and rank, and records that could not hold it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.planted_records import experiment, write_run

from scalewise.analysis.comparison.comparability import differences, origin_cautions
from scalewise.analysis.comparison.fingerprint import Fingerprint, complete
from scalewise.analysis.scaling import scaling_table
from scalewise.analysis.tables import Tables, collect

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


def test_runs_of_another_cpu_are_not_joined(tmp_path: Path) -> None:
    tables = collected(
        tmp_path, {"d1.r1": {}, "d1.r2": {}, "d2.r1": {}, "d2.r2": {"origin": {"cpu_model": "B CPU"}}}
    )
    first, second, third, other = tables.runs["fingerprint"]
    assert first == second == third != other


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


def test_a_record_that_lacks_conditions_and_has_another_precision_stays_apart() -> None:
    new = Fingerprint({"precision": "fp32", "GPU power limit": "700 W"})
    old = [Fingerprint({"precision": "fp32"}), Fingerprint({"precision": "bf16"})]
    alike, apart = complete([*old, new])[:2]
    assert alike == new
    assert apart == old[1]


def test_a_setting_that_is_missing_is_a_difference() -> None:
    first, second = Fingerprint({"precision": "fp32"}), Fingerprint({"precision": "fp32", "compile": "true"})
    assert complete([first, second]) == [first, second]
