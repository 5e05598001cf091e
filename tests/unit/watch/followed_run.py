"""A run that is followed as the watcher does, for tests of what is seen of it."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import RankFiles
from scalewise.records import JobTime, JobTimes
from scalewise.watch.jobs import JobLog
from scalewise.watch.points import RunKey
from scalewise.watch.run_files import RunFacts, RunFiles
from scalewise.watch.slurm_queue import QueuedJob

RUN: RunKey = ("digits", "d2.r1")
BEGAN = "2026-11-22T10:00:00.000+00:00"
EPOCH = datetime.fromisoformat(BEGAN).timestamp()


class Follower:
    """A run that is followed as the watcher does, and a Snakemake that tells of it."""

    def __init__(
        self, results: Path, on_cluster: bool = False, snakemake: logging.Logger | None = None
    ) -> None:
        self.files = RunFiles(results, on_cluster)
        self.folder = self.files.folder(RUN)
        self.folder.mkdir(parents=True)
        self.log = JobLog(self.files.before, now=lambda: 0.0)
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

    def jobs_taken(self, *seconds: float, shape: str = "1x2") -> None:
        """What the job of a run writes: at its start its limit, and at its end its length."""
        starts = [datetime.fromtimestamp(EPOCH + 1000 * number, UTC) for number in range(len(seconds))]
        jobs = [
            JobTime(started_at=start.isoformat(), seconds=each)
            for start, each in zip(starts, seconds, strict=True)
        ]
        self.clock = max(self.clock, starts[-1].timestamp())
        self.write("job_times.json", JobTimes(shape=shape, jobs=jobs).model_dump_json())

    def job_ends(self, *seconds: float) -> None:
        """The same, so long after the start of the last one."""
        self.clock = EPOCH + 1000 * (len(seconds) - 1) + seconds[-1] - 1
        self.jobs_taken(*seconds)

    def write(self, name: str, text: str) -> Path:
        """A file that is newer than all before, by the clock of its server."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return self.newer(path)

    def newer(self, path: Path) -> Path:
        self.clock += 1
        os.utime(path, (self.clock, self.clock))
        return path

    def progress(self, epoch: int) -> None:
        files = RankFiles(self.folder / "attempt")
        files.folder.mkdir(exist_ok=True)
        files.progress(Progress(epoch=epoch, epochs=4, samples_per_second=123.0))
        self.newer(files.folder / "progress.json")

    def summary(self, outcome: str = "completed", rate: float | None = 200.0) -> None:
        provenance = {"started_at": BEGAN, "ended_at": "2026-11-22T10:01:00.000+00:00"}
        measured = {"throughput_samples_per_second": rate}
        record = {"outcome": outcome, "measurements": measured, "provenance": provenance}
        self.write("summary.json", json.dumps(record))

    def look(self, in_session: bool = True, slurm: str = "", asked_later: float = 60.0) -> RunFacts:
        """How it stands, Slurm asked so many seconds after the last thing that was written."""
        told = QueuedJob(slurm, asked_at=self.clock + asked_later) if slurm else None
        return self.files.look(RUN, self.log.jobs().get(RUN), in_session, told)
