"""Predictions held against step times that others have published, by the functions of the pipeline.

Fed are the rows of one node (or device), of two and of four nodes; the rows of more are predicted. Two kinds
of tables are read, told by their columns:

- steps: ``nodes, devices, batch_size_per_device, step_seconds`` and, where known, ``exposed_sync_seconds``.
- accumulation: ``nodes, devices, global_batch_size, accumulation_steps, sequences_per_second``.

Every other column (a training's name, a precision) sets a series apart.

    python benchmarks/run.py published [--table FILE ...] [--json FILE]
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from scalewise.analysis.prediction.all_reduce_model import AllReduceFit, AllReduceModel
from scalewise.analysis.prediction.measured_exchange import MeasuredStep, measured_exchange
from scalewise.analysis.prediction.step_model import Baseline, predict_point
from scalewise.analysis.statistics.intervals import median_interval
from scalewise.plan.config.shape import Shape
from scalewise.records import Bucket, Pass

from .measure import Row

TABLES = Path(__file__).resolve().parent / "published"
T4_STEPS, A100_BERT = TABLES / "t4-steps.csv", TABLES / "a100-bert-strong.csv"

FED_NODES = (2, 4)
FEWEST_NODES = 6
"""Steps are predicted from here on: with five, what was measured is only just exceeded."""
FED_NODES_OF_ACCUMULATION = (2,)
WITHIN, COVERED, WITHIN_OF_ACCUMULATION = 0.15, 0.8, 0.05

FORWARD_SHARE = 1 / 3
"""Of a pass: the backward pass multiplies by each weight matrix twice, the forward pass once."""
BUCKETS = 25
"""Equal buckets, ready one after the other through the backward pass. The tables do not name them."""

STEPS = {"nodes", "devices", "batch_size_per_device", "step_seconds"}
ACCUMULATION = {"nodes", "devices", "global_batch_size", "accumulation_steps", "sequences_per_second"}


class TableError(ValueError):
    """A table that cannot be read; the message says what is missing."""


@dataclass(frozen=True)
class Point:
    """A published step, and what was predicted for it.

    Args:
        table: Name of the file.
        series: Values of the columns that set series apart.
        nodes: Of the training.
        devices: Of the training.
        fed_nodes: Numbers of nodes whose steps the prediction starts from.
        predicted_seconds: The step as predicted.
        low_seconds: Lower end of its band.
        high_seconds: Upper end of its band.
        measured_seconds: The step as published.
    """

    table: str
    series: str
    nodes: int
    devices: int
    fed_nodes: list[int]
    predicted_seconds: float
    low_seconds: float
    high_seconds: float
    measured_seconds: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of the measured step."""
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def is_covered(self) -> bool:
        """Whether the band holds the measured step."""
        return self.low_seconds <= self.measured_seconds <= self.high_seconds


@dataclass(frozen=True)
class Agreement:
    """How far predictions agree with published steps.

    Args:
        points: How many.
        within_15_percent: Share of the points.
        covered: Share of the points whose band holds the measured step.
        median_error: Median of the errors' sizes, as a share of the measured step.
        median_signed_error: Median of the errors; above zero the prediction is too slow.
        largest_error: Size of the largest.
        median_relative_width: Median of the bands' widths over the predicted step.
    """

    points: int
    within_15_percent: float
    covered: float
    median_error: float
    median_signed_error: float
    largest_error: float
    median_relative_width: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> Agreement:
        """The agreement over at least one point."""
        errors = [point.error for point in points]
        return cls(
            points=len(points),
            within_15_percent=statistics.fmean(abs(error) <= WITHIN for error in errors),
            covered=statistics.fmean(point.is_covered for point in points),
            median_error=statistics.median(map(abs, errors)),
            median_signed_error=statistics.median(errors),
            largest_error=max(map(abs, errors)),
            median_relative_width=statistics.median(
                (point.high_seconds - point.low_seconds) / point.predicted_seconds for point in points
            ),
        )


