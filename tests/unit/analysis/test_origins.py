"""The report says what was held equal, what differed, and what nobody knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run

from scalewise.analysis.analysis_spec import DIFFERED, EQUAL_IN_SERIES, HELD_EQUAL, NOT_KNOWN, AnalysisSpec
from scalewise.analysis.experiment_tables import compute

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
