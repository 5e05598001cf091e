"""The starts of a run: the records that each has left, and which of them count."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from scalewise.execution.messages import TrainSpec
from scalewise.ranks.monitoring.monitor import MonitorReport
from scalewise.ranks.results.probe_record import RECORD, ProbeRecord, read_records
from scalewise.ranks.results.rank_report import RankReport, read_reports
from scalewise.records import OUTSIDE_THE_STEPS, GpuLimits

POLL_SECONDS = 0.1
"""Time between two checks for the reports of other ranks."""


@dataclass(frozen=True)
class StartRecords:
    """The records of one start of a run.

    Args:
        ranks: One record for each rank, by rank.
        reports: One for each process that the launcher started, by rank.
    """

    ranks: list[ProbeRecord]
    reports: list[RankReport]

    @property
    def from_step(self) -> int:
        """Optimizer steps that the training had made before."""
        return self.ranks[0].from_step

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

    def changes(self, later: StartRecords) -> list[str]:
        """Name what takes part in a later start's steps and differs, as ``CPU model B (before: A)``."""
        pairs = zip(self._conditions(), later._conditions(), strict=True)
        found = (
            f"{name} {now[name]} (before: {before[name]})"
            for before, now in pairs
            for name in before
            if name in now and now[name] != before[name]
        )
        return list(dict.fromkeys(found))

    def _conditions(self) -> list[dict[str, str]]:
        """Name what takes part in the steps of each rank, as far as it is known."""
        return [
            {"device model": rank.device, "CPU model": self.report_of(rank.rank).cpu_model}
            | (limits.named() if limits is not None else {})
            | {
                f"{name} version": version
                for name, version in self.versions_of(rank).items()
                if name.lower().replace("_", "-") not in OUTSIDE_THE_STEPS
            }
            for rank, limits in zip(self.ranks, self.gpu_limits, strict=True)
        ]


def read_start(folder: Path) -> StartRecords:
    """Read what the ranks of one start have left; without ranks if there is nothing."""
    if not folder.is_dir():
        return StartRecords([], [])
    return StartRecords(read_records(folder, RECORD), read_reports(folder))


def wait_for_start(folder: Path, processes: int, timeout_seconds: float) -> StartRecords:
    """Wait until every process of a start has left its report, which it writes last; return what is there.

    A network file system may show files late. After the timeout it returns all the same.

    Args:
        folder: Receives the files of the ranks.
        processes: Number of processes that leave a report.
        timeout_seconds: Longest wait.
    """
    deadline = time.monotonic() + timeout_seconds
    while len(read_reports(folder)) < processes and time.monotonic() <= deadline:
        time.sleep(POLL_SECONDS)
    return read_start(folder)


def read_earlier_starts(spec: TrainSpec) -> list[StartRecords]:
    """Read what the starts before this one measured up to their last checkpoint, in their order."""
    return [read_start(spec.starts / str(number)) for number in range(1, spec.start_number)]


def covers(spec: TrainSpec, rank: int, step: int) -> bool:
    """Whether earlier starts have measured a rank up to a step."""
    found = [
        record
        for number in range(1, spec.start_number)
        for record in read_records(spec.starts / str(number), RECORD, rank)
    ]
    reached = 0
    for record in sorted(found, key=lambda each: each.from_step):
        if record.from_step <= reached:
            reached = max(reached, record.from_step + record.step_count)
    return reached >= step


def kept_starts(starts: Sequence[StartRecords]) -> list[StartRecords]:
    """Choose the starts whose steps are in the training, in their order.

    A start that resumed from an older checkpoint, or from none, made the steps of later ones again. One that
    resumed after the last step made none: its reports are those of the end all the same.

    Args:
        starts: All starts in their order; the last one ended the training.
    """
    kept: list[StartRecords] = []
    for start in reversed([start for start in starts if start.ranks]):
        if not kept or start.from_step < kept[0].from_step:
            kept.insert(0, start)
    *_, last = starts
    if not last.ranks:
        trained = kept[-1]
        # the steps were made while the GPUs were read there
        reports = [
            replace(after, monitors=before.monitors)
            for before, after in zip(trained.reports, last.reports, strict=True)
        ]
        kept[-1] = StartRecords(trained.ranks, reports)
    return kept
