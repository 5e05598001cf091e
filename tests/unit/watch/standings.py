"""Points and runs in any state, for tests of what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalewise.execution.messages import Progress
from scalewise.watch.points import Criterion, Rounds, WatchedPoint, WatchedStudy
from scalewise.watch.run_files import RunFacts
from scalewise.watch.slurm_queue import QueuedJob
from scalewise.watch.standing import PointStanding, Standing

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


def done(throughput: float, seconds: float = 60.0) -> RunFacts:
    return RunFacts("done", "completed", throughput, job_seconds=(seconds,))


def running(epoch: int, epochs: int, elapsed: float, rate: float | None = None) -> RunFacts:
    progress = Progress(epoch=epoch, epochs=epochs, samples_per_second=rate)
    return RunFacts("running", progress=progress, began=NOW - elapsed)


WAITING, QUEUED, STARTING = RunFacts("waiting"), RunFacts("queued"), RunFacts("starting")
FAILED = RunFacts("failed", "timed-out", job_seconds=(30.0,))


def standing_of(
    runs: Mapping[WatchedPoint, Sequence[RunFacts]],
    budget: int | None = None,
    queued: Mapping[tuple[str, str], QueuedJob] | None = None,
    rule: Criterion | None = None,
    over: bool = False,
) -> Standing:
    """A study whose points have these runs, in the order of their repeats."""
    points = [
        PointStanding(
            each,
            {each.run(number): facts for number, facts in enumerate(mine, 1)},
            {run: job for run, job in (queued or {}).items() if run[1].startswith(f"{each.name}.r")},
        )
        for each, mine in runs.items()
    ]
    criteria = {each.experiment: rule or Criterion() for each in runs}
    study = WatchedStudy(points=tuple(runs), criteria=criteria, device_budget=budget)
    return Standing(study, points, 0, Rounds(asked={}), NOW, over)
