"""A step on many devices, from one device's step and the all-reduce."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.planted_records import all_reduce, measurements, write_run
from tests.small_runs import plan_one_experiment

from cli import main
from scalewise.analysis.prediction.all_reduce_model import CENTRAL, Values
from scalewise.analysis.prediction.step_model import (
    Baseline,
    Exchange,
    NoPredictionError,
    exposed_seconds,
    pass_seconds,
    predict_point,
    predict_step,
)
from scalewise.analysis.prediction.wording import beyond_sentences
from scalewise.records import (
    Bucket,
    Measurements,
    Pass,
    Window,
    read_summary,
    write_json,
)

MIB = 1024**2
LADDER = [
    Pass(batch_size=256, forward_seconds=0.08, backward_seconds=0.16),
    Pass(batch_size=128, forward_seconds=0.04, backward_seconds=0.08),
    Pass(batch_size=64, forward_seconds=0.02, backward_seconds=0.04),
    Pass(batch_size=32, forward_seconds=0.015, backward_seconds=0.03),
]


def link(bytes_per_second: float) -> Callable[[int], Values]:
    return lambda size: np.full(3, size / bytes_per_second)


def measured(
    step_seconds: float = 0.25, samples: int = 256, passes: list[Pass] | None = None, **more: Any
) -> Measurements:
    windows = [
        Window(first_step=0, steps=2, samples=2 * samples, seconds=9.0, warmup=True),
        Window(first_step=2, steps=8, samples=8 * samples, seconds=8 * step_seconds, warmup=False),
    ]
    usual: dict[str, Any] = {
        "parameters": MIB,
        "epochs_completed": 1,
        "throughput_samples_per_second": samples / step_seconds,
        "windows": windows,
        "loader_wait_fraction": 0.0,
        "passes": LADDER if passes is None else passes,
        "buckets": [Bucket(bytes=4 * MIB, ready_fraction=1.0)],
    }
    return measurements(**usual | more)


@pytest.mark.parametrize(
    ("buckets", "rate", "total", "exposed"),
    [
        ([(1, 1.0)], MIB, 1.0, 1.0),
        ([(1, (1 + index) / 20) for index in range(20)], MIB / 0.005, 0.1, 0.005),
        # sent from the middle of the backward pass on, one after the other: 4 s, of which it hides 0.1 s
        ([(1, 0.5), (3, 1.0)], MIB, 4.0, 3.9),
        ([(1, 0.5)], MIB / 0.01, 0.01, 0.0),
    ],
    ids=["one at the end", "many early ones", "each waits for the one before", "all sent before the end"],
)
def test_an_exchange_hides_behind_the_backward_pass_that_follows_its_buckets(
    buckets: list[tuple[int, float]], rate: float, total: float, exposed: float
) -> None:
    sent = [Bucket(bytes=size * MIB, ready_fraction=ready) for size, ready in buckets]
    found = [seconds[CENTRAL] for seconds in exposed_seconds(sent, 0.2, link(rate))]
    assert found == pytest.approx([total, exposed])


def test_passes_follow_the_power_law_between_measured_batches_and_none_below_and_the_batch_above() -> None:
    cubic = [Pass(batch_size=b, forward_seconds=b**0.7, backward_seconds=2 * b**0.7) for b in (8, 64)]
    assert pass_seconds(cubic, 20) == pytest.approx((20**0.7, 2 * 20**0.7))
    ladder = sorted(LADDER, key=lambda each: each.batch_size)
    assert pass_seconds(ladder, 4) == (0.015, 0.03)
    assert pass_seconds(ladder, 512) == pytest.approx((0.16, 0.32))


def test_one_device_takes_the_step_that_was_measured() -> None:
    base = Baseline.of(measured(0.25, loader_wait_fraction=0.02), 1)
    step = predict_step(base, 1, 256, None)
    assert step.seconds[CENTRAL] == pytest.approx(0.25)
    assert base.other_seconds == pytest.approx(0.25 - 0.005 - 0.24)
    assert base.train_samples == 2560
    # passes that were slower than the training are scaled to it
    base = Baseline.of(measured(0.12), 1)
    assert base.pass_scale == pytest.approx(0.5)
    assert base.other_seconds == 0
    assert predict_step(base, 1, 256, None).compute == pytest.approx(0.12)


def test_strong_scaling_divides_the_batch_keeps_the_rest_and_exchanges_once_a_step() -> None:
    base = Baseline.of(measured(0.25), 1)
    step = predict_step(base, 4, 256, Exchange(link(MIB / 0.001)))
    assert step.compute == pytest.approx(0.06 + 0.01)
    assert step.exposed[CENTRAL] == pytest.approx(0.004)
    accumulating = Baseline.of(measured(0.25, passes=LADDER[2:]), 4)
    step = predict_step(accumulating, 2, 512, Exchange(link(MIB)))
    assert step.compute == pytest.approx(0.25)
    assert step.all_reduce[CENTRAL] == pytest.approx(4.0)


def test_smaller_last_step_of_an_epoch_counts_as_what_it_is() -> None:
    base = Baseline.of(measured(0.24, epochs_completed=2), 1)  # 1,280 samples: two steps of 512, one of 256
    step = predict_step(base, 2, 512, None)
    assert (step.steps, step.samples) == (3, 1280)
    assert step.compute == pytest.approx((0.24 + 0.24 + 0.12) / 3)


def test_speedup_is_over_the_baseline_and_its_interval_holds_the_repeats() -> None:
    bases = [[Baseline.of(measured(seconds), 1)] for seconds in (0.24, 0.25, 0.26)]
    point = predict_point(bases, 2, 512, 256, [Exchange(link(MIB / 0.01))])
    speedup = [point[f"speedup{bound}"] for bound in ("_low", "", "_high")]
    assert speedup == pytest.approx([2 * 0.24 / 0.28, 2 * 0.25 / 0.29, 2 * 0.26 / 0.30])
    assert point["step_seconds_low"] == pytest.approx(0.28)
    assert point["parallel_efficiency"] == pytest.approx(0.25 / 0.29)
    assert point["device_hours_per_epoch"] == pytest.approx(2 * 5 * 0.29 / 3600)
    assert not point["hidden"]
    uneven = [[Baseline.of(measured(seconds), 1)] for seconds in (0.25, 0.30, 0.90)]
    row = predict_point(uneven, 4, 256, 256, [Exchange(link(MIB / 0.001))])
    alone = predict_point(uneven, 1, 256, 256, None)
    rates = [each["throughput_samples_per_second"] for each in (row, alone)]
    assert row["speedup"] == pytest.approx(rates[0] / rates[1]), "the ratio of the rates next to it"
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]


def test_unknown_growth_of_the_all_reduce_widens_the_interval() -> None:
    def all_reduce(_: int) -> Values:
        return np.array([0.01, 0.05, 0.25])

    point = predict_point([[Baseline.of(measured(0.25), 1)]], 2, 512, 256, [Exchange(all_reduce)])
    for column, low, central, high in (
        ("step_seconds", 0.26, 0.3, 0.5),
        ("throughput_samples_per_second", 512 / 0.5, 512 / 0.3, 512 / 0.26),
        ("speedup", 1.0, 2 * 0.25 / 0.3, 2 * 0.25 / 0.26),
    ):
        bounds = [point[f"{column}{bound}"] for bound in ("_low", "", "_high")]
        assert bounds == pytest.approx([low, central, high])


def test_communication_below_a_hundredth_of_the_step_is_hidden() -> None:
    bases = [[Baseline.of(measured(), 1)]]
    assert predict_point(bases, 2, 512, 256, [Exchange(link(MIB / 0.0005))])["hidden"]
    assert not predict_point(bases, 2, 512, 256, [Exchange(link(MIB / 0.001))])["hidden"]


@pytest.mark.parametrize(
    ("more", "devices", "reason"),
    [
        ({"passes": []}, 1, "no timed passes"),
        ({"buckets": []}, 1, "in which buckets"),
        ({"windows": [Window(first_step=0, steps=2, samples=9, seconds=9.0, warmup=True)]}, 1, "warm-up"),
        ({}, 512, "512 devices: a step has 256 samples"),
        ({"passes": LADDER[:1]}, 4, "were not timed, only down to"),
    ],
)
def test_a_run_that_cannot_carry_a_prediction_says_why(
    more: dict[str, Any], devices: int, reason: str
) -> None:
    with pytest.raises(NoPredictionError, match=reason):
        predict_step(Baseline.of(measured(**more), 1), devices, 256, Exchange(link(MIB)))


# ---- the files


PASSES: dict[str, Any] = {"passes": LADDER, "buckets": [Bucket(bytes=64 * MIB, ready_fraction=1.0)]}


def study(
    folder: Path,
    *,
    spec: Mapping[str, Any] | None = None,
    speeds: Mapping[str, float] | None = None,
    error: str = "",
    from_steps: bool = False,
    passes: list[Pass] = LADDER,
    **planned: Any,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Two repeats on one device, the all-reduce of two nodes at 1 GiB/s; then the table and remarks.

    Args:
        speeds: Bytes per second of the all-reduce by shape.
        error: Reason that no all-reduce was measured.
    """
    for run in ("d1.r1", "d1.r2"):
        if not (folder / "runs" / run).exists():
            write_run(folder / "runs", run, **PASSES | {"passes": passes})
    collectives = []
    for shape, speed in (speeds or {"2x1": 2**30}).items():
        path = folder / f"{shape}.json"
        sizes = [] if error else [4096, MIB, 64 * MIB]
        write_json(path, all_reduce(shape, {size: [size / speed] * 5 for size in sizes}, error=error))
        collectives.append(str(path))
    settings = read_summary(folder / "runs" / "d1.r1").definition.settings
    keys = {key: value for key, value in settings.model_dump().items() if value is not None and key != "seed"}
    keys |= {"devices": [1, "2x1"]} | dict(spec or {})
    usual = {"name": "study", "spec": keys, "shapes": {"1": "1x1", "2x1": "2x1"}, "project": []}
    plan = plan_one_experiment(folder / "plan.json", folder, prediction=json.dumps(usual | planned))
    arguments = [*plan, "prediction", str(folder), "--all-reduces", *collectives]
    assert main([*arguments, *(["--from-steps"] if from_steps else [])]) == 0
    name = "projection" if from_steps else "prediction"
    return pd.read_csv(folder / f"{name}.csv"), json.loads((folder / f"{name}.json").read_text())


