"""Sample the utilization of a rank's device in a thread that uses less than 1 % of a CPU.

Every rank monitors its device, so all devices of the run are monitored, on every node, and no others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scalewise.ranks.monitoring.sensors import Reading, Sensor, sensor_of
from scalewise.records import UtilizationRecord, utc_now

if TYPE_CHECKING:
    import torch

INTERVAL_SECONDS = 0.5
"""Pause between the first samples: NVML updates its utilization every 1/6 s to 1 s."""

MAX_SAMPLES = 2000
"""Most rows of a rank: 17 minutes at the first pause. A longer run keeps each second row, or fourth, ..."""

COST_LIMIT = 0.005
"""CPU time of the monitor over wall time above which the pause doubles: half of the permitted cost."""

SHORTEST_SECONDS = 0.001
"""Shortest time that a sample covers; the clocks are too coarse for less."""

LEAST_WINDOWS = 3
"""Times what a reading covers beyond which the mean is hardly that of the time before the training."""

SENSOR_TIMEOUT_SECONDS = 2.0
"""Longest wait for a sensor that does not respond when the training has ended."""

WARM_UP, TRAIN, EVALUATE, END = "warm-up", "train", "evaluate", "end"


@dataclass(frozen=True)
class MonitorReport:
    """The results of one rank's monitor; None for a quantity that the device does not report.

    Args:
        samples: Rows of ``utilization.csv``.
        mean_utilization: Mean over the phase ``train``, weighted by time, 0 to 1. Unknown where that phase is
            not much longer than what a reading covers.
        train_seconds: Time of that phase for which the utilization is known.
        energy_joules: Energy that the device drew from start to stop.
        cpu_fraction: CPU time of the monitor over wall time.
        throttled: Whether the device ran slower than it could in some sample.
        note: Missing quantities and reasons of throttling; empty if there are none.
    """

    samples: list[UtilizationRecord]
    mean_utilization: float | None
    train_seconds: float
    energy_joules: float | None
    cpu_fraction: float
    throttled: bool | None
    note: str


class Monitor:
    """Sample one device from ``start`` to ``stop``; as a context manager, from entry to exit.

    A change of phase takes a sample, so that no sample covers two phases. Change it while no step is timed.

    Args:
        device: The rank's; a name if another process uses the device.
        cpus_per_device: Number of CPUs that the rank has.
        sensor: Replaces the sensor that ``sensor_of`` returns.
        note: The reason for which there is no sensor.
        interval_seconds: Pause between the first samples.
    """

    def __init__(
        self,
        device: torch.device | str,
        cpus_per_device: int,
        host: str,
        rank: int,
        *,
        sensor: Sensor | None = None,
        note: str = "",
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._sensor, self._note = sensor, note
        if isinstance(device, str):
            self._device = device
        else:
            if sensor is None:
                self._sensor, self._note = sensor_of(device, cpus_per_device)
            from scalewise.ranks.distributed.devices import device_name  # noqa: PLC0415 - it imports torch

            self._device = ("" if device.index is None else f"{device} ") + device_name(device)
        self._host, self._rank = host, rank
        self._interval = interval_seconds
        self._phase = "start"
        self._samples: list[UtilizationRecord] = []
        self._taken, self._stride = 0, 1
        self._busy_seconds = self._train_seconds = 0.0
        self._power_joules: float | None = None
        self._first: Reading | None = None
        self._latest: Reading | None = None
        self._throttling: Counter[str] = Counter()
        self._thread_cpu_seconds = self._phase_cpu_seconds = 0.0
        self._began = self._last = time.monotonic()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._report: MonitorReport | None = None
        self._latest_report = self._build_report()

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start to sample, if the device has a sensor."""
        if self._sensor is None:
            return
        self._first = self._sensor.read()
        self._began = self._last = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)
        self._thread.start()

    @property
    def phase(self) -> str:
        """Return the part of the training, recorded with each sample; means are only over ``train``."""
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        if name != self._phase and self._thread is not None and self._report is None:
            before = time.thread_time()
            self._sample()
            self._phase_cpu_seconds += time.thread_time() - before
        self._phase = name

    def report(self) -> MonitorReport:
        """Return the results so far; the last known ones if the sensor does not respond."""
        if self._lock.acquire(timeout=SENSOR_TIMEOUT_SECONDS):
            try:
                self._latest_report = self._build_report()
            finally:
                self._lock.release()
        return self._latest_report

    def stop(self) -> MonitorReport:
        """Take the last sample, end the thread and return the report; a second call returns the same one."""
        if self._report is not None:
            return self._report
        if self._sensor is not None and self._thread is not None:
            self._stopping.set()
            self._thread.join(SENSOR_TIMEOUT_SECONDS)
            if self._thread.is_alive():
                self._note = "the sensor stopped answering"
            else:
                self._sample(last=True)
                self._sensor.close()
        self._report = self._build_report()
        return self._report

    def _build_report(self) -> MonitorReport:
        unknown = self._latest is None or self._latest.throttling is None
        return MonitorReport(
            samples=list(self._samples),
            mean_utilization=None if self._too_short() else self._busy_seconds / self._train_seconds,
            train_seconds=self._train_seconds,
            energy_joules=self._energy_joules(),
            cpu_fraction=self._cpu_seconds() / max(time.monotonic() - self._began, SHORTEST_SECONDS),
            # a device that does not report it may have been throttled
            throttled=bool(self._throttling) or (None if unknown else False),
            note="; ".join(filter(None, self._notes())),
        )

    def _watch(self) -> None:
        while not self._stopping.wait(self._interval):
            self._sample()
            self._thread_cpu_seconds = time.thread_time()
            if self._cpu_seconds() > COST_LIMIT * (time.monotonic() - self._began):
                self._interval *= 2

    def _sample(self, last: bool = False) -> None:
        # if the other thread is sampling, skip this sample: the training never waits for a sensor
        if self._sensor is None or not self._lock.acquire(blocking=False):
            return
        try:
            now = time.monotonic()
            seconds = now - self._last
            if seconds < SHORTEST_SECONDS and not (last and not self._samples):
                return
            phase = self._phase
            reading = self._sensor.read()
            self._count(reading, phase, seconds)
            if self._taken % self._stride == 0 or last:
                self._keep(reading, phase)
            self._taken += 1
            self._last = now
        finally:
            self._lock.release()

    def _count(self, reading: Reading, phase: str, seconds: float) -> None:
        self._latest = reading
        if reading.power_watts is not None:
            self._power_joules = (self._power_joules or 0.0) + reading.power_watts * seconds
        if phase == TRAIN and reading.utilization is not None:
            self._busy_seconds += reading.utilization * seconds
            self._train_seconds += seconds
        self._throttling.update(reading.throttling or ())

    def _keep(self, reading: Reading, phase: str) -> None:
        self._samples.append(
            UtilizationRecord(
                timestamp=utc_now(),
                host=self._host,
                rank=self._rank,
                device=self._device,
                phase=phase,
                utilization=reading.utilization,
                memory_bytes=reading.memory_bytes,
                power_watts=reading.power_watts,
                memory_total_bytes=reading.memory_total_bytes,
                memory_utilization=reading.memory_utilization,
            )
        )
        if len(self._samples) > MAX_SAMPLES:
            del self._samples[1::2]
            self._stride *= 2

    def _cpu_seconds(self) -> float:
        return self._thread_cpu_seconds + self._phase_cpu_seconds

    def _energy_joules(self) -> float | None:
        first, latest = self._first, self._latest
        if first is None or latest is None or first.energy_joules is None or latest.energy_joules is None:
            return self._power_joules
        # a device draws energy all the time: a counter that has not moved is updated more seldom than this
        return latest.energy_joules - first.energy_joules or None

    def _too_short(self) -> bool:
        window = 0.0 if self._sensor is None else self._sensor.window_seconds
        return self._train_seconds <= LEAST_WINDOWS * window

    def _notes(self) -> list[str]:
        throttled = [f"throttled in {count} samples: {reason}" for reason, count in self._throttling.items()]
        if self._train_seconds and self._too_short():
            short = f"{self._train_seconds:.1f} s of training are too short for the device's utilization"
            throttled.insert(0, short)
        return [self._note, self._sensor.missing() if self._sensor is not None else "", *throttled]


