"""Predicted against measured steps over two nodes whose link is held at a known speed.

On the Slurm lab of the tests (root on Linux, with Slurm installed): two nodes on this machine, one device
each, through the whole pipeline. `snakemake predict` makes the prediction from the all-reduce and from runs
on one device, before anything has run on two. Two such runs go on at once: the two ranks of this machine
slow each other, and so must the baseline's.

    python benchmarks/run.py prediction
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tests.slurm.lab import Lab
from tests.slurm.study import SITE, ClusterStudy
from tests.startup.sitecustomize import for_children

from scalewise.records import RunRecord, read_summary

from .measure import Row, spread

WITHIN = 0.15
REPEATS, MEASURED = 4, 3
"""Runs on one device, an even number so that two can go on at once, and on two devices."""

BATCH, WARMUP_STEPS = 32, 5
LIMIT_SECONDS = 1200


@dataclass(frozen=True)
class Link:
    """A speed at which the lab's nodes send.

    Args:
        rate: as tc has it.
        burst: what passes at once after a pause: about 2 ms of the rate, so that a pause saves up little.
        label: as the table has it.
        steps: on two devices, of each model; a slow link needs few for a time worth measuring.
    """

    rate: str
    burst: str
    label: str
    steps: dict[str, int]


LINKS = (
    Link("100mbit", "32k", "100 Mbit/s", {"mnist": 30, "wide": 20}),
    Link("200mbit", "64k", "200 Mbit/s", {"mnist": 50, "wide": 25}),
    Link("1gbit", "128k", "1 Gbit/s", {"mnist": 100, "wide": 60}),
)
MODELS = {"mnist": "mnist_cnn", "wide": "planted_wide"}


@dataclass(frozen=True)
class Point:
    """One model over one link.

    Args:
        link: its label.
        gradient_bytes: that travel each step.
        predicted: the row of prediction.csv on two devices.
        measured: mean step of each repeat on two devices, in seconds.
        alone: the same on one device.
    """

    link: str
    gradient_bytes: int
    predicted: dict[str, Any]
    measured: list[float]
    alone: list[float]

    @property
    def error(self) -> float:
        """Of the predicted step, as a share of the measured median."""
        return float(self.predicted["step_seconds"]) / statistics.median(self.measured) - 1


def rows() -> list[Row]:
    """All links; the table for the documentation is printed on the way."""
    os.environ |= for_children()
    points = measure(LINKS)
    print(f"\n{table(points)}\n", flush=True)
    return [row(point) for point in points]


def measure(links: Sequence[Link]) -> list[Point]:
    """Both models over each link, one after the other."""
    prefix = f"p{os.getpid()}n"
    lab = Lab.up(Path(tempfile.gettempdir()) / f"scalewise-{prefix}", prefix, nodes=2)
    points = []
    try:
        for link in links:
            lab.limit_network(link.rate, link.burst)
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                study = ClusterStudy(lab, Path(folder))
                try:
                    points += study_points(study, link)
                finally:
                    study.end()
    finally:
        lab.down()
    return points


def study_points(study: ClusterStudy, link: Link) -> list[Point]:
    """Predict, then measure, and hold one against the other."""
    (study.folder / "site.yaml").write_text(yaml.safe_dump(SITE | {"devices_per_node": 1, "max_nodes": 2}))
    (study.folder / "study.yaml").write_text(yaml.safe_dump({"experiments": experiments(link)}))
    points = []
    for name in MODELS:
        # first the prediction, by itself
        runs = [f"runs/d2.r{repeat}/summary.json" for repeat in range(1, MEASURED + 1)]
        for files in (["prediction.csv"], runs):
            targets = [f"results/{name}/{file}" for file in files]
            budget = ("--resources", "device_budget=2")
            code, output = study.snakemake(*targets, *budget, limit=LIMIT_SECONDS)
            if code:
                raise RuntimeError(f"snakemake {targets[0]} over {link.label} has failed:\n{output}")
        points.append(read_point(study.folder / "results" / name, link))
        print(parts(points[-1]), flush=True)
    return points


def experiments(link: Link) -> dict[str, dict[str, Any]]:
    """Weak scaling: a device has the same work alone and as one of two."""
    return {
        name: {
            "dataset": f"synthetic-1x28x28-10classes-{link.steps[name] * 2 * BATCH}samples",
            "model": model,
            "scaling": "weak",
            "batch_size_per_device": BATCH,
            "learning_rate": 0.01,
            "epochs": 1,
            "warmup_steps": WARMUP_STEPS,
            "devices": [1, 2],
            "repeats": REPEATS,
        }
        for name, model in MODELS.items()
    }


def read_point(folder: Path, link: Link) -> Point:
    """What an experiment's folder says of two devices."""
    table = pd.read_csv(folder / "prediction.csv").set_index("devices")
    first = read_summary(folder / "runs" / "d1.r1")
    assert first.measurements is not None, "a run that completed has measurements"
    return Point(
        link=link.label,
        gradient_bytes=sum(bucket.bytes for bucket in first.measurements.buckets),
        predicted={str(column): table.loc[2, column] for column in table.columns},
        measured=step_seconds(folder, 2, MEASURED),
        alone=step_seconds(folder, 1, REPEATS),
    )


