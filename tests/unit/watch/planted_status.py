"""Points and runs in any state, for tests of what is shown of them."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.planted_records import leave_result, measurements, run_record
from tests.small_runs import definition, rank_setup
from tests.terminal_screen import TerminalScreen

from scalewise.execution.rank_files import PROGRESS, Progress, RankFiles, TrainSpec
from scalewise.watch.jobs import JobLog
from scalewise.watch.status import PointStatus, RunStatus, StatusReader, StudyStatus
from scalewise.watch.study import QueuedJob, Rounds, RunKey, StudySession, WatchedPoint, WatchedStudy
from scalewise.watch.terminal import Table

NOW = 1_800_000_000.0


def point(
    devices: int, experiment: str = "digits", series: str = "", billed: float | None = None
) -> WatchedPoint:
    return WatchedPoint(
        experiment=experiment,
        series=series,
        devices=devices,
        name=f"d{devices}" + (f".{series}" if series else ""),
        most=9,
        billed_devices=devices if billed is None else billed,
    )


def done(throughput: float, seconds: float = 60.0) -> RunStatus:
    return RunStatus("done", "completed", throughput, job_seconds=(seconds,))


def running(epoch: int, epochs: int, elapsed: float, rate: float | None = None) -> RunStatus:
    """A run at work whose first report came with its start."""
    progress = Progress(
        epoch=epoch,
        epochs=epochs,
        step=epoch,
        steps_per_epoch=1,
        samples_per_second=rate,
        first_reported_at=NOW - elapsed,
    )
    return RunStatus("running", progress=progress, began=NOW - elapsed)


WAITING, QUEUED, STARTING = RunStatus("waiting"), RunStatus("queued"), RunStatus("starting")
BLOCKED = RunStatus("blocked", waits_for="another training on this machine")
FAILED = RunStatus("failed", "timed-out", job_seconds=(30.0,))


def status_of(
    runs: Mapping[WatchedPoint, Sequence[RunStatus]],
    budget: int | None = None,
    min_efficiency: float | None = None,
    over: bool = False,
) -> StudyStatus:
    """A study whose points have these runs, in the order of their repeats."""
    points = [
        PointStatus(each, {each.run(number): status for number, status in enumerate(repeats, 1)})
        for each, repeats in runs.items()
    ]
    required = {each.experiment: min_efficiency for each in runs}
    study = WatchedStudy(points=tuple(runs), min_efficiency=required, device_budget=budget)
    return StudyStatus(study, points, 0, Rounds(requested={}), NOW, over)


class Window(io.StringIO):
    """A stream that is a terminal of some size, and what a person sees on it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        super().__init__()
        self.screen = TerminalScreen(columns, rows)
        self.writes = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        # as the system does with what goes to a terminal
        self.screen.write(text.replace("\n", "\r\n"))
        self.writes += 1
        return super().write(text)


class Drawn(Table):
    """A table that asks the window for its size."""

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._window = window

    def _terminal_size(self) -> os.terminal_size:
        return os.terminal_size((self._window.screen.columns, self._window.screen.rows))


RUN: RunKey = ("digits", "d2.r1")
BEGAN = "2026-11-22T10:00:00.000+00:00"
EPOCH = datetime.fromisoformat(BEGAN).timestamp()
LIMIT_SECONDS = 86400.0
NOT_SHOWN = RunStatus("later")


def time_of(seconds: float) -> str:
    return datetime.fromtimestamp(EPOCH + seconds, UTC).isoformat()


class Follower:
    """A run that is followed as the watcher does, and a Snakemake whose log reports of it.

    Its starts begin at 0, 1000, 2000, ... seconds; ``clock`` is the time of the last thing that happened.
    """

    def __init__(
        self, results: Path, on_cluster: bool = False, snakemake: logging.Logger | None = None
    ) -> None:
        self.results, self.on_cluster = results, on_cluster
        self.reader = StatusReader(results)
        self.folder = results / RUN[0] / "runs" / RUN[1]
        self.folder.mkdir(parents=True)
        self.clock = EPOCH - 1
        self.log = JobLog(now=lambda: self.clock)
        self.snakemake = snakemake or logging.Logger("snakemake")
        self.snakemake.addHandler(self.log)
        self.slurm_id = ""
        self.restarts = 0

    def report(self, event: str | None, message: str = "", **fields: Any) -> None:
        self.snakemake.info(message, extra={"event": event, **fields})

    def hand_over(self, job: int = 7, slurm: str = "") -> None:
        self.clock += 1
        wildcards = {"experiment": RUN[0], "run": RUN[1]}
        self.report("job_info", jobid=job, rule_name="train", wildcards=wildcards)
        self.slurm_id = slurm
        if slurm:
            self.report(None, f"Job {job} has been submitted with SLURM jobid {slurm} (log: x.log).")

    def starts(self) -> None:
        """Write that ranks begin."""
        spec = TrainSpec(definition=definition(2), dataset=None, folder=self.folder, started_at=time_of(0))
        RankFiles(self.folder / "attempt").begin(rank_setup(training=spec))
        self.clock = max(self.clock, EPOCH)

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
        measured = measurements(throughput_samples_per_second=rate)
        leave_result(self.folder, run_record(definition(2), outcome=outcome, measurements=measured))

    def status(self, in_session: bool = True, slurm: str = "", restarts: int = 0) -> RunStatus:
        """Return the status of the run, by its files, Snakemake's log and Slurm's answer on its job."""
        requested = {RUN[0]: {"d2": 1}}
        budget = 4 if self.on_cluster else None
        study = WatchedStudy(points=(point(2),), min_efficiency={RUN[0]: None}, device_budget=budget)
        session = StudySession(
            study=study,
            rounds=Rounds(requested=requested),
            first_requested=requested,
            host="here",
            pid=1,
            began=EPOCH,
            written_at=EPOCH,
            runs=(RUN,) if in_session else (),
            jobs=tuple(self.log.jobs().items()),
            queue={self.slurm_id: QueuedJob(state=slurm, restarts=restarts)} if slurm else {},
        )
        reader = self.reader if in_session else StatusReader(self.results)
        return reader.read(session, self.clock).runs.get(RUN, NOT_SHOWN)
