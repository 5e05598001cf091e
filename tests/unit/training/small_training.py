"""A rank's record by the probe, as tests of several rooms need it."""

from collections.abc import Sequence
from typing import Any

from scalewise.ranks.results.probe_record import Peaks, ProbeRecord


def record(
    rank: int = 0,
    seconds: Sequence[float] = (),
    *,
    steps: int = 20,
    samples: Sequence[int | None] | None = None,
    flags: dict[int, int] | None = None,
    without_training: dict[int, float] | None = None,
    **changed: Any,
) -> ProbeRecord:
    """A rank whose steps take 0.1 s and 8 samples each, but for what is said.

    Args:
        rank: The rank.
        seconds: Seconds of each step but the first, which is unknown.
        steps: Number of steps where no seconds are given.
        samples: Samples of each step.
        flags: Bits of single steps.
        without_training: Seconds of evaluation in single steps.
        changed: Other fields.
    """
    known = list(seconds) or [0.1] * (steps - 1)
    steps = len(known) + 1
    ended_at = [1000.0 + sum(known[:index]) for index in range(steps)]
    values: dict[str, Any] = {
        "ended": "steps",
        "rank": rank,
        "world_size": 2,
        "pid": 100 + rank,
        "host": "n1",
        "backend": "gloo",
        "device": "CPU process",
        "cuda": False,
        "threads": 1,
        "process_started": 990.0,
        "torch_imported": 992.0,
        "first_step_began": 999.0,
        "first_step_ended": 1000.0,
        "ended_at": ended_at,
        "seconds": [None, *known],
        "flags": [(flags or {}).get(index, 0) for index in range(steps)],
        "seconds_without_training": [(without_training or {}).get(index, 0.0) for index in range(steps)],
        "samples": [8] * steps if samples is None else list(samples),
        "forward_samples": None,
        "wait_seconds": [0.01] * steps,
        "backward_passes": [1] * steps,
        "optimizers": ["SGD"],
        "skipped_by_scaler": 0,
        "parallelism": ["DistributedDataParallel"],
        "weights": [1.5, -2.25],
        "batches": [float(rank), 1.0, 2.0],
        "peak_memory": Peaks(training_bytes=1, whole_bytes=1, kind="process peak RSS"),
        "versions": {},
    }
    return ProbeRecord(**(values | changed))