def step_seconds(folder: Path, devices: int, repeats: int) -> list[float]:
    """Mean step after warm-up, of each repeat."""
    runs = range(1, repeats + 1)
    return [mean_step(read_summary(folder / "runs" / f"d{devices}.r{repeat}")) for repeat in runs]


def mean_step(summary: RunRecord) -> float:
    """Seconds of a step after warm-up."""
    assert summary.measurements is not None, "a run that completed has measurements"
    windows = [window for window in summary.measurements.windows if not window.warmup]
    return sum(window.seconds for window in windows) / sum(window.steps for window in windows)


def row(point: Point) -> Row:
    """One line of the benchmarks' table."""
    predicted = [point.predicted[f"step_seconds{bound}"] * 1000 for bound in ("", "_low", "_high")]
    ratio = [point.predicted["step_seconds"] / seconds for seconds in point.measured]
    return Row(
        what=f"prediction: step on 2 nodes, {point.link}, {mib(point)} of gradients",
        ours=f"{predicted[0]:,.0f} ms ({predicted[1]:,.0f} to {predicted[2]:,.0f})",
        reference=spread([1000 * seconds for seconds in point.measured]).show("ms", digits=0),
        ratio=spread(ratio).show(),
        n=len(point.measured),
        target=f"within {WITHIN:.0%}",
        met=abs(point.error) <= WITHIN,
    )


def table(points: Sequence[Point]) -> str:
    """As docs/prediction.md has it."""
    lines = [
        "| link | gradients | step on 1 node | all-reduce | predicted step on 2 | measured | n | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in points:
        low, high = (1000 * point.predicted[f"step_seconds_{bound}"] for bound in ("low", "high"))
        lines.append(
            f"| {point.link} | {mib(point)} | {milliseconds(point.alone)} "
            f"| {1000 * point.predicted['all_reduce_seconds']:,.0f} ms "
            f"| {1000 * point.predicted['step_seconds']:,.0f} ms ({low:,.0f} to {high:,.0f}) "
            f"| {milliseconds(point.measured)} | {len(point.measured)} | {100 * point.error:+.1f} % |"
        )
    return "\n".join(lines)


def parts(point: Point) -> str:
    """What the predicted step is made of, to see why it may be off."""
    names = ("compute_seconds", "loader_seconds", "all_reduce_seconds", "exposed_seconds", "step_seconds")
    shown = ", ".join(f"{name} {point.predicted[name]:.4f}" for name in names)
    return f"{point.link}, {mib(point)}: {shown}; measured {point.measured}; alone {point.alone}"


def milliseconds(seconds: Sequence[float]) -> str:
    """The median and how far the repeats reach."""
    return spread([1000 * each for each in seconds]).show("ms", digits=0)


def mib(point: Point) -> str:
    """The size of the gradients."""
    return f"{point.gradient_bytes / 2**20:.1f} MiB"
