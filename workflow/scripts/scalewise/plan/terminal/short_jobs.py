"""Say which runs of a study fit the site's partition for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewise.config.shape import count_devices
from scalewise.config.slurm import ShortJobs, Slurm
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.terminal.planned_points import PlannedPoint

MAX_NAMED = 4


def short_job_lines(study: Study, points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield a line on each test partition: the runs that fit, their jobs and their time.

    Args:
        study: Checked.
        points: The points whose repeats are requested.
    """
    for partition, site in study.partitions.items():
        on = [
            point
            for point in points
            if study.experiments[point.run.experiment].site.partition == partition
            and point.to_do
            and point.allocation is not None
        ]
        if on and site.slurm is not None and site.slurm.test_partition is not None:
            yield _line(site.slurm, site.slurm.test_partition, on, partition)


def _line(slurm: Slurm, tests: ShortJobs, left: Sequence[PlannedPoint], partition: str) -> str:
    reasons = [(point, _reason(point.allocation, tests)) for point in left if point.allocation is not None]
    fitting = [point for point, reason in reasons if not reason]
    runs, jobs = sum(point.to_do for point in left), sum(point.to_do for point in fitting)
    limits = [f"{tests.longest_walltime} a job", count_devices(tests.max_nodes, "node")]
    if tests.max_devices is not None:
        limits.append(count_devices(tests.max_devices))
    of = f" of {partition}" if partition else ""
    head = f"Test partition {tests.label}{of} ({', '.join(limits)}): "
    named = [f"{point.run.experiment}/{point.run.point} ({reason})" for point, reason in reasons if reason]
    more = [f"{len(named) - MAX_NAMED} more"] if len(named) > MAX_NAMED else []
    others = f" Too large: {', '.join([*named[:MAX_NAMED], *more])}." if named else ""
    if not fitting:
        return f"{head}no run fits.{others}"
    hours = sum(point.to_do * point.allocation.minutes for point in fitting if point.allocation) / 60
    advice = "`use_test_partition: true` in the site file sends them there."
    return (
        f"{head}{jobs} of {count_devices(runs, 'run')} to do fit, in {count_devices(jobs, 'job')} of at most "
        f"{hours:.1f} hours in all. {'They are sent there.' if slurm.use_test_partition else advice}{others}"
    )


def _reason(allocation: Allocation, tests: ShortJobs) -> str:
    """Return what a run has more of than the test partition gives; empty if it fits."""
    devices = allocation.held_devices or allocation.nodes * allocation.tasks_per_node
    if tests.holds(allocation.nodes, devices, allocation.minutes):
        return ""
    if allocation.nodes > tests.max_nodes:
        return count_devices(allocation.nodes, "node")
    if tests.max_devices is not None and devices > tests.max_devices:
        return f"{count_devices(devices)}{' of whole nodes' if allocation.held_devices else ''}"
    return f"{allocation.minutes} minutes"
