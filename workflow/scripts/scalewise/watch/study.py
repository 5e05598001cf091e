"""Types of a watched study and its session, which one file holds for other processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.config.experiment import AnyExperiment, Experiment
from scalewise.config.shape import count_devices, device_noun
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.rounds import is_settled, known_rounds, requested_repeats
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.plan.terminal.choice_lines import round_line
from scalewise.records import Failure, RecordError, epoch_seconds

SESSION = Path(".snakemake") / "scalewise" / "study.json"
"""The session's file, below the folder in which Snakemake runs."""

RunKey = tuple[str, str]
"""Experiment and run."""


class SessionError(Exception):
    """The file of a session cannot be read, or is damaged."""


class WatchedPoint(BaseModel):
    """One device count of one series.

    Args:
        series: Empty if the experiment has only one.
        name: ``d2.bucket-view-on``; runs are called ``d2.bucket-view-on.r1``.
        most: Repeats that may ever be requested.
        billed_devices: Devices that the site bills for one run.
        noun: ``GPU`` or ``CPU process``.
    """

    model_config = ConfigDict(frozen=True)

    experiment: str
    series: str
    devices: int
    name: str
    most: int
    billed_devices: float
    noun: str = "device"

    def run(self, repeat: int) -> RunKey:
        """Return a run of the point by its repeat, from 1."""
        return self.experiment, f"{self.name}.r{repeat}"

    @property
    def label(self) -> str:
        """``digits-strong, 2 GPUs, bucket-view-on``."""
        return ", ".join(filter(None, (self.experiment, self.count(self.devices), self.series)))

    def count(self, devices: int) -> str:
        """Return a number of devices with their noun, such as ``4 GPUs``."""
        return count_devices(devices, self.noun)


def required_efficiency(spec: AnyExperiment) -> float | None:
    """Return the least parallel efficiency of throughput; None if something else decides.

    With a goal, the criterion is the efficiency of the time to that goal.
    """
    goal = spec.target if isinstance(spec, Experiment) else spec.metric
    return None if goal else spec.decision.required_efficiency()


class WatchedStudy(BaseModel):
    """All points, in the order of the configuration.

    Args:
        min_efficiency: Least parallel efficiency by experiment; None if something else decides.
        device_budget: Devices that jobs in the queue or running may have together; None on one machine, where
            one run follows the other.
    """

    model_config = ConfigDict(frozen=True)

    points: tuple[WatchedPoint, ...]
    min_efficiency: dict[str, float | None]
    device_budget: int | None = None

    @classmethod
    def of(cls, study: Study, device_budget: int | None) -> WatchedStudy:
        """Return the points of a configuration."""
        points, min_efficiency = [], {}
        for name, planned in study.experiments.items():
            most = planned.experiment.max_repeats
            for run in planned.runs[::most]:
                points.append(
                    WatchedPoint(
                        experiment=name,
                        series="" if run.series == NO_OPTIONS else run.series,
                        devices=run.shape.world_size,
                        name=run.point,
                        most=most,
                        billed_devices=float(planned.site.held_devices(run.shape)),
                        noun=device_noun(run.accelerator),
                    )
                )
            min_efficiency[name] = required_efficiency(planned.experiment)
        return cls(points=tuple(points), min_efficiency=min_efficiency, device_budget=device_budget)


class Rounds(BaseModel):
    """Results of the rounds of a study so far.

    Args:
        requested: Repeats by experiment and the name of the point.
        lines: Findings on the answer of a study that chooses its device counts.
        may_grow: Whether more runs than those may follow.
    """

    model_config = ConfigDict(frozen=True)

    requested: dict[str, dict[str, int]]
    lines: tuple[str, ...] = ()
    may_grow: bool = False

    def repeats(self, point: WatchedPoint) -> int:
        """Return the repeats that are requested of a point."""
        return self.requested.get(point.experiment, {}).get(point.name, point.most)


def read_rounds(specs: Mapping[str, AnyExperiment], results: Path) -> Rounds:
    """Read the rounds that have been judged.

    Args:
        specs: Every experiment's keys, by name.
        results: Folder of all experiments.
    """
    requested, lines, settled = {}, [], True
    for name, spec in specs.items():
        try:
            rounds = known_rounds(spec, results / name)
        except (OSError, RecordError):
            rounds = []
        requested[name] = requested_repeats(spec, rounds)
        settled = settled and is_settled(spec, rounds)
        lines += [round_line(judged) for judged in rounds[-1:] if judged.chooses]
    return Rounds(requested=requested, lines=tuple(lines), may_grow=not settled)


class Job(BaseModel):
    """The last job of a run in this session.

    Args:
        handed_over: Seconds since the epoch.
        slurm_id: Empty on one machine, and until Slurm has taken it.
    """

    model_config = ConfigDict(frozen=True)

    state: Literal["handed over", "finished", "failed"]
    handed_over: float
    slurm_id: str = ""

    def has_made(self, failure: Failure) -> bool:
        """Return whether a failure of the run is this job's, and not an earlier one's."""
        if self.slurm_id:
            return failure.slurm_job_id == self.slurm_id
        return epoch_seconds(failure.started_at) >= self.handed_over


class QueuedJob(BaseModel):
    """A job in Slurm's queue.

    Args:
        state: ``PENDING``, ``RUNNING``, ...
        restarts: Number of times that Slurm has put it back into the queue.
        starts: Slurm's estimate of the start, or the start, seconds since the epoch; None without one.
        reason: Slurm's reason that it waits, such as ``Priority``.
    """

    model_config = ConfigDict(frozen=True)

    state: str
    restarts: int = 0
    starts: float | None = None
    reason: str = ""


class StudySession(BaseModel):
    """``study.json``: a session of a study, for its own display and for other processes.

    Args:
        rounds: Repeats that are requested now.
        first_requested: Repeats that were requested when it began, by experiment and point.
        runs: Runs that this session makes, as far as was known when it began.
        refused: Runs that it does not start, as they would fail as before.
        jobs: The last job of each run in this session.
        queue: Slurm's last answer, by the ids of the jobs.
        written_at: Seconds since the epoch.
        ended: Whether the session has ended in order.
    """

    model_config = ConfigDict(frozen=True)

    study: WatchedStudy
    rounds: Rounds
    first_requested: dict[str, dict[str, int]]
    host: str
    pid: int
    began: float
    written_at: float
    runs: tuple[RunKey, ...]
    refused: tuple[RunKey, ...] = ()
    jobs: tuple[tuple[RunKey, Job], ...] = ()
    queue: dict[str, QueuedJob] = {}
    ended: bool = False

    @property
    def is_alive(self) -> bool | None:
        """Whether the process that runs the study is there; None on another host, which cannot see it."""
        if self.ended:
            return False
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def write(self, folder: Path) -> None:
        """Write the session whole or not at all, and not flushed to disk: only displays depend on it.

        Args:
            folder: Folder in which Snakemake runs.

        Raises:
            OSError: It cannot be written.
        """
        path = folder / SESSION
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(self.model_dump_json(), encoding="utf-8")
        draft.replace(path)

    @classmethod
    def read(cls, folder: Path) -> StudySession | None:
        """Return the latest session of the study in a folder; None if none has begun.

        Args:
            folder: Folder in which Snakemake runs.

        Raises:
            SessionError: It cannot be read.
        """
        path = folder / SESSION
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SessionError(f"{path} cannot be read: {error.strerror or error}.") from None
        except (ValidationError, UnicodeDecodeError):
            raise SessionError(f"{path} is damaged. The next start of snakemake writes it again.") from None
