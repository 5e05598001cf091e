"""The records that the ranks of a run leave: the probe's of each rank, and those of the processes around."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from scalewise.measure.step_flags import WARM_UP
from scalewise.ranks.monitoring.monitor import DeviceUse, MonitorReport, use_between
from scalewise.ranks.results.probe_record import RECORD, ProbeRecord, read_records
from scalewise.ranks.results.rank_report import RankReport, read_reports
from scalewise.records import GpuLimits, UtilizationRecord

POLL_SECONDS = 0.1
"""Time between two checks for the reports of other ranks."""


@dataclass(frozen=True)
class StartRecords:
    """The records of the start that ended a run.

    Args:
        ranks: One record for each rank, by rank.
        reports: One for each process that the launcher started, by rank.
    """

    ranks: list[ProbeRecord]
    reports: list[RankReport]

    @property
    def monitors(self) -> list[MonitorReport]:
        """Return the readings of each rank's GPU, by rank; nothing for CPU processes."""
        return list(chain.from_iterable(report.monitors for report in self.reports))

    @property
    def gpu_limits(self) -> list[GpuLimits | None]:
        """Return the limits of each rank's GPU; None for a CPU process."""
        return [monitor.limits for monitor in self.monitors] or [None for _ in self.ranks]

    def versions_of(self, rank: ProbeRecord) -> dict[str, str]:
        """Return the versions of a rank's libraries, and of the driver of its node's GPUs."""
        drivers = [monitor.driver for monitor in self.report_of(rank.rank).monitors if monitor.driver]
        return rank.versions | ({"driver": drivers[0]} if drivers else {})

    def report_of(self, rank: int) -> RankReport:
        """Return the report on a rank, or on all ranks of its node."""
        return max((each for each in self.reports if each.rank <= rank), key=lambda each: each.rank)

    def device_uses(self, kept: Sequence[int]) -> list[DeviceUse]:
        """Return the use of each rank's GPU during the measured steps; nothing for CPU processes.

        Args:
            kept: Indices of the measured steps.
        """
        if len(self.monitors) != len(self.ranks):
            return []
        # the first step warms up
        steps = [index for index in kept if index > 0]
        return [
            use_between(monitor, (rank.ended_at[steps[0] - 1], rank.ended_at[steps[-1]]) if steps else None)
            for monitor, rank in zip(self.monitors, self.ranks, strict=True)
        ]

    def utilization(self) -> list[UtilizationRecord]:
        """Return all readings of all GPUs, in the order of their times."""
        rows = [
            UtilizationRecord(
                timestamp=reading.timestamp,
                host=rank.host,
                rank=rank.rank,
                device=rank.device,
                utilization=reading.utilization,
                memory_bytes=reading.memory_bytes,
                power_watts=reading.power_watts,
                memory_total_bytes=reading.memory_total_bytes,
                memory_utilization=reading.memory_utilization,
            )
            for rank, monitor in zip(self.ranks, self.monitors, strict=False)
            for reading in monitor.readings
        ]
        return sorted(rows, key=lambda row: row.timestamp)


def with_warmup(ranks: Sequence[ProbeRecord], warmup_steps: int) -> list[ProbeRecord]:
    """Flag the first steps of each rank, which warm up; the first of all holds what is done once."""
    warm = max(warmup_steps, 1)
    return [
        rank.model_copy(
            update={
                "flags": [bits | (WARM_UP if index < warm else 0) for index, bits in enumerate(rank.flags)]
            }
        )
        for rank in ranks
    ]


def wait_for_start(folder: Path, processes: int, timeout_seconds: float) -> StartRecords:
    """Wait until every process has left its report, which it writes last; return what is there.

    A network file system may show files late. After the timeout it returns all the same.

    Args:
        folder: Receives the files of the ranks.
        processes: Number of processes that leave a report.
        timeout_seconds: Longest wait.
    """
    deadline = time.monotonic() + timeout_seconds
    while len(read_reports(folder)) < processes and time.monotonic() <= deadline:
        time.sleep(POLL_SECONDS)
    return StartRecords(read_records(folder, RECORD), read_reports(folder))
