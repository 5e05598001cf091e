"""From run folders on disk to tables and an answer: what is there, and why the rest is not."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, measurements, provenance, run_record, write_run
from tests.small_runs import definition
from tests.unit.analysis.planted import ONLY, analysis_of, at, concluded, make_runs

from scalewise.analysis.mfu import mfu_columns, peak_of
from scalewise.analysis.runs import RUN_COLUMNS, collect
from scalewise.config.experiment import Experiment
from scalewise.plan.runs import Options
from scalewise.records import EPOCHS, RANKS, RECORD, Window


def with_target(**changed: Any) -> Experiment:
    return experiment(**{"repeats": 2, "target": {"accuracy": 0.9}} | changed)


def test_a_completed_run_brings_its_figures_and_what_the_monitor_saw(tmp_path: Path) -> None:
    seen: dict[str, Any] = {
        "mean_utilization": 0.4, "lowest_utilization": 0.3, "energy_joules": 512.0, "throttled": True,
        "communication_fraction": 0.5, "loader": "workers", "monitor_note": "rank 1: hot",
    }  # fmt: skip
    write_run(tmp_path, "d2.r1", rate=1234.5, **seen)
    write_run(tmp_path, "d2.r2")
    runs = collect("study", with_target(devices=[2]), tmp_path).runs
    assert list(runs.columns) == RUN_COLUMNS
    row, unwatched = runs.to_dict("records")
    assert (row["run"], row["series"], row["nodes"], row["devices_per_node"]) == ("d2.r1", "all runs", 1, 2)
    assert (unwatched["outcome"], unwatched["reason"]) == ("completed", "")
    assert row["outcome"] == "disturbed"
    assert "lowered clocks" in row["reason"]
    assert row["throughput_samples_per_second"] == 1234.5
    assert (row["train_seconds"], row["wall_seconds"]) == (1 + 2 + 3, 90)
    assert row["device_hours"] == pytest.approx(90 * 2 / 3600)
    assert (row["device_name"], row["hosts"], row["commit"]) == ("CPU process", "node1", "abc123")
    assert {column: row[column] for column in seen} == seen
    assert row["samples_per_joule"] == 256 / 512
    for column in ("mean_utilization", "energy_joules", "samples_per_joule", "throttled"):
        assert pd.isna(unwatched[column]), column


def test_time_to_accuracy_is_training_time_until_the_first_epoch_that_reaches_it(tmp_path: Path) -> None:
    curves = [(0.5, 0.89, 0.95), (0.9, 0.8, 0.95), (0.5, 0.95, 0.95), (0.5, 0.6, 0.7)]
    for repeat, accuracies in enumerate(curves, start=1):
        write_run(tmp_path, f"d1.r{repeat}", accuracies=accuracies)
    runs = collect("study", with_target(devices=[1], repeats=4), tmp_path).runs
    columns = ["time_to_accuracy_seconds", "epochs_to_accuracy"]
    assert runs.loc[:2, columns].to_numpy().tolist() == [[1 + 2 + 3, 3], [1, 1], [1 + 2, 2]]
    assert runs.loc[3, columns].isna().all()
    without = collect("study", experiment(devices=[1], repeats=1), tmp_path).runs
    assert without["epochs_to_accuracy"].isna().all()


def test_every_planned_run_has_a_row_with_its_outcome_and_reason(tmp_path: Path) -> None:
    write_run(tmp_path, "d1.r1")
    write_run(tmp_path, "d1.r2", "diverged", accuracies=(0.1,))
    write_run(tmp_path, "d1.r3", "out-of-memory")
    write_run(tmp_path, "d2.r1", "failed")
    write_run(tmp_path, "d2.r2", "timed-out")
    tables = collect("study", with_target(repeats=3), tmp_path)
    assert tables.runs[["run", "outcome", "reason", "devices", "repeat"]].to_numpy().tolist() == [
        ["d1.r1", "completed", "", 1, 1],
        ["d1.r2", "diverged", "why d1.r2 is diverged", 1, 2],
        ["d1.r3", "out-of-memory", "why d1.r3 is out-of-memory", 1, 3],
        ["d2.r1", "failed", "why d2.r1 failed", 2, 1],
        ["d2.r2", "timed-out", "why d2.r2 timed-out", 2, 2],
        ["d2.r3", "not run yet", "", 2, 3],
    ]
    assert tables.epochs["run"].tolist() == ["d1.r1"] * 3 + ["d1.r2"]
    assert len(tables.origins) == 2


def _edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        before = (folder / name).read_text(encoding="utf-8")
        assert change(before) != before
        (folder / name).write_text(change(before), encoding="utf-8")

    return edit


def _number(key: str, value: str) -> Callable[[Path], None]:
    return _edit(RECORD, lambda text: re.sub(rf'"{key}": [^,\n]*', f'"{key}": {value}', text))


def _pipe(folder: Path) -> None:
    (folder / RECORD).unlink()
    os.mkfifo(folder / RECORD)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(RECORD, _edit(RECORD, lambda _: ""), id="empty summary"),
        pytest.param(RECORD, _edit(RECORD, lambda _: "[" * 100_000), id="nested without end"),
        pytest.param(RECORD, _pipe, id="named pipe"),
        *(
            pytest.param(RECORD, _number("throughput_samples_per_second", value), id=f"throughput {value}")
            for value in ("NaN", "-5", "0", "1e400", "1e300", "1e-300", '"fast"')
        ),
        pytest.param(RECORD, _number("final_accuracy", "7"), id="accuracy"),
        pytest.param(RECORD, _number("ended_at", '"2026-01-01T00:01:30"'), id="no zone"),
        pytest.param(RECORD, _number("ended_at", '"2025-12-31T23:00:00+00:00"'), id="clock set back"),
        pytest.param(RECORD, _number("ended_at", '"soon"'), id="no time"),
        pytest.param(RECORD, _number("run", '"d1.r1"'), id="of another run"),
        pytest.param(EPOCHS, lambda folder: (folder / EPOCHS).unlink(), id="missing epochs"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda _: "\0\1"), id="binary epochs"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: text.splitlines()[0] + "\n"), id="header alone"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: "\n".join(text.splitlines()[:-1])), id="cut epochs"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: text[:-9]), id="cut within a row"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: text.replace("0.98", "0.97")), id="other accuracy"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: text.replace("\n2,", "\n2,-")), id="negative time"),
        pytest.param(RANKS, _edit(RANKS, lambda text: "\n".join(text.splitlines()[:-1])), id="cut ranks"),
    ],
)
def test_a_damaged_run_is_left_out_and_named_with_its_fix(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    write_run(tmp_path, "d2.r1")
    damage(write_run(tmp_path, "d2.r2"))
    row, damaged = collect("study", with_target(devices=[2]), tmp_path).runs.to_dict("records")
    assert (row["outcome"], damaged["outcome"]) == ("completed", "unreadable")
    assert pd.isna(damaged["throughput_samples_per_second"])
    assert str(tmp_path / "d2.r2" / name) in damaged["reason"]
    assert "Delete " in damaged["reason"]


# --- runs that resumed from a checkpoint ----------------------------------------------------------------


def test_a_resumed_run_has_no_wall_time_and_memory_to_compare_but_keeps_its_throughput(
    tmp_path: Path,
) -> None:
    for repeat in (1, 2, 3):
        known: dict[str, Any] = {"from_step": 300} if repeat == 1 else {}
        write_run(tmp_path / "runs", f"d2.r{repeat}", rate=2000.0, energy_joules=512.0, **known)
    spec = experiment(devices=[2])
    resumed, *others = collect("study", spec, tmp_path / "runs").runs.to_dict("records")
    assert [row["resumed"] for row in (resumed, *others)] == [1, 0, 0]
    # the process that read the checkpoint had other memory
    assert all(pd.isna(resumed[column]) for column in ("wall_seconds", "device_hours", "peak_memory_bytes"))
    assert resumed["peak_memory_kind"] == "process peak RSS, evaluation included"
    assert resumed["throughput_samples_per_second"] == 2000.0
    assert resumed["final_accuracy"] == 0.98
    assert (resumed["energy_joules"], resumed["samples_per_joule"]) == (512, 0.5)
    assert [(row["wall_seconds"], row["device_hours"]) for row in others] == [(90, 90 * 2 / 3600)] * 2
    point = at(concluded(tmp_path, spec), 2)
    assert point["peak_memory_bytes"] == others[0]["peak_memory_bytes"] > 0


# --- peaks of memory, and model FLOPs utilization ------------------------------------------------------


MB = 1_000_000
OF_TENSORS = "CUDA allocator"
ONE_FOR_BOTH = "process peak RSS, evaluation included"


def test_an_option_and_its_point_have_the_same_peaks_and_the_option_what_it_saves() -> None:
    peaks = [300.0 * MB, 310.0 * MB, 350.0 * MB]
    options: dict[str, Options] = {str(on): (("gradient_as_bucket_view", on),) for on in (False, True)}
    runs = make_runs({(name, 1): [100.0] * 3 for name in options})
    runs = runs.sort_values("series").assign(
        peak_memory_bytes=[*peaks, *(peak - 98 * MB for peak in peaks)], peak_memory_kind=OF_TENSORS
    )
    analysis = analysis_of(runs, options, sweep={"gradient_as_bucket_view": [False, True]})
    (gain,) = analysis.options.to_dict("records")
    column, expected = "peak_memory_bytes", [320 * MB, 222 * MB]
    assert [gain[f"reference_{column}"], gain[column]] == expected == analysis.scaling[column].tolist()
    assert gain["peak_memory_saved_bytes"] == 98 * MB
    assert gain["peak_memory_ratio"] == pytest.approx(222 / 320)


def test_no_mean_joins_peaks_that_count_different_memory() -> None:
    runs = make_runs({(ONLY, 1): [100.0] * 5})
    peaks: dict[str, list[Any]] = {
        "peak_memory_bytes": [2134.0 * MB, 2137.0 * MB, 1041.0 * MB, 1042.0 * MB, 1043.0 * MB],
        "peak_memory_kind": [ONE_FOR_BOTH] * 2 + [OF_TENSORS] * 3,
    }
    (point,) = analysis_of(runs.assign(**peaks)).scaling.to_dict("records")
    assert point["n"] == 5
    assert point["peak_memory_bytes"] == 1042 * MB
    assert point["peak_memory_bytes_high"] == pytest.approx((1042 + 4.302653 / math.sqrt(3)) * MB)


# --- model FLOPs utilization ----------------------------------------------------------------------------


H100 = "NVIDIA H100 80GB HBM3"


def columns(devices: list[str], flops: dict[str, float], accelerator: str = "cuda") -> dict[str, Any]:
    """The columns of a run of two GPUs whose 10 measured steps take 2 s."""
    run = definition(2).model_copy(update={"accelerator": accelerator})
    windows = [
        Window(first_step=0, steps=5, samples=5 * 256, seconds=9.0, warmup=True),
        Window(first_step=5, steps=10, samples=10 * 256, seconds=2.0, warmup=False),
    ]
    measured = measurements(windows=windows, step_flops=flops)
    return mfu_columns(run_record(run, measurements=measured, provenance=provenance(run, devices=devices)))


def test_the_utilization_is_the_operations_over_what_the_gpus_could_do() -> None:
    row = columns([H100, H100], {"bf16": 99e12, "fp32": 1e12})

    # 100e12 operations, 5 steps a second, two GPUs of 989.5e12 in bf16, which has most of them
    assert row["flops_per_step"] == 100e12
    assert row["model_flops_utilization"] == pytest.approx(100e12 * 5 / (2 * 989.5e12))
    assert "bf16: 989.5 TFLOP/s" in row["mfu_basis"]


@pytest.mark.parametrize(
    ("devices", "flops", "accelerator", "reason"),
    [
        pytest.param(["CPU"] * 2, {"fp32": 1e9}, "cpu", "The peak of a CPU process is unknown.", id="CPU"),
        pytest.param(["A GPU"] * 2, {"bf16": 1e9}, "cuda", "peak of A GPU is unknown", id="unknown GPU"),
        pytest.param(["NVIDIA A100-SXM4-40GB MIG 1g.5gb"] * 2, {"bf16": 1e9}, "cuda", "a part", id="MIG"),
        pytest.param(["NVIDIA A100-SXM-64GB"] * 2, {"bf16": 1e9}, "cuda", "is unknown", id="Leonardo's A100"),
        pytest.param([H100, "NVIDIA H200"], {"bf16": 1e9}, "cuda", "NVIDIA H200", id="two models"),
        pytest.param(["Tesla V100-SXM2-16GB"] * 2, {"bf16": 1e9}, "cuda", "bf16", id="unknown format"),
        pytest.param([H100] * 2, {}, "cuda", "not counted", id="no count"),
        pytest.param([H100] * 2, {"bf16": 1e15}, "cuda", "impossible", id="more than the peak"),
    ],
)
def test_without_a_count_or_a_peak_the_reason_is_stated(
    devices: list[str], flops: dict[str, float], accelerator: str, reason: str
) -> None:
    row = columns(devices, flops, accelerator)

    assert "model_flops_utilization" not in row
    assert reason in row["mfu_note"]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("Tesla V100-SXM2-16GB", "NVIDIA V100 SXM2"),
        (H100, "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("AMD Instinct MI250X", "AMD MI250X, one of its two GPUs (GCD)"),
    ],
)
def test_each_name_that_torch_reports_finds_its_gpu(device: str, name: str) -> None:
    peak = peak_of(device)
    assert not isinstance(peak, str)
    assert peak.name == name
