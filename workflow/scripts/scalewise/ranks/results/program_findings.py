"""Findings on a user's program: what it did, what is unknown of it, and what its user should know."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from scalewise.config.program import ProgramSettings, program_files
from scalewise.measure.step_flags import EVALUATION, NO_GRAD
from scalewise.ranks.results.measured_steps import MeasuredSteps, NoGrad
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.samples import samples_seen
from scalewise.records import MetricReading, ProgramMeasurements


def program_measurements(
    settings: ProgramSettings,
    records: Sequence[ProbeRecord],
    steps: MeasuredSteps,
    argv: Sequence[str],
    readings: Sequence[tuple[float, float]],
    metric_line: str,
) -> ProgramMeasurements:
    """Collect what is known of a user's program in addition to the figures of every training.

    Args:
        settings: The program's.
        records: One for each rank.
        steps: The steps that are measured.
        argv: Interpreter, program and arguments of rank 0.
        readings: Monotonic seconds and value of each metric that rank 0 printed.
        metric_line: First line of which the metric was read, and the number.
    """
    unknown = _unknown(records)
    metric = metric_readings(records[0], readings, steps.no_grad)
    target = settings.metric
    reached = (each.seconds for each in metric if target is not None and target.is_reached(each.value))
    return ProgramMeasurements(
        command=list(argv),
        ended="steps" if all(record.ended == "steps" for record in records) else "itself",
        samples_from=steps.samples.source,
        samples_seen=samples_seen(records).per_step,
        optimizers=list(dict.fromkeys(name for record in records for name in record.optimizers)),
        skipped_steps=records[0].skipped_by_scaler,
        parallelism=list(dict.fromkeys(name for record in records for name in record.parallelism)),
        precision=_precision(records[0]),
        compiled=any(record.compiled for record in records),
        gradient_bytes=_gradient_bytes(records, unknown),
        losses=_losses(records[0]),
        metric=_thinned(metric),
        metric_line=metric_line,
        seconds_to_metric=next(reached, None),
        imported_files=_imported(records),
        unknown=unknown,
        notes=_notes(settings, records, steps),
        cautions=[*steps.cautions, *cautions_on_epochs(records, settings)],
        throughput_with_no_grad=steps.throughput_with_no_grad,
    )


def _unknown(records: Sequence[ProbeRecord]) -> dict[str, str]:
    """Say why a quantity of a program is unknown."""
    unknown: dict[str, str] = {}
    if not all(record.communication_seconds for record in records):
        unknown["communication"] = (
            "it is counted by DistributedDataParallel, and none was seen on every rank"
            if len(records) > 1
            else "there is no other rank"
        )
    if not all(record.wait_seconds for record in records):
        unknown["loader wait"] = "no DataLoader of PyTorch feeds the thread that trains"
    unknown["test accuracy"] = "the program does not tell it; `metric` reads a number from what it prints"
    unknown["parts of the start-up"] = "process group, data and model are made in the program"
    return unknown


def cautions_on_epochs(records: Sequence[ProbeRecord], settings: ProgramSettings) -> list[str]:
    """Say that more ranks make no epoch shorter, because each of them reads the whole dataset."""
    if len(records) == 1 or settings.same_batches or not all(record.reads_all for record in records):
        return []
    return [
        f"Each of the {len(records)} ranks reads the whole dataset in an epoch: more devices make no epoch "
        "shorter. If they are to share it, give the DataLoader a DistributedSampler."
    ]


def _losses(record: ProbeRecord) -> list[tuple[int, float | None]]:
    return sorted(((int(step), loss) for step, loss in record.losses.items()), key=lambda each: each[0])


MOST_READINGS = 1000
"""Most readings of a metric that are kept, evenly over the run and with the last one; the first that reached
the target counts apart."""


def _thinned(readings: list[MetricReading]) -> list[MetricReading]:
    stride = max(-(-len(readings) // MOST_READINGS), 1)
    return readings[(len(readings) - 1) % stride :: stride]


def _precision(record: ProbeRecord) -> str:
    """``bfloat16 by autocast, parameters float32``."""
    formats = sorted({name.rpartition(":")[2] for name in record.precision})
    parts = [f"{' and '.join(formats)} by autocast"] if formats else []
    stored = [name.removeprefix("torch.") for name in record.parameter_dtypes]
    return ", ".join([*parts, f"parameters {' and '.join(stored)}"] if stored else parts)


def _gradient_bytes(records: Sequence[ProbeRecord], unknown: dict[str, str]) -> int | None:
    if any(record.sharded for record in records):
        unknown["bytes of gradients"] = "the model is divided over the ranks, which exchange parameters too"
        return None
    return records[0].gradient_bytes


def _imported(records: Sequence[ProbeRecord]) -> dict[str, str]:
    """Imported files of all ranks, by a path from the working directory where they lie below it."""
    here = Path.cwd()
    found: dict[str, str] = {}
    for record in records:
        for name, digest in record.imported_files.items():
            path = Path(name)
            found[str(path.relative_to(here)) if path.is_relative_to(here) else name] = digest
    return dict(sorted(found.items()))


def _notes(settings: ProgramSettings, records: Sequence[ProbeRecord], steps: MeasuredSteps) -> list[str]:
    notes = [*steps.notes]
    events = dict.fromkeys(event for record in records for event in record.events)
    notes += [f"{event[0].upper()}{event[1:]}." if event else "" for event in events]
    done = min(record.step_count for record in records)
    by_itself = any(record.ended == "itself" for record in records)
    if settings.steps is not None and by_itself:
        asked = settings.warmup_steps + settings.steps
        if done < asked:
            notes.append(
                f"The program came to its own end after {done} steps, before the {asked} that were asked for."
            )
    known = [path.resolve() for path in (*program_files(settings), *map(Path, settings.files))]
    imported = {name: Path(name).resolve() for record in records for name in record.imported_files}
    others = [name for name, path in imported.items() if not any(map(path.is_relative_to, known))]
    if others:
        notes.append(
            f"It imports {len(others)} files that `files` does not name ({', '.join(others[:3])}): a change "
            "in them does not train again. Name them, or their folder."
        )
    return notes


LOST_LOSSES = 3
"""Last losses, all of them not finite, by which a training has diverged although its weights are finite."""


def metric_readings(
    rank: ProbeRecord, readings: Sequence[tuple[float, float]], no_grad: NoGrad | None = None
) -> list[MetricReading]:
    """Date numbers that were printed by the training's own clock.

    Args:
        rank: The rank that printed them.
        readings: Monotonic seconds of the rank's host, and the number, of each.
        no_grad: Kind of the forward passes without gradients; those of the training take its time.
    """
    of_steps = (
        rank.step_seconds(index, training_only=no_grad != "training" or bool(rank.flags[index] & EVALUATION))
        for index in range(rank.step_count)
    )
    # added up once: a program may print a number in each of very many steps
    seconds = [0.0, *accumulate(of_steps)]
    first = (rank.first_step_seconds or 0.0) if rank.seconds[:1] == [None] else 0.0
    found = []
    for at, value in readings:
        done = bisect_right(rank.ended_at, at)
        found.append(MetricReading(seconds=seconds[done] + (first if done else 0.0), step=done, value=value))
    return found


def divergence(ranks: Sequence[ProbeRecord]) -> str:
    """Say which weights or losses are no longer finite at the end of a run; empty if none are known to be.

    A single loss may be lost where a gradient scaler or the program itself skips the update. So if the
    weights are known to be finite, only several losses in a row count.

    Args:
        ranks: One record for each rank; the losses are those of rank 0.
    """
    step = min(rank.step_count for rank in ranks)
    if lost := [rank.rank for rank in ranks if rank.weights_finite is False]:
        return f"the weights of rank {lost[0]} are no longer finite after {step} steps"
    losses = [loss for _, loss in sorted(ranks[0].losses.items(), key=lambda each: int(each[0]))]
    last = losses[-LOST_LOSSES if ranks[0].weights_finite else -1 :]
    if last and all(loss is None for loss in last):
        return f"the loss is no longer finite after {step} steps"
    return ""


def evaluation_seconds(rank: ProbeRecord, no_grad: NoGrad | None) -> float:
    """Host seconds of a rank's evaluations."""
    evaluates = EVALUATION if no_grad == "training" else EVALUATION | NO_GRAD
    return sum(
        seconds
        for seconds, bits in zip(rank.seconds_without_training, rank.flags, strict=True)
        if bits & evaluates
    )
