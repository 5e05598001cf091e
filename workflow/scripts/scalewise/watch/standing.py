"""Status of every point of a study: the facts of its repeats together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewise.analysis.statistics.intervals import Interval, geometric_interval
from scalewise.watch.points import Rounds, RunKey, WatchedPoint, WatchedStudy
from scalewise.watch.run_files import RunFacts
from scalewise.watch.slurm_queue import QueuedJob


@dataclass(frozen=True)
class PointStanding:
    """A point and its repeats.

    Args:
        runs: Repeats that are asked for, each with what is known of it.
        queued: States that Slurm reports of those that are in its queue.
    """

    point: WatchedPoint
    runs: Mapping[RunKey, RunFacts]
    queued: Mapping[RunKey, QueuedJob]

    def in_state(self, *states: str) -> list[RunKey]:
        """Runs of the point in any of these states."""
        return [run for run, facts in self.runs.items() if facts.state in states]

    @property
    def rates(self) -> list[float]:
        """Samples per second of the runs that have completed, of the undisturbed ones if there are any."""
        done = [facts for facts in self.runs.values() if facts.throughput is not None]
        counted = [facts for facts in done if not facts.disturbed] or done
        return [facts.throughput for facts in counted if facts.throughput is not None]

    @property
    def throughput(self) -> Interval | None:
        """Geometric mean of the throughput with its 95 % interval; None before any run has completed."""
        return geometric_interval(self.rates) if self.rates else None

    @property
    def failed(self) -> int:
        """Runs that failed; the same command makes an interrupted one again."""
        return sum(self.runs[run].outcome != "interrupted" for run in self.in_state("failed"))

    @property
    def key(self) -> tuple[object, ...]:
        """Changes when there is news of the point, and not with every step of a run."""
        counts = (len(self.in_state(state)) for state in ("done", "failed", "queued"))
        return (*counts, *self.in_state("starting", "running"))


@dataclass(frozen=True)
class Standing:
    """The status of a study.

    Args:
        points: Those that have a run, in the order of the configuration.
        not_asked: Points of which no run is asked for, as a study has that chooses its device counts.
        now: Seconds since the epoch.
        over: Whether the session has ended, so that no more runs are made.
    """

    study: WatchedStudy
    points: Sequence[PointStanding]
    not_asked: int
    rounds: Rounds
    now: float
    over: bool = False

    @property
    def runs(self) -> dict[RunKey, RunFacts]:
        """All runs that are asked for."""
        return {run: facts for point in self.points for run, facts in point.runs.items()}

    def count(self, *states: str) -> int:
        """Runs in any of these states."""
        return sum(len(point.in_state(*states)) for point in self.points)
