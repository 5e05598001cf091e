"""The report on a rank, next to the record of its steps: machine, device and start-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from scalewise.config.site import cpu_model
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.monitoring.environments import operating_system
from scalewise.ranks.monitoring.machine_load import CpuUse
from scalewise.ranks.monitoring.monitor import MonitorReport
from scalewise.records import write_text

_FILE = "report{rank}.json"


@dataclass(frozen=True)
class RankReport:
    """Findings on one rank, or on all ranks of a node that a program has started itself.

    Args:
        monitors: Readings of each rank's GPU; empty for CPU processes.
        cpu_use: CPU time during the training; None while it goes on.
        launch_seconds: Time from the start of the run to that of the process; None on other hosts than the
            supervisor's, whose clocks may differ.
        ended_at: UTC, ISO 8601.
    """

    rank: int
    host: str
    cpu_model: str
    operating_system: str
    monitors: list[MonitorReport]
    cpu_use: CpuUse | None
    launch_seconds: float | None
    ended_at: str


def report_of(
    identity: Identity,
    monitors: Sequence[MonitorReport],
    cpu_use: CpuUse | None,
    launch_seconds: float | None,
    ended_at: str,
) -> RankReport:
    """Collect what this process knows of its host and its devices.

    Args:
        identity: The rank, or the first rank of a node.
        monitors: Readings of each rank's GPU; empty for CPU processes.
        cpu_use: CPU time during the training.
        launch_seconds: Time until the process started.
        ended_at: UTC, ISO 8601.
    """
    return RankReport(
        rank=identity.rank,
        host=identity.host,
        cpu_model=cpu_model(),
        operating_system=operating_system(),
        monitors=list(monitors),
        cpu_use=cpu_use,
        launch_seconds=launch_seconds,
        ended_at=ended_at,
    )


_REPORT = TypeAdapter(RankReport)


def write_report(folder: Path, report: RankReport) -> None:
    """Write a report for rank 0."""
    write_text(folder / _FILE.format(rank=report.rank), _REPORT.dump_json(report).decode())


def read_reports(folder: Path) -> list[RankReport]:
    """Read the reports that are there, by rank."""
    paths = [path for path in folder.iterdir() if path.match(_FILE.format(rank="*"))]
    reports = [_REPORT.validate_json(path.read_text(encoding="utf-8")) for path in paths]
    return sorted(reports, key=lambda report: report.rank)
