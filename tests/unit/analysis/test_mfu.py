"""Model FLOPs utilization: the arithmetic, and the reason where it is not stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, measurements, provenance, run_record, write_run
from tests.small_runs import definition

from scalewise.analysis.mfu import gpu_peaks, mfu_columns, peak_of
from scalewise.analysis.scaling import scaling_table
from scalewise.analysis.tables import collect
from scalewise.records import Window

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
        pytest.param(["CPU process"] * 2, {"fp32": 1e9}, "cpu", "CPU", id="CPU processes"),
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


def test_scaling_csv_has_the_utilization_or_the_reason(tmp_path: Path) -> None:
    """A planted step of 0.25 s on CPU processes, which have no peak."""
    write_run(tmp_path, "d1.r1", step_flops={"fp32": 8e9}, lowest_utilization=0.5)
    runs = collect("study", experiment(devices=[1], repeats=1), tmp_path).runs
    row = scaling_table(runs, "strong").iloc[0]

    assert (row["flops_per_step"], row["lowest_utilization"]) == (8e9, 0.5)
    assert pd.isna(row["model_flops_utilization"])
    assert "CPU" in row["mfu_note"]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("Tesla V100-SXM2-16GB", "NVIDIA V100 SXM2"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100"),
        (H100, "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("NVIDIA H200", "NVIDIA H200 SXM"),
        ("NVIDIA GH200 120GB", "NVIDIA GH200"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("AMD Instinct MI250X", "AMD MI250X, one of its two GPUs (GCD)"),
        ("AMD Instinct MI300X", "AMD MI300X"),
    ],
)
def test_each_name_that_torch_reports_finds_its_gpu(device: str, name: str) -> None:
    peak = peak_of(device)
    assert not isinstance(peak, str)
    assert peak.name == name


def test_every_peak_has_a_source_and_formats_in_order() -> None:
    order = ["fp64", "fp32", "tf32", "bf16"]
    for peak in gpu_peaks():
        assert peak.source
        known = [peak.tflops[name] for name in order if name in peak.tflops]
        assert known == sorted(known)
        assert peak.tflops["fp16"] >= max(known)
