"""Peaks of memory and model FLOPs utilization in the tables, and the reason where either is not stated."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.planted_records import measurements, provenance, run_record
from tests.small_runs import definition
from tests.unit.analysis.planted import ONLY, analysis_of, make_runs

from scalewise.analysis.mfu import mfu_columns, peak_of
from scalewise.plan.runs.runs import Options
from scalewise.records import Window

MB = 1_000_000
OF_TENSORS = "CUDA allocator"
ONE_FOR_BOTH = "process peak RSS, evaluation included"


def test_an_option_and_its_point_have_the_same_peaks_and_the_option_what_it_saves() -> None:
    peaks = [300.0 * MB, 310.0 * MB, 350.0 * MB]
    options: dict[str, Options] = {str(on): (("gradient_as_bucket_view", on),) for on in (False, True)}
    runs = make_runs({(name, 1): [100.0] * 3 for name in options})
    runs = runs.sort_values("series").assign(
        peak_memory_bytes=[*peaks, *(peak - 98 * MB for peak in peaks)],
        peak_memory_kind=OF_TENSORS,
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
