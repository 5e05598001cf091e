"""All starts of a run joined, as if one had trained."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from scalewise.measure.step_flags import WARM_UP
from scalewise.ranks.monitoring.monitor import DeviceUse, use_between
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.starts import StartRecords
from scalewise.records import UtilizationRecord


class JoinedStarts:
    """The starts of a run as if one had done it.

    Args:
        starts: Those whose steps are in the training.
        warmup_steps: First steps of each start that are not measured.
    """

    def __init__(self, starts: Sequence[StartRecords], warmup_steps: int) -> None:
        *_, last = self.starts = list(starts)
        own = last.ranks[0].own_interval
        self.warmup_steps = warmup_steps
        if own is not None:
            self.warmup_steps = own.warmup_steps
        warmups = [warmup_steps] * (len(starts) - 1) + [self.warmup_steps]
        self.problems: list[str] = []
        changed_at = 0
        for index, (before, after) in enumerate(pairwise(starts), 1):
            if changes := before.changes(after):
                changed_at = index
                self.problems.append(
                    f"step {after.from_step}: resumed with {', '.join(changes)}; what was measured before it "
                    "is excluded"
                )
        parts = [
            [without_measurements(rank) for rank in start.ranks] if index < changed_at else start.ranks
            for index, start in enumerate(starts)
        ]
        self.ranks = join_starts(parts, warmups)
        self.reports = last.reports
        first = max(warmup_steps, 1)
        late = self.ranks[0].flags[max(first - self.ranks[0].from_step, 0) :]
        self.unmeasured_steps = sum(bool(bits & WARM_UP) for bits in late) - max(self.warmup_steps - first, 0)
        """Steps after the first warm-up that warmed up again, or were measured on something else."""

    def device_uses(self, kept: Sequence[int]) -> list[DeviceUse]:
        """Return the use of each rank's GPU during the measured steps; nothing for CPU processes.

        Args:
            kept: Indices of the measured steps.
        """
        if any(len(start.monitors) != len(self.ranks) for start in self.starts):
            return []
        begins = [start.from_step - self.starts[0].from_step for start in self.starts]
        spans: list[tuple[StartRecords, int, int]] = []
        for start, (begin, end) in zip(
            self.starts, pairwise([*begins, self.ranks[0].step_count]), strict=True
        ):
            # the first step of each start warms up
            if steps := [index for index in kept if begin < index < end]:
                spans.append((start, steps[0] - 1, steps[-1]))
        return [
            use_between(
                [
                    (start.monitors[number], rank.ended_at[first], rank.ended_at[last])
                    for start, first, last in spans
                ]
            )
            for number, rank in enumerate(self.ranks)
        ]

    def utilization(self) -> list[UtilizationRecord]:
        """Return all readings of all GPUs, in the order of their times."""
        rows = [
            UtilizationRecord(
                timestamp=reading.timestamp,
                host=rank.host,
                rank=rank.rank,
                device=rank.device,
                utilization=reading.utilization,
                memory_bytes=reading.memory_bytes,
                power_watts=reading.power_watts,
                memory_total_bytes=reading.memory_total_bytes,
                memory_utilization=reading.memory_utilization,
            )
            for start in self.starts
            for rank, monitor in zip(start.ranks, start.monitors, strict=False)
            for reading in monitor.readings
        ]
        return sorted(rows, key=lambda row: row.timestamp)


def join_starts(starts: Sequence[Sequence[ProbeRecord]], warmup_steps: Sequence[int]) -> list[ProbeRecord]:
    """Join the records of a run's starts into one for each rank, as if one process had trained.

    A start that was interrupted has steps beyond the checkpoint from which the next one began: these were
    made again. The first steps of each start warm up.

    Args:
        starts: Records of each start that had any, by rank, in the order of the starts.
        warmup_steps: First steps of each start that are not measured.
    """
    joined: list[ProbeRecord] = []
    for start, following, warmup in zip(starts, [*starts[1:], None], warmup_steps, strict=True):
        until = None if following is None else following[0].from_step - start[0].from_step
        parts = [_first_steps(rank, until, warmup) for rank in start]
        joined = [_followed_by(*pair) for pair in zip(joined, parts, strict=True)] if joined else parts
    return joined


COLUMNS = (
    *("ended_at", "seconds", "flags", "seconds_without_training", "samples", "wait_seconds"),
    *("backward_passes", "communication_seconds"),
)
"""Fields of a record that have an entry for each step."""


def _first_steps(rank: ProbeRecord, steps: int | None, warmup_steps: int) -> ProbeRecord:
    """Cut a record after so many steps, and flag those that warm up."""
    columns = {name: getattr(rank, name)[:steps] for name in COLUMNS}
    # the first step holds what is done once
    warm = range(min(max(warmup_steps, 1), len(columns["flags"])))
    columns["flags"] = [
        bits | (WARM_UP if index in warm else 0) for index, bits in enumerate(columns["flags"])
    ]
    return rank.model_copy(update=columns)


def _followed_by(earlier: ProbeRecord, later: ProbeRecord) -> ProbeRecord:
    columns = {name: [*getattr(earlier, name), *getattr(later, name)] for name in COLUMNS}
    peaks, before = later.peak_memory, earlier.peak_memory
    evaluated = [each for each in (peaks.evaluation_bytes, before.evaluation_bytes) if each is not None]
    return later.model_copy(
        update=columns
        | {
            "from_step": earlier.from_step,
            "peak_memory": peaks.model_copy(
                update={
                    "training_bytes": max(peaks.training_bytes, before.training_bytes),
                    "whole_bytes": max(peaks.whole_bytes, before.whole_bytes),
                    "evaluation_bytes": max(evaluated, default=None),
                }
            ),
            "skipped_by_scaler": earlier.skipped_by_scaler + later.skipped_by_scaler,
        }
    )


def without_measurements(rank: ProbeRecord) -> ProbeRecord:
    """Copy a record so that none of its steps is measured."""
    flags = [bits | WARM_UP for bits in rank.flags]
    untimed = [None for _ in rank.communication_seconds]
    return rank.model_copy(update={"flags": flags, "communication_seconds": untimed})
