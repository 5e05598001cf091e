"""The band of a program's prediction holds what was planted; what cannot be predicted says why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.planted_records import DDP, all_reduce, program_experiment, write_program_run
from tests.unit.analysis.planted_tables import read_json

from scalewise.analysis.prediction.experiment_prediction import PredictionSpec, compute_prediction
from scalewise.analysis.prediction.step_model import Baseline, Exchange, predict_run
from scalewise.analysis.statistics import Interval
from scalewise.plan.config.experiment import ProgramExperiment
from scalewise.plan.config.shape import Shape
from scalewise.plan.terminal.predictions import read_predictions, read_remarks
from scalewise.records import AllReduceMeasurement

COMPUTE = 0.1
GRADIENTS = 40_000_000
OVERLAPS = {"all": 1.0, "half": 0.5, "none": 0.0}


def all_reduce_seconds(shape: str, size: float) -> float:
    """The planted network: inside a node ten times as fast as across."""
    nodes = Shape.parse(shape).nodes
    return 1e-4 + size / (4e9 if nodes == 1 else 4e8) * (1 if nodes == 1 else 1 + 0.1 * (nodes - 2))


def network(*shapes: str) -> list[AllReduceMeasurement]:
    sizes = (1 << 10, 1 << 20, 25 << 20, 100 << 20)
    return [
        all_reduce(shape, {size: [all_reduce_seconds(shape, size)] * 5 for size in sizes}) for shape in shapes
    ]


def buckets_seconds(shape: str, passes: int = 1) -> float:
    """All gradients in DDP's default buckets, once or in every pass."""
    first, size = 1 << 20, 25 << 20
    sizes = [first]
    while sum(sizes) < GRADIENTS:
        sizes.append(min(size, GRADIENTS - sum(sizes)))
    return passes * sum(all_reduce_seconds(shape, each) for each in sizes)


def predicted(
    folder: Path, spec: ProgramExperiment, shape: str, project: Sequence[str] = (), *, steps: bool = False
) -> pd.DataFrame:
    """Predict one device and a shape, and ``project`` beyond the study; return the rows by devices."""
    shapes = {str(Shape.parse(each).world_size): Shape.parse(each) for each in ("1x1", shape)}
    definition = PredictionSpec("study", spec, shapes, [Shape.parse(each) for each in project])
    measured = network(*(each for each in {shape, *project} if Shape.parse(each).nodes <= 4))
    compute_prediction(definition, measured, folder / "runs", folder, from_steps=steps)
    return pd.read_csv(folder / ("projection.csv" if steps else "prediction.csv")).set_index("devices")


def holds(row: Any, column: str, truth: float) -> bool:
    return bool(row[f"{column}_low"] <= truth * 1.001 and truth <= row[f"{column}_high"] * 1.001)


def write_alone(folder: Path, spec: ProgramExperiment, **more: Any) -> None:
    for repeat, factor in enumerate((0.995, 1.0, 1.005), start=1):
        write_program_run(folder / "runs", f"d1.r{repeat}", spec, COMPUTE * factor, **more)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("shape", ["1x2", "2x2", "4x2"])
@pytest.mark.parametrize("passes", [1, 4])
def test_the_band_holds_a_planted_overlap(tmp_path: Path, overlap: str, shape: str, passes: int) -> None:
    devices = Shape.parse(shape).world_size
    spec = program_experiment(devices=[1, devices], accumulation_steps=passes)
    write_alone(tmp_path, spec)
    table = predicted(tmp_path, spec, shape)
    assert table.loc[1, "step_seconds"] == pytest.approx(COMPUTE)
    row = table.loc[devices]
    for exchanged in {1, passes}:
        exchange = buckets_seconds(shape, exchanged)
        truth = COMPUTE + exchange - OVERLAPS[overlap] * min(exchange, COMPUTE)
        assert holds(row, "step_seconds", truth)
        assert holds(row, "speedup", devices * COMPUTE / truth)
    assert row["step_seconds_low"] <= row["step_seconds"] <= row["step_seconds_high"]


