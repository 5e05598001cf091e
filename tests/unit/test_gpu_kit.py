"""What `make gpu` keeps and shows: its record, its page, where a step's time goes, and what a GPU lacks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu_page import BEGIN, END, tables, write_tables
from benchmarks.gpu_profile import IDLE, kind_of, shares
from benchmarks.gpu_record import Check, GpuRecord, Part, gpu_missing
from benchmarks.measure import Row
from benchmarks.run import GPU_PARTS

ROOT = Path(__file__).parents[2]
RECORD = GpuRecord(
    machine={"GPU": "NVIDIA H200", "driver": "580.1", "torch": "2.15.0"},
    checks=[
        Check("tests/a.py::one", "Events agree with a clock", "passed", figures=["1.001, n = 7"]),
        Check("tests/a.py::two", "weights are equal", "passed"),
        Check("tests/a.py::three", "a | b", "failed", "AssertionError: assert 1 == 2"),
        Check("tests/a.py::four", "parts", "skipped", "needs two GPUs"),
        Check("tests/a.py::five", "parts too", "skipped", "needs two GPUs"),
    ],
    parts=[
        Part("loop", 12.3, [Row(what="gpu: a step", ours="9.1 ms", n=10, target="at most 1.01", met=False)]),
        Part("transformer", 1.0, missing="cut off: no time was left"),
    ],
)
CONVOLUTION, BATCH_NORM, OPTIMIZER, EXCHANGE, OTHER = (
    "convolutions and matrix products",
    "what compile has fused: batch norm, activations, loss, casts",
    "optimizer",
    "gradient exchange",
    "copies, gathers, other arithmetic",
)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "build" / "gpu.json"
    RECORD.write(file)
    again = GpuRecord.read(file)
    assert json.dumps(again, default=vars) == json.dumps(RECORD, default=vars)
    assert [path.name for path in file.parent.iterdir()] == ["gpu.json"]
    assert GpuRecord.read(tmp_path / "none.json") == GpuRecord()


def test_a_part_that_is_measured_again_takes_the_place_of_the_first() -> None:
    record = RECORD.with_part(Part("loop", 5.0))
    assert [(part.name, part.seconds) for part in record.parts] == [("transformer", 1.0), ("loop", 5.0)]


def test_the_page_names_machine_figures_failures_and_what_was_not_run(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    write_tables(page, RECORD)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n\nGPU NVIDIA H200, driver 580.1, torch 2.15.0.\n")
    assert text.endswith(f"\n\n{END}\nafter\n")
    assert "old" not in text
    for line in (
        "at most 1.01: MISSED",
        "2 passed, 1 failed, 2 skipped.",
        "| Events agree with a clock | passed | 1.001, n = 7 |",
        "| a / b | **failed**: AssertionError: assert 1 == 2 |  |",
        "- `tests/a.py`: 1 more passed",
        "- transformer: cut off: no time was left",
        "- 2 tests: needs two GPUs",
    ):
        assert line in text, text
    write_tables(page, GpuRecord())
    assert tables(GpuRecord()) == "No GPU has run any of it yet."
    page.write_text("no place\n", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks the line"):
        write_tables(page, RECORD)


def test_the_document_has_a_place_for_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"), encoding="utf-8")
    write_tables(page, RECORD)
    assert "NVIDIA H200" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", CONVOLUTION),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc", CONVOLUTION),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", CONVOLUTION),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", CONVOLUTION),
        ("triton_red_fused__native_batch_norm_legit_functional_convolution_relu_3", BATCH_NORM),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedSgdMathFunctor>",
            OPTIMIZER,
        ),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", EXCHANGE),
        ("void at::native::index_elementwise_kernel<128, 4>", OTHER),
        ("Memcpy HtoD (Pageable -> Device)", OTHER),
    ],
)
def test_kernels_are_told_apart_by_their_names(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_shares_of_a_step_count_kernels_and_what_no_kernel_covers() -> None:
    def event(name: str, start: float, microseconds: float, category: str = "kernel") -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": microseconds}

    events = [
        event("xmma_fprop", 7100.0, 400.0),
        event("xmma_wgrad", 7500.0, 200.0),
        # beside the last one
        event("ncclDevKernel_AllReduce", 7600.0, 200.0),
        event("Memset (Device)", 8050.0, 50.0, "gpu_memset"),
        event("aten::conv2d", 0.0, 1000.0, "cpu_op"),
        {"ph": "M", "name": "process_name"},
    ]
    found = shares(events)
    # of the 1,000 microseconds from the first kernel to the end of the last
    expected = {CONVOLUTION: 0.6, EXCHANGE: 0.2, OTHER: 0.05, IDLE: 0.25}
    assert found == pytest.approx(expected)
    assert shares(events[-2:]) == {}


@pytest.mark.slow
def test_the_benchmark_counts_an_images_operations_and_cuts_off_what_is_beyond_the_deadline() -> None:
    # they import torchvision, which takes seconds
    from benchmarks.bench_gpu import PARTS, Bench  # noqa: PLC0415
    from benchmarks.gpu_training import image_flops  # noqa: PLC0415

    # 2.412 GMAC forward; two operations each, and a backward pass of twice as many
    assert image_flops("wide_resnet", 32) == pytest.approx(6 * 2.412e9, rel=1e-3)
    late = Bench("cpu", time.monotonic() - 1, "none")
    with pytest.raises(TimeoutError, match="no time was left"):
        late.measure(time.sleep, 600)
    with pytest.raises(RuntimeError, match="TypeError: must be real number, not str"):
        replace(late, deadline=time.monotonic() + 600).measure(math.sqrt, "two")
    assert tuple(PARTS) == GPU_PARTS


@pytest.mark.slow
def test_a_part_of_the_benchmark_is_rehearsed_into_a_record(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    words = ["gpu", "--accelerator", "cpu", "--only", "loop", "--json", str(file)]
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = GpuRecord.read(file)
    assert record.machine["GPU"].startswith("none")
    (part,) = record.parts
    assert (part.name, part.missing) == ("loop", "")
    assert part.rows[0].what in done.stdout


@pytest.mark.skipif(gpu_missing() == "", reason="this machine has a GPU, so nothing is missing")
def test_without_a_gpu_it_says_so_and_nothing_is_run(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    words = ["-m", "benchmarks.on_gpu", "--json", str(file)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no GPU: torch" in done.stdout
    assert "0 tests run" in done.stdout
    assert not file.exists()
