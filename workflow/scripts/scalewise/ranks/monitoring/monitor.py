"""Read a rank's GPU once a second by NVML, NVIDIA's management library.

Only a daemon thread calls NVML, so neither a training nor the end of a run waits for it. It never calls CUDA,
which could wait for the GPU, or delay it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from scalewise.records import GpuLimits, utc_now

T = TypeVar("T")

INTERVAL_SECONDS = 1.0
"""Pause between readings: NVML's utilization covers 1/6 s to 1 s."""

MAX_READINGS = 2000
"""Most readings that are kept; a longer run keeps each second one, or fourth, ..."""

FEWEST_READINGS = 3
"""Readings during the measured steps below which they show neither a mean nor energy."""

STOP_SECONDS = 2.0
"""Longest wait for an NVML that does not respond when the training has ended."""

THROTTLING = {
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal slowdown",
}
"""NVML's reasons that disturb a measurement. The power cap is not one: GPUs run at it by design."""


@dataclass(frozen=True)
class Reading:
    """The state of a GPU, as ``UtilizationRecord`` describes it; None for what it does not report.

    Args:
        at: Monotonic seconds.
        energy_joules: Energy drawn since a fixed time before the first reading.
        throttling: Reasons for which the GPU runs slower than it could; empty if it does not.
    """

    at: float
    timestamp: str
    utilization: float | None
    memory_utilization: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    energy_joules: float | None
    throttling: tuple[str, ...] | None


@dataclass(frozen=True)
class MonitorReport:
    """All readings of a GPU, with its limits and driver; ``note`` has the reasons for what is missing."""

    readings: list[Reading]
    limits: GpuLimits | None
    driver: str | None
    note: str


