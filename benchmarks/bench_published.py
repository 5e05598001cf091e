"""Predictions held against step times that others have published, by the functions of the pipeline.

- T4: fed are one device (or the fewest of one node), two nodes and four (or three); six and more are
  predicted.
- A100, with accumulation: fed are one node and two; more are predicted.

Every column that names a training (its name, its precision) sets a series apart.

    python benchmarks/run.py published
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import pandas as pd

from scalewise.analysis.prediction.all_reduce_model import AllReduceFit, AllReduceModel
from scalewise.analysis.prediction.measured_exchange import MeasuredStep, measured_exchange
from scalewise.analysis.prediction.step_model import Baseline, Exchange, predict_point
from scalewise.analysis.statistics import Interval, median_and_range
from scalewise.plan.config.shape import Shape
from scalewise.records import Bucket, Pass

from .measure import Row
from .published_tables import (
    A100_BERT,
    EXPOSED,
    STEPS,
    T4_STEPS,
    devices_per_node,
    records,
)

FED_NODES = (2, 4)
FEWEST_NODES = 6
"""Steps are predicted from here on: five nodes hardly exceed what was measured."""
FED_NODES_OF_ACCUMULATION = 2
"""Beside one node: with accumulation little depends on the exchange."""
COVERED, SHARE_WITHIN, WITHIN, MOST_WIDTH = 0.8, 0.7, 0.15, 0.6
WITHIN_WITH_ACCUMULATION = 0.05

FORWARD_SHARE = 1 / 3
"""Of a pass: the backward pass multiplies by each weight matrix twice, the forward pass once."""
BUCKETS = 100
"""So many that gradients travel as they become ready, evenly through the backward pass: tables name none."""


@dataclass(frozen=True)
class Point:
    """A published step, and what was predicted for it.

    Args:
        training: Its name.
        predicted_seconds: The step as predicted.
        low_seconds: Lower end of its band.
        high_seconds: Upper end of its band.
        measured_seconds: The step as published.
    """

    training: str
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
        errors: As shares of the published steps; above zero the prediction is too slow.
        covered: Share of the points whose band holds the published step.
        median_relative_width: Median of the bands' widths over the predicted step.
    """

    errors: Sequence[float]
    covered: float
    median_relative_width: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> Agreement:
        """The agreement over at least one point."""
        return cls(
            errors=[point.error for point in points],
            covered=statistics.fmean(point.is_covered for point in points),
            median_relative_width=statistics.median(
                (point.high_seconds - point.low_seconds) / point.predicted_seconds for point in points
            ),
        )

    def share_within(self, most: float) -> float:
        """Share of the points whose error is at most so large."""
        return statistics.fmean(abs(error) <= most for error in self.errors)

    @property
    def median_error(self) -> float:
        """Median of the errors, signed."""
        return statistics.median(self.errors)

    @property
    def largest_error(self) -> float:
        """Size of the largest."""
        return max(map(abs, self.errors))


def rows() -> list[Row]:
    """Compare predictions with the published steps: of all trainings of a table, of each, and from less."""
    t4, a100 = predict_steps(), predict_accumulation()
    trainings = dict.fromkeys(point.training for point in t4)
    return [
        _row("T4, from one device, 2 and 4 nodes", t4, within=WITHIN, most_width=MOST_WIDTH),
        *(_row(f"T4, {name}", [each for each in t4 if each.training == name]) for name in trainings),
        _row("T4, from one device and 2 nodes", predict_steps(fed_nodes=(2,)), covered=None),
        _row("A100, BERT with accumulation", a100, within=WITHIN_WITH_ACCUMULATION, share=1.0),
    ]


def _row(
    name: str,
    points: Sequence[Point],
    *,
    covered: float | None = COVERED,
    within: float | None = None,
    share: float = SHARE_WITHIN,
    most_width: float = math.inf,
) -> Row:
    """Compare some points.

    Args:
        name: Of the points.
        points: Predicted and published.
        covered: Share whose band must hold the published step; None if the line only informs.
        within: Error that a share of the points must not exceed; None asks for none.
        share: That share.
        most_width: Of the bands, by their median: a band that holds everything says nothing.
    """
    agreement = Agreement.of(points)
    met = covered is None or agreement.covered >= covered
    met &= within is None or agreement.share_within(within) >= share
    met &= agreement.median_relative_width <= most_width
    targets = [
        f"{covered:.0%} covered" if covered else "",
        f"{share:.0%} within {within:.0%}" if within else "",
        f"band at most {most_width:.0%}" if math.isfinite(most_width) else "",
    ]
    return Row(
        what=f"published: {name}",
        ours=f"{agreement.share_within(WITHIN):.0%} within {WITHIN:.0%}, {agreement.covered:.0%} covered",
        reference=f"band as wide as {agreement.median_relative_width:.0%} of the step (median)",
        ratio=f"error {agreement.median_error:+.1%} (median), {agreement.largest_error:.1%} at most",
        n=len(points),
        target=", ".join(filter(None, targets)),
        met=met,
    )


@dataclass(frozen=True)
class PublishedSeries:
    """Steps of one training that differ in the number of nodes alone.

    Args:
        training: Its name.
        steps: Measured steps, the global batch and the accumulated passes of each shape.
        pass_seconds: A pass without any exchange.
        pass_samples: Samples of it.
        fed: Shapes whose steps the prediction starts from, ascending.
        wanted: Shapes to predict, ascending.
    """

    training: str
    steps: Mapping[Shape, tuple[float, int, int]]
    pass_seconds: float
    pass_samples: int
    fed: Sequence[Shape]
    wanted: Sequence[Shape]


def predict_steps(fed_nodes: Sequence[int] = FED_NODES) -> list[Point]:
    """Predict the steps on six and more nodes of T4.

    Args:
        fed_nodes: Numbers of nodes beyond one whose steps are fed.
    """
    return [
        point for series in _series_of_steps(pd.read_csv(T4_STEPS), fed_nodes) for point in _predict(series)
    ]


def predict_accumulation() -> list[Point]:
    """Predict the accumulated steps on more than two nodes of A100."""
    return [point for series in _series_of_accumulation(pd.read_csv(A100_BERT)) for point in _predict(series)]


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
                training=str(key[0]),
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
            training=str(key[0]),
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


def _predict(series: PublishedSeries) -> Iterator[Point]:
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
            training=series.training,
            predicted_seconds=float(row["step_seconds"]),
            low_seconds=float(row["step_seconds_low"]),
            high_seconds=float(row["step_seconds_high"]),
            measured_seconds=seconds,
        )