def test_study_gets_a_row_for_each_planned_and_projected_count(tmp_path: Path) -> None:
    table, remarks = study(tmp_path, project=["8x1", "16x1"])
    assert list(table["devices"]) == [1, 2, 8, 16]
    assert list(table["measured_point"]) == [True, True, False, False]
    assert list(table["extrapolated"]) == [False, False, True, True]
    assert table["speedup"][0] == pytest.approx(1)
    assert list(table["exposed_seconds"][:2]) == pytest.approx([0, 0.0625])
    parts = table["compute_seconds"] + table["loader_seconds"] + table["exposed_seconds"]
    np.testing.assert_allclose(parts, table["step_seconds"])
    assert (table["step_seconds_low"] <= table["step_seconds"]).all()
    assert (table["step_seconds"] <= table["step_seconds_high"]).all()
    assert remarks["refused"] == {}
    assert remarks["links"][0]["shape"] == "2x1"
    assert remarks["links"][0]["bus_bytes_per_second"]["estimate"] == pytest.approx(2**30)


INSIDE = {
    "speeds": {"1x2": 2**40, "2x2": 2**30},
    "spec": {"devices": [1, 2, "2x2"]},
    "shapes": {"1": "1x1", "2": "1x2", "2x2": "2x2"},
}


@pytest.mark.parametrize(
    ("planned", "hidden", "notes"),
    [
        # 62.5 ms of a step of 190 ms
        ({"project": ["8x1"]}, [True, False, False],
         ["from 2 devices on, communication no longer hides behind the backward pass: 33 % of the step",
          "over 8 devices was not measured", "Two nodes are no safe base", "The band does not cover"]),
        (INSIDE, [True, True, False], ["from 4 devices on, communication no longer hides"]),
        ({"speeds": {"2x1": 2**40}}, [True, True], ["up to 2 devices, communication hides"]),
        ({"error": "no route to host"}, [True], ["no prediction for 2 devices (2x1)", "no route to host"]),
    ],
    ids=["shown", "from the second node on", "always hidden", "not measured"],
)  # fmt: skip
def test_notes_say_where_communication_shows_and_what_was_not_measured(
    tmp_path: Path, planned: dict[str, Any], hidden: list[bool], notes: list[str]
) -> None:
    table, remarks = study(tmp_path, **planned)
    assert list(table["hidden"]) == hidden
    assert [note for note in notes if note not in " ".join(remarks["notes"])] == []