class Monitor(threading.Thread):
    """Read a GPU from ``start`` to ``stop``.

    Args:
        uuid: The only identity that CUDA and NVML share: indices differ if CUDA_VISIBLE_DEVICES is set.
    """

    def __init__(self, uuid: str) -> None:
        super().__init__(name="monitor", daemon=True)
        self._uuid = uuid.removeprefix("GPU-").removeprefix("MIG-")
        self._readings: list[Reading] = []
        self._limits: GpuLimits | None = None
        self._driver: str | None = None
        self._note = ""
        self._failures: dict[str, str] = {}
        self._stopping = threading.Event()

    def run(self) -> None:
        """Read until the end; without NVML or such a GPU, note the reason."""
        try:
            import pynvml  # noqa: PLC0415 - a machine without GPUs may not have it
        except ImportError:
            self._note = "not monitored: the package nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            self._driver = str(pynvml.nvmlSystemGetDriverVersion())
            self._nvml: Any = pynvml
            self._gpu = self._find()
        except pynvml.NVMLError as error:
            self._note = f"not monitored: NVML: {error}"
            return
        self._limits = self._read_limits()
        interval = INTERVAL_SECONDS
        while True:
            self._readings.append(self._read())
            if len(self._readings) >= MAX_READINGS:
                del self._readings[::2]
                interval *= 2
            if self._stopping.wait(interval):
                return

    def report(self) -> MonitorReport:
        """Return the readings so far."""
        # a copy: the thread may add to it
        failures = self._failures.copy().items()
        missing = [f"NVML gives no {quantity} ({error})" for quantity, error in failures]
        note = "; ".join(filter(None, [self._note, *missing]))
        return MonitorReport(self._readings[:], self._limits, self._driver, note)

    def stop(self) -> MonitorReport:
        """End the thread and return its readings; none if NVML does not respond."""
        self._stopping.set()
        self.join(STOP_SECONDS)
        if self.is_alive():
            return MonitorReport([], self._limits, self._driver, "not monitored: NVML does not respond")
        return self.report()

    def _find(self) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{self._uuid}")
        except self._nvml.NVMLError:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"MIG-{self._uuid}")

    def _read(self) -> Reading:
        """Read what NVML reports, in percent, milliwatts and millijoules."""
        nvml = self._nvml
        rates = self._ask("utilization", nvml.nvmlDeviceGetUtilizationRates)
        memory = self._memory()
        milliwatts = self._ask("power", nvml.nvmlDeviceGetPowerUsage)
        millijoules = self._ask("energy", nvml.nvmlDeviceGetTotalEnergyConsumption)
        bits = self._ask("throttling", nvml.nvmlDeviceGetCurrentClocksEventReasons)
        names = THROTTLING.items()
        return Reading(
            at=time.monotonic(),
            timestamp=utc_now(),
            utilization=rates and rates.gpu / 100,
            memory_utilization=rates and rates.memory / 100,
            memory_bytes=memory and memory.used,
            memory_total_bytes=memory and memory.total,
            power_watts=milliwatts and milliwatts / 1000,
            energy_joules=millijoules and millijoules / 1000,
            throttling=None
            if bits is None
            else tuple(name for constant, name in names if bits & getattr(nvml, constant)),
        )

    def _read_limits(self) -> GpuLimits:
        """Read the limits in force, which NVML reports in milliwatts and megahertz."""
        nvml, memory = self._nvml, self._memory()
        milliwatts = self._ask("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit)
        return GpuLimits(
            power_watts=milliwatts and milliwatts / 1000,
            sm_clock_mhz=self._ask("SM clock", nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("memory clock", nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
            memory_bytes=memory and memory.total,
        )

    def _memory(self) -> Any:
        # the first version counts memory that the driver reserves as used
        return self._ask("memory", self._nvml.nvmlDeviceGetMemoryInfo, self._nvml.nvmlMemory_v2)

    def _ask(self, quantity: str, function: Callable[..., Any], *which: Any) -> Any:
        """Return the answer of NVML; None, with a note, if the GPU does not report it."""
        try:
            answer = function(self._gpu, *which)
        except self._nvml.NVMLError as error:
            self._failures[quantity] = str(error)
            return None
        self._failures.pop(quantity, None)
        return answer


@dataclass(frozen=True)
class DeviceUse:
    """The use of a rank's GPU during the measured steps; None for a quantity that is unknown.

    Args:
        mean_utilization: A fraction.
        energy_joules: Energy from the begin of these steps to their end.
        throttled: Whether the GPU ran slower than it could in some reading.
        note: Reasons for what is unknown, and for throttling; empty without any.
    """

    mean_utilization: float | None
    energy_joules: float | None
    throttled: bool | None
    note: str


def use_between(report: MonitorReport, span: tuple[float, float] | None) -> DeviceUse:
    """Return the use of a GPU during the measured steps.

    Args:
        report: The readings of the GPU.
        span: Monotonic seconds of the begin and the end of these steps; None if there are none.
    """
    busy, energy, notes = None, None, [report.note]
    within = [] if span is None else [each for each in report.readings if span[0] <= each.at <= span[1]]
    if span is not None and len(within) >= FEWEST_READINGS:
        known = _known(each.utilization for each in within)
        busy = fmean(known) if known else None
        watts = _mean_watts(within)
        energy = watts and watts * (span[1] - span[0])
    elif span is not None and report.readings:
        had = f"{span[1] - span[0]:.1f} s of measured steps had {len(within)}"
        notes.append(f"utilization and energy need {FEWEST_READINGS} readings, and {had}")
    slowed = Counter(reason for each in within for reason in each.throttling or ())
    notes += [f"throttled in {count} samples: {reason}" for reason, count in slowed.items()]
    return DeviceUse(
        mean_utilization=busy,
        energy_joules=energy,
        # a GPU that does not report it may have been throttled
        throttled=bool(slowed) if _known(each.throttling for each in within) else None,
        note="; ".join(dict.fromkeys(filter(None, notes))),
    )


def _mean_watts(readings: Sequence[Reading]) -> float | None:
    """Return the mean power by the counter of energy, or else by the readings of power."""
    first, last = readings[0], readings[-1]
    if first.energy_joules is None or last.energy_joules is None:
        power = _known(each.power_watts for each in readings)
        return fmean(power) if power else None
    # a GPU draws energy all the time: a counter that has not moved is updated more seldom than this
    return (last.energy_joules - first.energy_joules) / (last.at - first.at) or None


def across_ranks(uses: Sequence[DeviceUse]) -> dict[str, Any]:
    """Return the fields of ``Measurements`` that come from the monitors.

    Args:
        uses: One for each rank, in rank order.

    Returns:
        mean_utilization, lowest_utilization, energy_joules, throttled, monitor_note.
    """
    busy = _known(use.mean_utilization for use in uses)
    throttled = _known(use.throttled for use in uses)
    ranks_by_note: dict[str, list[str]] = {}
    for rank, use in enumerate(uses):
        ranks_by_note.setdefault(use.note, []).append(str(rank))
    return {
        "mean_utilization": fmean(busy) if len(busy) == len(uses) else None,
        "lowest_utilization": min(busy) if len(busy) == len(uses) else None,
        "energy_joules": _sum([use.energy_joules for use in uses]),
        "throttled": any(throttled) if throttled else None,
        "monitor_note": "; ".join(
            f"rank {', '.join(ranks)}: {note}" for note, ranks in ranks_by_note.items() if note
        ),
    }


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if one is unknown: the energy of some could be taken for that of all."""
    known = _known(values)
    return sum(known) if known and len(known) == len(values) else None
