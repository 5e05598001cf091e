"""Requested runs of an experiment: a first few, and more if a round requests them; counts to choose among.

An experiment with ``repeats: {min: …, max: …}`` first makes ``min`` runs of every point. One that chooses
its device counts first makes two runs on the fewest devices. A round then checks the results, and may request
more repeats or other device counts; the next round follows when those runs have finished, until one requests
none. The rounds are in ``results/{experiment}/repeats``, those of each partition that is compared apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from scalewise.config.experiment import AnyExperiment, Devices, RepeatsKey
from scalewise.config.site import Site
from scalewise.plan.run_definition import RunDefinition
from scalewise.plan.runs import combinations, partition_of, points, points_by_series, settings_of
from scalewise.records import RecordError, read_failure, read_record, read_run, seconds_between

FOLDER = "repeats"
"""Folder of the rounds, in the results of an experiment."""

FIRST_OF_BASELINE = 2
"""First runs, on the fewest devices, of a study that chooses its counts: a single run shows no scatter."""


class Round(BaseModel):
    """Content of ``round{number}.json``: the runs that an experiment has, and those that it needs next.

    Args:
        number: Rounds are counted from 1.
        rule: Fewest and most repeats.
        chooses: Whether the experiment chooses its device counts.
        repeats: Repeats that there are or that were requested, by the name of each point.
        requested: Repeats that are requested from now on, likewise.
        answers: The answer of each series so far; None if no measured count meets the criteria.
        over_budget: Points that need more runs than the budget pays.
        spent_device_hours: Cost of all runs before this round, as billed, in a study that chooses.
        budget_device_hours: The most that the experiment may spend; None for no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    experiment: str
    number: int
    rule: RepeatsKey
    chooses: bool
    repeats: dict[str, int]
    requested: dict[str, int]
    answers: dict[str, int | None] = {}
    over_budget: list[str] = []
    spent_device_hours: float | None = None
    budget_device_hours: float | None = None

    @property
    def further(self) -> dict[str, int]:
        """Number of runs that are added to each point; points without any are left out."""
        more = {point: total - self.repeats.get(point, 0) for point, total in self.requested.items()}
        return {point: runs for point, runs in more.items() if runs > 0}


def round_file(folder: Path, number: int, prefix: str = "") -> Path:
    """Return the path of a round's file below the experiment's folder; rounds are counted from 1."""
    return folder / FOLDER / f"{prefix}round{number}.json"


def part_prefix(spec: AnyExperiment) -> str:
    """Return the begin of the names of a partition's rounds, empty for an experiment without partitions."""
    partition = partition_of(spec)
    return f"{partition}." if partition else ""


def iter_rounds(
    folder: Path, prefix: str = "", check: Callable[[int], object] | None = None
) -> Iterator[Round]:
    """Yield the rounds on disk in order, up to one that requests no more runs.

    Args:
        folder: Results of the experiment.
        prefix: ``part_prefix`` of the experiment.
        check: Called with the number of each round before it is read.

    Raises:
        RecordError: a file is damaged.
    """
    for number in count(1):
        path = round_file(folder, number, prefix)
        if not path.exists():
            return
        if check is not None:
            check(number)
        judged = read_record(path, Round)
        yield judged
        if not judged.further:
            return


def judged_rounds(
    get: Callable[..., object], name: str, spec: AnyExperiment, before: int | None = None
) -> Iterator[Round]:
    """Yield the rounds of an experiment, on one partition, that are up to date for Snakemake.

    If the file of a round exists and is out of date, ``get`` raises, and Snakemake calls again when it is
    made. If there is none, the iteration ends, and ``required_rounds`` requests it: after ``get``, Snakemake
    would not check whether the later tables are out of date.

    Args:
        get: The ``get`` of the checkpoint ``judge_round``.
        name: The experiment's name.
        spec: The experiment.
        before: The first round to leave out.

    Raises:
        RecordError: a file is damaged.
    """
    prefix = part_prefix(spec)
    rounds = iter_rounds(
        Path("results") / name, prefix, lambda number: get(experiment=name, part=prefix, round=number)
    )
    return islice(rounds, None if before is None else before - 1)


def required_rounds(spec: AnyExperiment, rounds: Iterable[Round]) -> list[int]:
    """Return the numbers of the rounds so far, and of the next one; none for an experiment without rounds."""
    if not spec.has_rounds:
        return []
    judged = list(rounds)
    ended = judged and not judged[-1].further
    return list(range(1, len(judged) + (1 if ended else 2)))


