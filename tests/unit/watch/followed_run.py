"""A run that is followed as the watcher does, for tests of what is seen of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.small_runs import definition

from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import PROGRESS
from scalewise.records import HISTORY, History, Start
from scalewise.watch.jobs import JobLog
from scalewise.watch.points import RunKey
from scalewise.watch.run_files import RunFacts, RunFiles
from scalewise.watch.slurm_queue import QueuedJob

RUN: RunKey = ("digits", "d2.r1")
BEGAN = "2026-11-22T10:00:00.000+00:00"
EPOCH = datetime.fromisoformat(BEGAN).timestamp()
LIMIT_SECONDS = 86400.0


def time_of(seconds: float) -> str:
    """A time so many seconds after the first start."""
    return datetime.fromtimestamp(EPOCH + seconds, UTC).isoformat()


class Follower:
    """A run that is followed as the watcher does, and a Snakemake that tells of it."""

    def __init__(
        self, results: Path, on_cluster: bool = False, snakemake: logging.Logger | None = None
    ) -> None:
        self.files = RunFiles(results, on_cluster)
        self.folder = self.files.folder(RUN)
        self.folder.mkdir(parents=True)
        self.log = JobLog(self.files.last_start, now=lambda: 0.0)
        self.snakemake = snakemake or logging.Logger("snakemake")
        self.snakemake.addHandler(self.log)
        self.clock = EPOCH

    def tell(self, event: str | None, message: str = "", **told: Any) -> None:
        self.snakemake.info(message, extra={"event": event, **told})

    def hand_over(self, job: int = 7, slurm: str = "") -> None:
        wildcards = {"experiment": RUN[0], "run": RUN[1]}
        self.tell("job_info", jobid=job, rule_name="train", wildcards=wildcards)
        if slurm:
            self.tell(None, f"Job {job} has been submitted with SLURM jobid {slurm} (log: x.log).")

    def starts(self, *ended: float, outcome: str = "failed", devices: int = 2) -> None:
        """Write that a start begins, after others that took so many seconds; None of one that was killed."""
        self.write_history([*self._ended(ended, outcome), self._start(len(ended))], devices)
        self.clock = max(self.clock, EPOCH + 1000 * len(ended))

    def ends(self, *seconds: float, outcome: str = "completed") -> None:
        """Write that a start has ended, the last of these."""
        self.write_history(self._ended(seconds, outcome))
        self.clock = EPOCH + 1000 * (len(seconds) - 1) + seconds[-1]

    def _ended(self, seconds: Sequence[float], outcome: str) -> list[Start]:
        return [
            self._start(number).model_copy(
                update={"ended_at": time_of(1000 * number + each), "outcome": outcome}
                if each < LIMIT_SECONDS
                else {"outcome": "killed"}
            )
            for number, each in enumerate(seconds)
        ]

    def _start(self, number: int) -> Start:
        return Start(started_at=time_of(1000 * number), limit_seconds=LIMIT_SECONDS)

    def write_history(self, starts: list[Start], devices: int = 2) -> None:
        history = History(definition=definition(devices), inputs={}, starts=starts)
        self.write(HISTORY, history.model_dump_json())

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def progress(self, epoch: int) -> None:
        """Write a report of the ranks, a second after all that was written before."""
        self.clock += 1
        progress = Progress(epoch=epoch, epochs=4, samples_per_second=123.0, reported_at=self.clock)
        self.write(f"attempt/{PROGRESS}", progress.model_dump_json())

    def summary(self, outcome: str = "completed", rate: float | None = 200.0) -> None:
        provenance = {"started_at": BEGAN, "ended_at": "2026-11-22T10:01:00.000+00:00"}
        measured = {"throughput_samples_per_second": rate}
        record = {"outcome": outcome, "measurements": measured, "provenance": provenance}
        self.write("summary.json", json.dumps(record))

    def look(self, in_session: bool = True, slurm: str = "", asked_later: float = 60.0) -> RunFacts:
        """How it stands, Slurm asked so many seconds after the last thing that was written."""
        told = QueuedJob(slurm, asked_at=self.clock + asked_later) if slurm else None
        return self.files.look(RUN, self.log.jobs().get(RUN), in_session, told)