@pytest.mark.parametrize("fixed", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_strong_scaling_holds_any_fixed_cost_of_a_batch(tmp_path: Path, fixed: float, overlap: str) -> None:
    strong = {"scaling": "strong", "batch_size_per_device": None, "global_batch_size": 64}
    spec = program_experiment(**strong, devices=[1, 4], repeats=3)
    write_alone(tmp_path, spec)
    row = predicted(tmp_path, spec, "2x2").loc[4]
    compute = COMPUTE * (fixed + (1 - fixed) / 4)
    exchange = buckets_seconds("2x2")
    assert holds(row, "step_seconds", compute + exchange - OVERLAPS[overlap] * min(exchange, compute))
    notes = " ".join(read_remarks(tmp_path))
    assert "proportional" in notes
    assert "hides behind all of the computing" in notes
    assert "DistributedDataParallel is assumed" in notes
    assert read_predictions(tmp_path)["all runs", Shape.parse("2x2")].device_hours_per_epoch is None


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_ddps_counters_narrow_the_band_around_the_truth(tmp_path: Path, overlap: str) -> None:
    spec = program_experiment(devices=[1, 4], repeats=3)

    def exposed(shape: str) -> float:
        exchange = buckets_seconds(shape)
        return exchange - OVERLAPS[overlap] * min(exchange, COMPUTE)

    write_alone(tmp_path, spec)
    for repeat, factor in enumerate((0.995, 1.0, 1.005), start=1):
        waited = exposed("2x2") * factor
        run, step = f"d4.r{repeat}", COMPUTE * factor + waited
        write_program_run(tmp_path / "runs", run, spec, step, shape="2x2", exposed=waited)
    wide = predicted(tmp_path, spec, "2x2", ["4x2"]).loc[8]
    table = predicted(tmp_path, spec, "2x2", ["4x2"], steps=True)
    narrow = table.loc[8]
    assert narrow["step_seconds_low"] <= COMPUTE + exposed("4x2") <= narrow["step_seconds_high"]
    widths = [row["step_seconds_high"] - row["step_seconds_low"] for row in (wide, narrow)]
    assert widths[1] < 0.5 * widths[0]
    assert narrow["from_steps_on"] == "2x2"
    remarks = read_json(tmp_path / "projection.json")
    assert any("DDP counted what waited for the exchange" in note for note in remarks["notes"])
    # the study's own counts are compared with a band that knows nothing of them
    assert pd.isna(table.loc[4]["from_steps_on"])


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"parallelism": ["fully_shard"]}, "fully_shard exchanges more than gradients"),
        ({"optimizers": ["ZeroRedundancyOptimizer"]}, "ZeroRedundancyOptimizer exchanges more"),
        (
            {"gradient_bytes": None, "unknown": {"bytes of gradients": "the model is divided"}},
            "the bytes of its gradients are not known: the model is divided",
        ),
    ],
)
def test_what_cannot_be_predicted_of_a_program_says_why(
    tmp_path: Path, found: dict[str, Any], why: str
) -> None:
    spec = program_experiment()
    write_alone(tmp_path, spec, program=found)
    assert predicted(tmp_path, spec, "1x2").empty
    (refused,) = read_json(tmp_path / "prediction.json")["refused"].values()
    assert refused.startswith("no prediction for all runs: ")
    assert why in refused


def test_several_devices_that_exchange_nothing_seen_are_no_base(tmp_path: Path) -> None:
    spec = program_experiment(devices=[1, 2], repeats=3)
    write_alone(tmp_path, spec)
    write_program_run(tmp_path / "runs", "d2.r1", spec, COMPUTE, program={"parallelism": []})
    assert predicted(tmp_path, spec, "1x2", ["2x2"], steps=True).empty
    remarks = read_json(tmp_path / "projection.json")
    assert "on several devices nothing was seen" in remarks["refused"]["all runs"]


def test_an_unknown_wait_for_data_counts_as_computing_with_a_note(tmp_path: Path) -> None:
    spec = program_experiment()
    write_alone(tmp_path, spec, loader_wait=None, program={"parallelism": DDP})
    row = predicted(tmp_path, spec, "1x2").loc[2]
    assert pd.isna(row["loader_seconds"])
    assert row["compute_seconds"] == pytest.approx(COMPUTE)
    notes = " ".join(read_remarks(tmp_path))
    assert "the wait for data is not known and counts as computing" in notes
    assert "DistributedDataParallel is assumed" not in notes


def test_no_exchange_can_hide_behind_the_wait_for_data() -> None:
    samples, computing = 16, Interval(0.06, 0.06, 0.06, 1)
    assumptions = Baseline.of_program({samples: computing}, 0.04 / samples, GRADIENTS, 1)
    exchange = Exchange(lambda size: np.full(3, 0.5 * size / GRADIENTS))
    step = predict_run(assumptions, 2, 2 * samples, [exchange] * 3)
    assert step.seconds == pytest.approx([0.04 + 0.5, step.seconds[1], 0.04 + 0.06 + 0.5])