def across_starts(reports: Sequence[MonitorReport], changed: bool) -> MonitorReport:
    """Join the reports on one rank over the starts of a run.

    Args:
        reports: One for each start, in their order.
        changed: Whether the last start was on other devices: then only its utilization counts, and no energy.
    """
    *_, last = reports
    energies = [report.energy_joules for report in reports if report.energy_joules is not None]
    throttled = [report.throttled for report in reports if report.throttled is not None]
    known = [
        (report.mean_utilization, report.train_seconds)
        for report in ([last] if changed else reports)
        if report.mean_utilization is not None
    ]
    seconds = sum(weight for _, weight in known)
    return MonitorReport(
        samples=[sample for report in reports for sample in report.samples],
        mean_utilization=sum(mean * weight for mean, weight in known) / seconds if seconds else None,
        train_seconds=seconds,
        energy_joules=sum(energies) if len(energies) == len(reports) and not changed else None,
        cpu_fraction=max(report.cpu_fraction for report in reports),
        throttled=any(throttled) if throttled else None,
        note="; ".join(dict.fromkeys(report.note for report in reports if report.note)),
    )


def across_ranks(reports: Sequence[MonitorReport]) -> dict[str, Any]:
    """Return the fields of ``Measurements`` that come from the monitors.

    Args:
        reports: One for each rank, in rank order.

    Returns:
        mean_utilization, lowest_utilization, energy_joules, monitor_cpu_fraction, throttled, monitor_note.
    """
    busy = [report.mean_utilization for report in reports if report.mean_utilization is not None]
    energies = [report.energy_joules for report in reports if report.energy_joules is not None]
    throttled = [report.throttled for report in reports if report.throttled is not None]
    ranks_by_note: dict[str, list[str]] = {}
    for rank, report in enumerate(reports):
        ranks_by_note.setdefault(report.note, []).append(str(rank))
    return {
        "mean_utilization": sum(busy) / len(busy) if len(busy) == len(reports) else None,
        "lowest_utilization": min(busy) if len(busy) == len(reports) else None,
        # the energy of some devices could be taken for that of all
        "energy_joules": sum(energies) if len(energies) == len(reports) else None,
        "monitor_cpu_fraction": max(report.cpu_fraction for report in reports),
        "throttled": any(throttled) if throttled else None,
        "monitor_note": "; ".join(
            f"rank {', '.join(ranks)}: {note}" for note, ranks in ranks_by_note.items() if note
        ),
    }