def known_rounds(spec: AnyExperiment, folder: Path) -> list[Round]:
    """Read the rounds on disk that are valid for this experiment, up to a damaged one.

    They stay valid with a larger ``max``, more device counts to choose among and another budget. With another
    ``min``, or with counts that are chosen instead of all, the rounds start again.

    Args:
        spec: The experiment.
        folder: The experiment's results.
    """
    valid: list[Round] = []
    if spec.has_rounds:
        with suppress(RecordError):
            for judged in iter_rounds(folder, part_prefix(spec)):
                if judged.rule.min != spec.repeats.min or judged.chooses != spec.chooses_devices:
                    break
                valid.append(judged)
    return valid


def is_settled(spec: AnyExperiment, rounds: Sequence[Round]) -> bool:
    """Whether no round can request further runs."""
    if not spec.has_rounds:
        return True
    return bool(rounds) and rounds[-1].rule == spec.repeats and not rounds[-1].further


def requested_repeats(spec: AnyExperiment, rounds: Iterable[Round]) -> dict[str, int]:
    """Return the number of requested repeats, by the name of each point.

    Args:
        spec: The experiment.
        rounds: The rounds so far; not read if the experiment has none.
    """
    repeats = first_repeats(spec)
    if not spec.has_rounds:
        return repeats
    most = spec.repeats.max
    for judged in rounds:
        for point, total in judged.requested.items():
            if total > repeats.get(point, most):
                repeats[point] = min(total, most)
    return repeats


def first_repeats(spec: AnyExperiment) -> dict[str, int]:
    """Return the number of repeats before any round, by the name of each point."""
    if not spec.chooses_devices:
        return {point.name: spec.repeats.min for point in points(spec)}
    repeats: dict[str, int] = {}
    for series in points_by_series(spec).values():
        fewest = min(series, key=lambda point: point.world_size)
        repeats |= {point.name: FIRST_OF_BASELINE if point is fewest else 0 for point in series}
    return repeats


def requested_runs(
    runs: Sequence[RunDefinition], spec: AnyExperiment, rounds: Iterable[Round]
) -> list[RunDefinition]:
    """Return the runs to make: the first ones, and those that rounds have requested.

    Args:
        runs: All of an experiment, up to the most repeats.
        spec: The experiment.
        rounds: The rounds so far; not read if the experiment has none.
    """
    repeats = requested_repeats(spec, rounds)
    return [run for run in runs if run.repeat <= repeats[run.point]]


def resolve_choice(experiment: AnyExperiment, site: Site) -> AnyExperiment:
    """Return the experiment with the device counts that ``up_to`` means on a site."""
    up_to = experiment.devices.up_to
    if up_to is None:
        return experiment
    filled = counts_that_fill_nodes(up_to, site)
    # check_choice refuses fewer than two
    counts = counts_that_divide_batches(filled, experiment) or filled or [1]
    return experiment.model_copy(update={"devices": Devices(up_to=up_to, counts=[*counts])})


def counts_that_fill_nodes(most: int, site: Site) -> list[int]:
    """Return the device counts that leave no device of a node unused: even parts of a node, and whole nodes.

    Args:
        most: The largest of them.
        site: Facts of the machine or cluster.
    """
    node, largest = site.devices_per_node, min(most, site.most_devices)
    parts = [part for part in range(1, node) if node % part == 0]
    whole = range(node, largest + 1, node)
    return [count for count in (*parts, *whole) if count <= largest]


def counts_that_divide_batches(counts: Sequence[int], experiment: AnyExperiment) -> list[int]:
    """Return the counts that divide the batch size of strong scaling in every series."""
    if experiment.scaling != "strong":
        return list(counts)
    series = [settings_of(experiment, options) for options in combinations(experiment)]
    return [
        count
        for count in counts
        if all((each.global_batch_size or 0) % (count * each.accumulation_steps) == 0 for each in series)
    ]


# ---- what has been spent


def device_hours(seconds: float, devices: int, billed: Mapping[int, float]) -> float:
    """Return the device-hours, as billed, of a job.

    Args:
        seconds: Length of the job.
        devices: Devices that it uses.
        billed: Devices that are paid, by device count, if they are more than that.
    """
    return billed.get(devices, float(devices)) * seconds / 3600


def spent_device_hours(runs_folder: Path, billed: Mapping[int, float], partition: str) -> float:
    """Return the device-hours of all runs in a folder, failed ones included, by those records that are whole.

    Args:
        runs_folder: Holds a folder for each run.
        billed: Devices that are paid, by device count, if they are more than a run uses.
        partition: Counts the runs on this one only.
    """
    hours = 0.0
    for folder in sorted(runs_folder.glob("*")):
        with suppress(RecordError):
            seconds = 0.0
            if (failed := read_failure(folder)) is not None:
                definition, seconds = failed.definition, failed.seconds
            else:
                definition, origin = (found := read_run(folder)).definition, found.provenance
                if origin is not None:
                    seconds = origin.failed_seconds + seconds_between(origin.started_at, origin.ended_at)
            if definition.partition == partition:
                hours += device_hours(seconds, definition.shape.world_size, billed)
    return hours
