"""Which runs a speedup may join, what differs between the others, and what the provenance lists of both."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted import concluded, spread

from scalewise.analysis.conditions import OTHER_CONDITIONS, origin_cautions
from scalewise.analysis.runs import Tables, collect

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
        write_run(tmp_path / "runs", run, **{"rate": 1000.0 * int(run[1]), **changed})
    repeats = max(int(run.rpartition("r")[2]) for run in runs)
    return collect("study", experiment(repeats=repeats, **keys), tmp_path / "runs")


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
        (on_nodes(versions={"torch": "2.15.0", "driver": "5.1"}), "driver version", "5, not recorded",
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
    (apart,) = (run for _, run in tables.runs.iterrows() if run["outcome"] == OTHER_CONDITIONS)
    assert (apart["run"], apart["reason"]) == ("d2.r1", difference)
    table = concluded(tmp_path, experiment(repeats=1)).scaling
    assert table["speedup"].isna().tolist() == [False, True]
    assert (table["n"].tolist(), table["n_left_out"].tolist()) == ([1, 0], [0, 1])
    assert difference in table["note"].iloc[1]


@pytest.mark.parametrize(
    ("driver", "apart"), [("580.95.05", False), ("590.10.01", True)], ids=["a patch of it", "another branch"]
)
def test_another_driver_keeps_runs_apart_but_for_its_patch_and_is_a_caution(
    tmp_path: Path, driver: str, apart: bool
) -> None:
    runs = {}
    for run, version in (("d1.r1", "580.65.06"), ("d2.r1", driver)):
        found = environment("node-a", versions={"torch": "2.15.0", "driver": version})
        runs[run] = {"origin": NEW | {"environments": [found]}}
    tables = collected(tmp_path, runs)
    assert (OTHER_CONDITIONS in set(tables.runs["outcome"])) == apart
    assert (len(set(tables.runs["fingerprint"])) == 2) == apart
    caution = f"the patch of driver (580.65.06; {driver})"
    assert any(caution in each for each in origin_cautions(tables.origins))


# --- runs under other conditions move no figure of the study ------------------------------------------------


def test_another_kind_of_gpu_moves_no_figure_from_the_records_on(tmp_path: Path) -> None:
    """Half of the runs on 4 devices are on GPUs of half the speed."""
    fast, slow = "A fast GPU", "A slow GPU"

    def write(devices: int, model: str, rates: Sequence[float]) -> None:
        for repeat, rate in enumerate(rates, start=4 if model == slow else 1):
            origin = {"devices": [model] * devices}
            write_run(tmp_path / "runs", f"d{devices}.r{repeat}", rate=rate, origin=origin)

    write(1, fast, spread(1000.0))
    write(4, fast, spread(3600.0))
    write(4, slow, spread(1800.0))
    found = concluded(tmp_path, experiment(devices=[1, 4], decision={"min_efficiency": 0.01}, repeats=6))

    assert found.scaling[["n", "n_left_out"]].to_numpy().tolist() == [[3, 0], [3, 3]]
    assert found.scaling["speedup"].tolist() == pytest.approx([1, 3.6])
    apart = found.runs[found.runs["outcome"] == OTHER_CONDITIONS]
    difference = f"device model is {slow}, not {fast}"
    assert dict(zip(apart["run"], apart["reason"], strict=True)) == dict.fromkeys(
        ("d4.r4", "d4.r5", "d4.r6"), difference
    )
    (action,) = (action for each, action in found.answer.cautions if difference in each)
    assert "`partitions`" in action


# --- what the provenance lists --------------------------------------------------------------------------


def test_the_provenance_lists_every_value_and_what_differs_is_a_caution(tmp_path: Path) -> None:
    usual = {"inputs": HASH, "gpu_limits": [None]}
    met = usual | {"hosts": ["node-a"], "environments": [environment("node-a")]}
    moved = usual | {
        "hosts": ["node-b"],
        "commit": "def456",
        "environments": [environment("node-b", operating_system="Linux 7")],
        "started_at": "2026-01-02T00:00:00+00:00",
        "ended_at": "2026-01-02T00:01:00+00:00",
    }
    for run, origin in (("d1.r1", met), ("d2.r1", moved)):
        write_run(tmp_path / "runs", run, origin=origin, rate=1000.0 * int(run[1]))
    analysis = concluded(tmp_path, experiment(repeats=1))
    found = json.loads((tmp_path / "provenance.json").read_text())
    assert (found["hosts"], found["commit"]) == (["node-a", "node-b"], ["abc123", "def456"])
    assert found["operating system"] == ["Linux 6", "Linux 7"]
    assert found["measured (UTC)"] == ["2026-01-01 00:00:00 to 2026-01-02 00:01:00"]
    assert "global_batch_size 256" in found["settings"][0]
    assert "precision" not in found["settings"][0], "a default"
    assert analysis.answer.certainty != "clear"
    cautions = " ".join(each for each, _ in analysis.answer.cautions)
    assert "The runs on 2 devices are of other days than those on 1 device" in cautions
    assert "the commit of the workflow (abc123; def456)" in cautions
