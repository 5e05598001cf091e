"""Predictions held against step times that others have published, by the functions of the pipeline.

Two kinds of tables are read, told by their columns:

- steps: ``nodes, devices, batch_size_per_device, step_seconds`` and, where known, ``exposed_sync_seconds``.
  Fed are one device (or the fewest of one node), two nodes and four (or three); six and more are predicted.
- accumulation: ``nodes, devices, global_batch_size, accumulation_steps, sequences_per_second``. Fed are one
  node and two; more are predicted.

Every other column (a training's name, a precision) sets a series apart.

    python benchmarks/run.py published [--table FILE ...] [--json FILE]
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from scalewise.analysis.prediction.all_reduce_model import AllReduceFit, AllReduceModel
from scalewise.analysis.prediction.measured_exchange import MeasuredStep, measured_exchange
from scalewise.analysis.prediction.step_model import Baseline, Exchange, predict_point
from scalewise.analysis.statistics.intervals import Interval, median_and_range
from scalewise.plan.config.shape import Shape
from scalewise.records import Bucket, Pass

from .measure import Row, TableError
from .published_tables import (
    A100_BERT,
    ACCUMULATION,
    EXPOSED,
    STEPS,
    T4_STEPS,
    columns_of,
    devices_per_node,
    records,
)

FED_NODES = (2, 4)
FEWEST_NODES = 6
"""Steps are predicted from here on: five nodes hardly exceed what was measured."""
FED_NODES_OF_ACCUMULATION = 2
"""Beside one node: with accumulation little depends on the exchange."""
WITHIN, COVERED, WITHIN_WITH_ACCUMULATION = 0.15, 0.8, 0.05

FORWARD_SHARE = 1 / 3
"""Of a pass: the backward pass multiplies by each weight matrix twice, the forward pass once."""
BUCKETS = 100
"""So many that gradients travel as they become ready, evenly through the backward pass: tables name none."""


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
        n: Points.
        within_15_percent: Share of the points.
        covered: Share of the points whose band holds the measured step.
        median_error: Median of the errors' sizes, as a share of the measured step.
        median_signed_error: Median of the errors; above zero the prediction is too slow.
        largest_error: Size of the largest.
        median_relative_width: Median of the bands' widths over the predicted step.
    """

    n: int
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
            n=len(points),
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
    points = {path: predict_table(path) for path in tables or (T4_STEPS, A100_BERT)}
    whole = [point for each in points.values() for point in each]
    if json_file is not None:
        told = asdict(Agreement.of(whole)) | {
            "tables": {path.name: asdict(Agreement.of(each)) for path, each in points.items()},
            "points": [
                asdict(point) | {"error": point.error, "covered": point.is_covered} for point in whole
            ],
        }
        json_file.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return [row for path, each in points.items() for row in table_rows(path, each)]


def table_rows(path: Path, points: Sequence[Point]) -> Iterator[Row]:
    """The lines of one table: all its points, each first column's series, and what less would give."""
    name, whole = path.name, Agreement.of(points)
    has_steps = columns_of(path) >= STEPS
    most = math.inf if has_steps else WITHIN_WITH_ACCUMULATION
    target = f"{COVERED:.0%} covered" + ("" if has_steps else f", all within {most:.0%}")
    yield _row(name, whole, target, met=whole.covered >= COVERED and whole.largest_error <= most)
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.series.split(", ")[0], []).append(point)
    for series, mine in groups.items() if len(groups) > 1 else ():
        yield _row(f"{name}, {series}", Agreement.of(mine))
    if has_steps:
        yield _row(f"{name}, fed two nodes alone", Agreement.of(predict_table(path, fed_nodes=FED_NODES[:1])))


def _row(name: str, agreement: Agreement, target: str = "", *, met: bool = True) -> Row:
    return Row(
        what=f"published: {name}",
        ours=f"{agreement.within_15_percent:.0%} within {WITHIN:.0%}, {agreement.covered:.0%} covered",
        reference=f"band as wide as {agreement.median_relative_width:.0%} of the step (median)",
        ratio=f"error {agreement.median_signed_error:+.1%} (median), {agreement.largest_error:.1%} at most",
        n=agreement.n,
        target=target,
        met=met,
    )


@dataclass(frozen=True)
class PublishedSeries:
    """Steps of one training that differ in the number of nodes alone.

    Args:
        name: Values of the columns that set series apart.
        steps: Measured steps, the global batch and the accumulated passes of each shape.
        pass_seconds: A pass without any exchange.
        pass_samples: Samples of it.
        fed: Shapes whose steps the prediction starts from, ascending.
        wanted: Shapes to predict, ascending.
    """

    name: str
    steps: Mapping[Shape, tuple[float, int, int]]
    pass_seconds: float
    pass_samples: int
    fed: Sequence[Shape]
    wanted: Sequence[Shape]


def predict_table(path: Path, fed_nodes: Sequence[int] = FED_NODES) -> list[Point]:
    """Every step of a table that it can feed and that lies beyond what was fed.

    Args:
        path: CSV file of one of the two kinds.
        fed_nodes: Numbers of nodes beyond one whose steps are fed, of a table of steps.

    Raises:
        TableError: The table has other columns, or nothing in it can be predicted.
    """
    table, columns = pd.read_csv(path), columns_of(path)
    if columns >= STEPS:
        all_series = _series_of_steps(table, fed_nodes)
    elif columns >= ACCUMULATION:
        all_series = _series_of_accumulation(table)
    else:
        raise TableError(f"{path} needs the columns {sorted(STEPS)} or {sorted(ACCUMULATION)}")
    points = [point for series in all_series for point in _predict(path.name, series)]
    if not points:
        raise TableError(f"{path} has no series with one node, two, and more than are fed")
    return points


