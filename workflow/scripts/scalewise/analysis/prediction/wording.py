"""The sentences on predictions: what they assume, what limits them, what lies beyond the study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from scalewise.plan.config.program import AnySettings
from scalewise.plan.config.shape import Shape, count_devices
from scalewise.plan.formatting import format_ratio, listed, percent
from scalewise.records import Measurements

if TYPE_CHECKING:
    # the page needs no statistics
    from scalewise.analysis.prediction.all_reduce_model import AllReduceModel

HIDDEN = "up to {most}, communication hides behind the backward pass."
SHOWN = (
    "from {first} on, communication no longer hides behind the backward pass: {share} of the step is exposed."
)
PROGRAM = (
    "predicted from the step on one device, the {sizes} MB of its gradients and the measured all-reduce. The "
    "overlap of a program is not measured. At best the exchange hides behind all of the computing (the step "
    "is the longer of the two), at worst behind nothing{in_each} (the step is their sum). The line assumes "
    "that two thirds of the computing are the backward pass, with DDP's buckets of 25 MiB."
)
SMALLER_BATCH = (
    "only one batch size was measured on a device. The line takes the time of a smaller batch as "
    "proportional, which is the best case; at worst it stays the same."
)
NO_DDP = (
    "on 1 device no wrapper was seen that exchanges gradients; on more, DistributedDataParallel is assumed."
)
NO_LOADER = "the wait for data is not known and counts as computing."
COUNTED = (
    "on {devices} devices the band is narrower: it starts from the study's steps on {anchor}, where DDP "
    "counted what waited for the exchange."
)
NOT_MEASURED = "the all-reduce over {devices} devices was not measured; it is extrapolated from {bases}."
TWO_NODES = " Two nodes are no safe base: a step on two can be slower than on four."
BEYOND = (
    "beyond measured nodes the exchange stays as long as it was at best, and grows by log2 of the nodes at "
    "worst. The band does not cover a network that is slower between distant nodes or shared with others, a "
    "library that changes its algorithm, or a single slow node."
)
LINK_ERROR = "The all-reduce over {shape} was not measured: {error}."
NO_LINE = (
    "The all-reduce over {shape} is no straight line in the message's size: {miss} off at worst. Its latency "
    "and bandwidth are those from 1 MiB on."
)
PREDICTED = (
    "{devices}: {speedup}x as fast as 1 ({low} to {high}), efficiency {efficiency:.2f}: predicted, not "
    "measured."
)


def program_notes(
    rows: Sequence[Mapping[str, Any]], settings: AnySettings, alone: Sequence[Measurements]
) -> Iterator[str]:
    """Say what is assumed of a program, and what its band therefore covers.

    Args:
        rows: The predictions of its series.
        settings: Settings of the series.
        alone: Runs on one device.
    """
    several = [row for row in rows if row["devices"] > 1]
    if not several:
        return
    programs = [run.program for run in alone if run.program is not None]
    sizes = listed(sorted({f"{(program.gradient_bytes or 0) / 1e6:,.1f}" for program in programs}))
    passes = settings.accumulation_steps
    yield PROGRAM.format(sizes=sizes, in_each=f", in each of its {passes} passes" if passes > 1 else "")
    if settings.scaling == "strong":
        yield SMALLER_BATCH
    if not any(program.parallelism for program in programs):
        yield NO_DDP
    if any(run.loader_wait_fraction is None for run in alone):
        yield NO_LOADER
    for anchor, devices in _devices_by(several, "from_steps_on").items():
        if anchor:
            yield COUNTED.format(devices=listed(devices), anchor=anchor)


def hiding_notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say where communication stops hiding."""
    several = [row for row in rows if row["devices"] > 1]
    if not several:
        return
    last_hidden = max((index for index, row in enumerate(several) if row["hidden"]), default=-1)
    if last_hidden == len(several) - 1:
        yield HIDDEN.format(most=count_devices(several[-1]["devices"]))
    else:
        first = several[last_hidden + 1]
        share = first["exposed_seconds"] / first["step_seconds"]
        shown = percent(share, 0 if share >= 0.01 else 1)
        yield SHOWN.format(first=count_devices(first["devices"]), share=shown)


def inference_notes(
    rows: Sequence[Mapping[str, Any]], network: AllReduceModel, *, of_program: bool
) -> Iterator[str]:
    """Name the all-reduces that were not measured, and their bases."""
    inferred = [row for row in rows if row["devices"] > 1 and row["extrapolated"]]

    def bases(row: Mapping[str, Any]) -> str:
        if row["from_steps_on"] and not of_program:
            return f"the study's own steps on {listed(row['from_steps_on'].split())}"
        return f"{listed([str(base.nodes) for base in network.bases(Shape.parse(row['shape']))])} nodes"

    by_bases = _devices_by([{**row, "bases": bases(row)} for row in inferred], "bases")
    for base, devices in by_bases.items():
        unsafe = TWO_NODES if base == "2 nodes" else ""
        yield NOT_MEASURED.format(devices=", ".join(devices), bases=base) + unsafe
    if inferred:
        yield BEYOND


def _devices_by(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, list[str]]:
    """Device counts by the value of a column."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row[column], []).append(str(row["devices"]))
    return found


def link_notes(network: AllReduceModel) -> Iterator[str]:
    """Name the links that were not measured, and those without one latency and bandwidth."""
    for shape, error in network.errors.items():
        yield LINK_ERROR.format(shape=shape, error=error.rstrip("."))
    for shape, fit in network.fits.items():
        if not fit.is_line:
            yield NO_LINE.format(shape=shape, miss=percent(fit.worst_miss, 0))


def beyond_sentences(table: pd.DataFrame, series: str | None) -> list[str]:
    """Return a sentence for each prediction of a series beyond the device counts that the study plans.

    Args:
        table: Contents of prediction.csv.
        series: Name of the series in scaling.csv.
    """
    beyond = table[(table["series"] == series) & ~table["measured_point"].astype(bool)]
    return [
        PREDICTED.format(
            devices=count_devices(int(row["devices"])),
            speedup=format_ratio(row["speedup"]),
            low=format_ratio(row["speedup_low"]),
            high=format_ratio(row["speedup_high"]),
            efficiency=row["parallel_efficiency"],
        )
        for _, row in beyond.iterrows()
        if pd.notna(row["speedup"])
    ]