@pytest.mark.parametrize(
    ("planned", "reason"),
    [
        ({"spec": {"parallelism": "fsdp"}}, "gathers parameters"),
        ({"spec": {"parallelism": "zero1"}}, "sends parameters"),
        ({"spec": {"devices": ["2x1"]}}, "add 1 to devices"),
        ({"spec": {"accumulation_steps": 2}}, "no completed run"),
        ({"passes": []}, "no timed passes"),
    ],
)
def test_series_without_a_sound_baseline_is_refused_with_the_fix(
    tmp_path: Path, planned: dict[str, Any], reason: str
) -> None:
    table, remarks = study(tmp_path, **planned)
    assert table.empty
    assert reason in remarks["refused"]["all runs"]


def test_baseline_of_another_gpu_moves_no_prediction_and_has_a_note(tmp_path: Path) -> None:
    fast = [Window(first_step=0, steps=1, samples=256, seconds=0.05, warmup=False)]
    other: dict[str, Any] = {"windows": fast, "origin": {"devices": ["another GPU"]}}
    mixed = {"d1.r3": {}, "d1.r4": other, "d1.r5": other}
    found = []
    for name, runs in (("alike", {"d1.r3": {}}), ("mixed", mixed)):
        for run, how in runs.items():
            write_run(tmp_path / name / "runs", run, **PASSES | how)
        found.append(study(tmp_path / name, spec={"repeats": 5}, project=["8x1"]))
    (expected, _), (table, remarks) = found
    pd.testing.assert_frame_equal(table, expected)
    notes = [note for note in remarks["notes"] if "left out" in note]
    assert "d1.r4 is left out: device model" in notes[0]


