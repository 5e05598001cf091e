"""Points and runs in any state, for tests of what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalewise.execution.messages import Progress
from scalewise.watch.status import PointStatus, RunStatus, StudyStatus
from scalewise.watch.study import Rounds, WatchedPoint, WatchedStudy

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