def rows(tables: Sequence[Path] = (), json_file: Path | None = None) -> list[Row]:
    """Hold the prediction against published tables.

    Args:
        tables: CSV files; without any, those of this folder.
        json_file: Receives every point and the agreement.
    """
    points = {path.name: predict_table(path) for path in tables or (T4_STEPS, A100_BERT)}
    whole = [point for each in points.values() for point in each]
    if json_file is not None:
        told = asdict(Agreement.of(whole)) | {
            "tables": {name: asdict(Agreement.of(each)) for name, each in points.items()},
            "points": [
                asdict(point) | {"error": point.error, "covered": point.is_covered} for point in whole
            ],
        }
        json_file.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return [row for name, each in points.items() for row in table_rows(name, each)]


def table_rows(name: str, points: Sequence[Point]) -> Iterator[Row]:
    """The lines of one table: all its points, then each first column's series by itself."""
    whole = Agreement.of(points)
    yield _row(name, whole, f"{COVERED:.0%} covered", met=whole.covered >= COVERED)
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.series.split(", ")[0], []).append(point)
    for series, mine in groups.items() if len(groups) > 1 else ():
        yield _row(series, Agreement.of(mine))


def _row(name: str, agreement: Agreement, target: str = "", *, met: bool = True) -> Row:
    return Row(
        what=f"published: {name}: steps within 15 %, covered by the band; the band's median width",
        ours=f"{agreement.within_15_percent:.0%}, {agreement.covered:.0%}; "
        f"{agreement.median_relative_width:.0%} of the step",
        ratio=f"error {agreement.median_signed_error:+.1%} (median), {agreement.largest_error:.0%} at most",
        n=agreement.points,
        target=target,
        met=met,
    )


def predict_table(path: Path) -> list[Point]:
    """Every step of a table that it can feed and that lies beyond what was fed.

    Raises:
        TableError: The table has other columns, or nothing in it can be predicted.
    """
    table = pd.read_csv(path)
    columns = set(table.columns)
    if columns >= STEPS:
        points = list(_of_steps(table, path.name))
    elif columns >= ACCUMULATION:
        points = list(_of_accumulation(table, path.name))
    else:
        raise TableError(f"{path} needs the columns {sorted(STEPS)} or {sorted(ACCUMULATION)}")
    if not points:
        raise TableError(f"{path} has no series with two nodes and with more than are fed")
    return points