def several_nodes(folder: Path, nodes: int, seconds: Sequence[float], **origin: Any) -> None:
    """Runs on nodes of one device each, whose steps take so long."""
    for repeat, each in enumerate(seconds, start=1):
        window = Window(first_step=0, steps=1, samples=256, seconds=each, warmup=False)
        write_run(folder / "runs", f"d{nodes}x1.r{repeat}", windows=[window], origin=origin)


PLANNED: dict[str, Any] = {
    "spec": {"devices": [1, "2x1", "4x1"], "repeats": 2},
    "shapes": {"1": "1x1", "2x1": "2x1", "4x1": "4x1"},
    "speeds": {"2x1": 2**30, "4x1": 2**30},
    "project": ["16x1"],
}


def test_steps_measured_on_two_and_four_nodes_are_the_base_for_sixteen(tmp_path: Path) -> None:
    # in training the exchange takes 0.4 s on two nodes and 0.2 s on four, and alone a sixteenth of a second
    before, remarks = study(tmp_path, **PLANNED)
    parts = before.set_index("shape")
    alone = parts["compute_seconds"] + parts["loader_seconds"]
    several_nodes(tmp_path, 2, [alone["2x1"] + 0.4] * 2)
    several_nodes(tmp_path, 4, [alone["4x1"] + 0.2] * 2)
    assert "extrapolated from 2 and 4 nodes." in " ".join(remarks["notes"])

    after, remarks = study(tmp_path, **PLANNED, from_steps=True)
    rows = after.set_index("shape")
    assert list(rows["from_steps_on"].fillna("")) == ["", "", "", "2x1 4x1"]
    # of what the study measured itself, what was expected before still stands
    for shape in ("2x1", "4x1"):
        assert rows["step_seconds"][shape] == parts["step_seconds"][shape]
    beyond = rows.loc["16x1"]
    growth = (1 - 1 / 16) / (1 - 1 / 4)
    assert beyond["exposed_seconds"] == pytest.approx(0.2 * growth, rel=1e-3)
    assert beyond["step_seconds_low"] == pytest.approx(alone["16x1"] + 0.2, rel=0.02)
    assert beyond["step_seconds_high"] == pytest.approx(alone["16x1"] + 0.4, rel=0.02)
    assert beyond["exposed_seconds"] > 2 * parts["exposed_seconds"]["16x1"]
    words = "16 devices was not measured; it is extrapolated from the study's own steps on 2x1 and 4x1."
    assert words in " ".join(remarks["notes"])


def test_steps_on_another_gpu_are_no_base_for_more_nodes(tmp_path: Path) -> None:
    several_nodes(tmp_path, 2, [0.9, 0.9], devices=["another GPU"] * 2)
    table, remarks = study(tmp_path, **PLANNED, from_steps=True)
    assert table["from_steps_on"].isna().all()
    assert any("is left out: device model" in note for note in remarks["notes"])


def test_a_prediction_beyond_the_study_has_its_band_and_is_not_measured() -> None:
    rows = [("all runs", 4, True, 3.6), ("all runs", 64, False, 38.0), ("other", 64, False, 40.0)]
    table = pd.DataFrame(rows, columns=["series", "devices", "measured_point", "speedup"])
    table = table.assign(
        speedup_low=table["speedup"] - 2,
        speedup_high=table["speedup"] + 2,
        parallel_efficiency=table["speedup"] / table["devices"],
    )
    (remarks,) = beyond_sentences(table, "all runs")
    assert "64 devices: 38.0x as fast as 1 (36.0 to 40.0), efficiency 0.59" in remarks
    assert "not measured" in remarks


# --- steps that others have published -------------------------------------------------------------------


ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_published_steps_of_more_nodes_are_predicted_within_their_targets() -> None:
    """The command that the page names exits with 1 where a band or an error misses its target."""
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "published"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| 309 | 80% covered, 70% within 15%, band at most 60% |" in " ".join(done.stdout.split())