def _series_of_steps(table: pd.DataFrame, fed_nodes: Sequence[int]) -> Iterator[PublishedSeries]:
    own = [name for name in table.columns if name not in {*STEPS, EXPOSED} or name == "batch_size_per_device"]
    for key, same in table.groupby(own, sort=False):
        rows = records(same.sort_values(["nodes", "devices"]))
        # one device alone, else the fewest: less what waits for gradients, where the table tells
        first = rows[0]
        if first["nodes"] > 1:
            continue
        computing = first["step_seconds"] - first.get(EXPOSED, 0.0)
        batch = int(first["batch_size_per_device"])
        for devices, mine in groupby(sorted(rows, key=devices_per_node), key=devices_per_node):
            shapes = {Shape(int(row["nodes"]), devices): float(row["step_seconds"]) for row in mine}
            nodes = {shape.nodes for shape in shapes}
            fed = {3 if number == 4 and number not in nodes else number for number in fed_nodes}
            yield PublishedSeries(
                name=", ".join(map(str, (*key, f"{devices} a node"))),
                steps={shape: (seconds, batch * shape.world_size, 1) for shape, seconds in shapes.items()},
                pass_seconds=computing,
                pass_samples=batch,
                fed=sorted(shape for shape in shapes if shape.nodes in fed),
                wanted=sorted(shape for shape in shapes if shape.nodes >= FEWEST_NODES),
            )


def _series_of_accumulation(table: pd.DataFrame) -> Iterator[PublishedSeries]:
    left_out = {"nodes", "devices", "accumulation_steps", "sequences_per_second"}
    table = table.assign(devices_per_node=table["devices"] // table["nodes"])
    own = [name for name in table.columns if name not in left_out]
    for key, same in table.groupby(own, sort=False):
        rows = records(same.sort_values("nodes"))
        first = rows[0]
        if first["nodes"] > 1:
            continue
        steps = {}
        for row in rows:
            batch, passes = int(row["global_batch_size"]), int(row["accumulation_steps"])
            shape = Shape(int(row["nodes"]), int(row["devices_per_node"]))
            steps[shape] = (batch / row["sequences_per_second"], batch, passes)
        seconds, batch, passes = next(iter(steps.values()))
        yield PublishedSeries(
            name=", ".join(map(str, (*key[:-1], f"{key[-1]} a node"))),
            steps=steps,
            pass_seconds=seconds / passes,
            pass_samples=round(batch / first["devices"] / passes),
            fed=[shape for shape in steps if shape.nodes == FED_NODES_OF_ACCUMULATION],
            wanted=[shape for shape in steps if shape.nodes > FED_NODES_OF_ACCUMULATION],
        )


def _baseline(series: PublishedSeries, shape: Shape) -> Baseline:
    """One device with the passes of a shape: gradients are ready evenly through the backward pass."""
    forward = series.pass_seconds * FORWARD_SHARE
    return Baseline(
        passes=[
            Pass(
                batch_size=series.pass_samples,
                forward_seconds=forward,
                backward_seconds=series.pass_seconds - forward,
            )
        ],
        buckets=[Bucket(bytes=1, ready_fraction=(1 + index) / BUCKETS) for index in range(BUCKETS)],
        pass_scale=1.0,
        other_seconds=0.0,
        loader_seconds_per_sample=0.0,
        accumulation_steps=series.steps[shape][2],
        # the tables know of no epochs: every step is a full one
        train_samples=1,
    )


def _unit_network(shapes: Sequence[Shape]) -> AllReduceModel:
    """All-reduces of an unknown time: a second for all buckets, none of it inside a node or latency."""

    def exactly(value: float) -> Interval:
        return Interval(value, value, value, 1)

    alone = Shape(1, shapes[0].devices_per_node)
    seconds = {alone: 0.0} | dict.fromkeys(shapes, 1 / BUCKETS)
    fits = {
        shape: AllReduceFit(
            shape, np.ones(1), np.full((3, 1), each), exactly(0.0), exactly(each), worst_miss=0.0
        )
        for shape, each in seconds.items()
    }
    return AllReduceModel(fits, {}, "nccl")


def _predict(table: str, series: PublishedSeries) -> Iterator[Point]:
    """Every wanted step of a series."""
    if not series.fed or not series.wanted:
        return
    measured = [
        MeasuredStep(shape, series.steps[shape][1], median_and_range([series.steps[shape][0]]))
        for shape in series.fed
    ]
    # passes are those of the largest shape that is fed; with several they do not differ
    base = _baseline(series, series.fed[-1])
    exchange = measured_exchange(_unit_network(series.fed), measured, [base], absolute=False)
    assert exchange is not None, "every step that is fed has its all-reduce"
    for shape in series.wanted:
        seconds, batch, _ = series.steps[shape]
        row = predict_point(
            [[_baseline(series, shape)]],
            shape.world_size,
            batch,
            batch,
            [Exchange(partial(exchange.network.all_reduce, shape), exchange.unexplained_seconds)],
        )
        yield Point(
            table=table,
            series=series.name,
            nodes=shape.nodes,
            devices=shape.world_size,
            fed_nodes=[each.nodes for each in series.fed],
            predicted_seconds=float(row["step_seconds"]),
            low_seconds=float(row["step_seconds_low"]),
            high_seconds=float(row["step_seconds_high"]),
            measured_seconds=seconds,
        )