def _of_steps(table: pd.DataFrame, name: str) -> Iterator[Point]:
    table = table.assign(devices_per_node=table["devices"] // table["nodes"])
    own = [c for c in table.columns if c not in {"nodes", "devices", "step_seconds", "exposed_sync_seconds"}]
    if "exposed_sync_seconds" not in table:
        table = table.assign(exposed_sync_seconds=0.0)
    training = [column for column in own if column != "devices_per_node"]
    for key, mine in table.groupby(own, sort=False):
        values = dict(zip(own, key, strict=True))
        same = table[(table[training] == pd.Series({c: values[c] for c in training})).all(axis=1)]
        # one device alone, else the fewest: less what waits for gradients, if the table tells
        first = same.sort_values(["nodes", "devices"]).iloc[0]
        if first["nodes"] > 1:
            continue
        batch = int(values["batch_size_per_device"])
        base = _baseline(first["step_seconds"] - first["exposed_sync_seconds"], batch)
        steps = {
            Shape(int(row.nodes), int(row.devices_per_node)): float(row.step_seconds)
            for row in mine.itertuples()
        }
        fed = [shape for shape in steps if shape.nodes in FED_NODES]
        wanted = [shape for shape in steps if shape.nodes >= FEWEST_NODES]
        bases = {shape: base for shape in steps}
        sizes = {shape: batch * shape.world_size for shape in steps}
        series = ", ".join(str(values[column]) for column in own)
        yield from _predict(name, series, bases, sizes, steps, sorted(fed), sorted(wanted))


def _of_accumulation(table: pd.DataFrame, name: str) -> Iterator[Point]:
    table = table.assign(devices_per_node=table["devices"] // table["nodes"])
    left_out = {"nodes", "devices", "accumulation_steps", "sequences_per_second"}
    own = [column for column in table.columns if column not in left_out]
    for key, mine in table.groupby(own, sort=False):
        one = mine[mine["nodes"] == 1]
        if one.empty:
            continue
        first = one.iloc[0]
        seconds = first["global_batch_size"] / first["sequences_per_second"] / first["accumulation_steps"]
        batch = first["global_batch_size"] / first["devices"] / first["accumulation_steps"]
        micro = _baseline(seconds, round(batch))
        steps, bases, sizes = {}, {}, {}
        for row in mine.itertuples():
            shape = Shape(int(row.nodes), int(row.devices_per_node))
            steps[shape] = float(row.global_batch_size / row.sequences_per_second)
            bases[shape] = replace(micro, accumulation_steps=int(row.accumulation_steps))
            sizes[shape] = int(row.global_batch_size)
        fed = sorted(shape for shape in steps if shape.nodes in FED_NODES_OF_ACCUMULATION)
        wanted = sorted(shape for shape in steps if shape.nodes > max(FED_NODES_OF_ACCUMULATION))
        yield from _predict(name, ", ".join(map(str, key)), bases, sizes, steps, fed, wanted)


def _baseline(seconds: float, batch_size: int) -> Baseline:
    """One device: a pass of so many seconds, and gradients that are ready evenly through it."""
    forward = seconds * FORWARD_SHARE
    return Baseline(
        passes=[
            Pass(batch_size=batch_size, forward_seconds=forward, backward_seconds=seconds - forward)
        ],
        buckets=[Bucket(bytes=1, ready_fraction=(1 + index) / BUCKETS) for index in range(BUCKETS)],
        pass_scale=1.0,
        other_seconds=0.0,
        loader_seconds_per_sample=0.0,
        accumulation_steps=1,
        # the tables know of no epochs: every step is a full one
        train_samples=1,
    )


def _unit_network(shapes: Sequence[Shape]) -> AllReduceModel:
    """All-reduces of an unknown time each: a second for the buckets together, all of it across nodes."""
    first = shapes[0]
    fits = {shape: _unit_fit(shape, 1 / BUCKETS) for shape in shapes}
    fits[Shape(1, first.devices_per_node)] = _unit_fit(Shape(1, first.devices_per_node), 0.0)
    return AllReduceModel(fits, {}, "nccl")


def _unit_fit(shape: Shape, seconds: float) -> AllReduceFit:
    return AllReduceFit(shape, np.ones(1), np.full((1, 1), seconds), np.zeros(1), np.full(1, seconds), 0.0)


def _predict(
    table: str,
    series: str,
    bases: dict[Shape, Baseline],
    sizes: dict[Shape, int],
    steps: dict[Shape, float],
    fed: Sequence[Shape],
    wanted: Sequence[Shape],
) -> Iterator[Point]:
    """The points of one series with one number of devices a node, all but ``table`` and ``series`` by shape."""
    if not fed or not wanted:
        return
    measured = [
        MeasuredStep(shape, sizes[shape], median_interval([steps[shape]]), [bases[shape]]) for shape in fed
    ]
    exchange = measured_exchange(_unit_network(fed), measured, absolute=False)
    assert exchange is not None, "every step that is fed has its all-reduce"
    for shape in wanted:
        row = predict_point(
            [bases[shape]],
            shape.world_size,
            sizes[shape],
            sizes[shape],
            partial(exchange.network.all_reduce, shape),
            exchange.unexplained_seconds,
        )
        yield Point(
            table=table,
            series=series,
            nodes=shape.nodes,
            devices=shape.world_size,
            fed_nodes=[each.nodes for each in fed],
            predicted_seconds=float(row["step_seconds"]),
            low_seconds=float(row["step_seconds_low"]),
            high_seconds=float(row["step_seconds_high"]),
            measured_seconds=steps[shape],
        )
