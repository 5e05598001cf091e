"""Model FLOPs utilization (MFU): the operations of a run's steps over what its GPUs could do in that time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from scalewise.records import RunRecord

PEAKS = Path(__file__).with_name("gpu_peaks.yaml")


@dataclass(frozen=True)
class GpuPeak:
    """Peaks of one GPU model.

    Args:
        pattern: Matches the device name that torch reports.
        tflops: Dense peak by number format, in 10^12 operations a second.
        source: Document that states them.
    """

    name: str
    pattern: str
    tflops: Mapping[str, float]
    source: str


@cache
def gpu_peaks() -> tuple[GpuPeak, ...]:
    """Read the table of GPUs."""
    return tuple(GpuPeak(**entry) for entry in yaml.safe_load(PEAKS.read_text(encoding="utf-8")))


def peak_of(device: str) -> GpuPeak | str:
    """Return the peaks of a device, or the reason that they are unknown, as a clause."""
    if "MIG " in device:
        return f"{device} is a part of a GPU"
    found = next((peak for peak in gpu_peaks() if re.search(peak.pattern, device)), None)
    return found or f"the peak of {device} is unknown"


def mfu_columns(record: RunRecord) -> dict[str, Any]:
    """Return the columns of runs.csv on a run's floating-point operations."""
    measured = record.measurements
    if measured is None:
        return {}
    if not measured.step_flops:
        note = measured.step_flops_note or "not counted"
        return {"mfu_note": _sentence(f"the FLOPs of a step are unknown ({note})")}
    flops = sum(measured.step_flops.values())
    number_format = max(measured.step_flops, key=lambda name: measured.step_flops[name])
    windows = [window for window in measured.windows if not window.warmup]
    seconds, steps = (sum(getattr(window, name) for window in windows) for name in ("seconds", "steps"))
    row: dict[str, Any] = {"flops_per_step": flops}
    devices = set() if record.provenance is None else set(record.provenance.devices)
    if record.definition.accelerator == "cpu":
        note = "the peak of a CPU process is unknown"
    elif not seconds or len(devices) != 1:
        note = "no measured steps" if not seconds else f"the GPUs are {' and '.join(sorted(devices))}"
    elif isinstance(peak := peak_of(*devices), str):
        note = peak
    elif (tflops := peak.tflops.get(number_format)) is None:
        note = f"the peak of {peak.name} in {number_format} is unknown"
    else:
        used = flops * steps / seconds / (record.definition.shape.world_size * tflops * 1e12)
        basis = f"{peak.name}, {number_format}: {tflops:g} TFLOP/s ({peak.source})"
        if used <= 1:
            return row | {"model_flops_utilization": used, "mfu_note": "", "mfu_basis": basis}
        note = f"{used:.2f} of the peak is impossible: {basis} does not fit the count"
    return row | {"mfu_note": _sentence(note)}


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."
