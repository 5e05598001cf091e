"""Several trainings on the same devices: planted times become the split that finishes first by hand."""

from __future__ import annotations

import csv
import json
import math
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from tests.planted_study import EPOCHS_OF_A_RUN, START_UP_SECONDS, STEPS_OF_AN_EPOCH, Law, PlantedStudy

pytestmark = pytest.mark.contract

STUDY = """\
experiments:
  seeds:
    dataset: digits
    model: digits_cnn
    scaling: strong
    global_batch_size: 256
    epochs: 10
    warmup_steps: 12
    devices: [1, 2, 4, 8]
    repeats: 3
    predict: false
    runtime_minutes: 3
    trainings: {trainings}
"""
SAMPLES = STEPS_OF_AN_EPOCH * EPOCHS_OF_A_RUN * 256


def answered(
    folder: Path, law: Law, trainings: int = 8, **slurm: Any
) -> tuple[PlantedStudy, dict[str, Any], dict[int, dict[str, str]]]:
    """Return a study with its answer on splits and the rows of splits.csv by device count."""
    site: dict[str, Any] = {
        "accelerator": "cuda",
        "devices_per_node": 4,
        "cpus_per_node": 32,
        "max_nodes": 16,
    }
    if slurm:
        site["slurm"] = slurm
    study = PlantedStudy(folder, STUDY.replace("{trainings}", str(trainings)), law.speed, site)
    study.make_runs()
    study.tabulate()
    decision = json.loads((study.folder / "decision.json").read_text(encoding="utf-8"))
    with (study.folder / "splits.csv").open(encoding="utf-8") as file:
        rows = {int(row["devices"]): row for row in csv.DictReader(file)}
    return study, decision["splits"], rows


def training_seconds(law: Law, devices: int) -> float:
    """Return the seconds of a planted run without scatter."""
    return START_UP_SECONDS + SAMPLES * (1 + law.serial * (devices - 1)) / (law.rate * devices)


@pytest.mark.parametrize("serial", [0.02, 0.3])
@pytest.mark.parametrize("trainings", [3, 8])
def test_the_split_that_finishes_first_is_that_of_the_planted_times(
    serial: float, trainings: int, tmp_path: Path
) -> None:
    law = Law(rate=1000.0, serial=serial, scatter=0.002)
    _, answer, rows = answered(tmp_path, law, trainings)

    by_hand = {
        devices: math.ceil(trainings / (8 // devices)) * training_seconds(law, devices)
        for devices in (1, 2, 4, 8)
    }
    assert answer["best"] == min(by_hand, key=by_hand.__getitem__)
    assert (answer["devices"], answer["status"], answer["clock"]) == (8, "clear", "total time")
    for devices, seconds in by_hand.items():
        row = rows[devices]
        assert float(row["seconds"]) == pytest.approx(seconds, rel=0.01)
        assert float(row["seconds_low"]) < float(row["seconds"]) < float(row["seconds_high"])
        hours = trainings * devices * training_seconds(law, devices) / 3600
        assert float(row["device_hours"]) == pytest.approx(hours, rel=0.01)
        if devices != answer["best"]:
            ratio = seconds / by_hand[answer["best"]]
            assert float(row["ratio"]) == pytest.approx(ratio, rel=0.01)
            assert row["state"] == "shown"


def test_a_tie_is_told_from_no_side(tmp_path: Path) -> None:
    """On 2 devices a training takes half the time that it takes on 1, start-up included."""
    half = (START_UP_SECONDS + SAMPLES / 100) / 2
    law = Law(rate=100.0, serial=(half - START_UP_SECONDS) * 200 / SAMPLES - 1, scatter=0.05)
    assert 2 * training_seconds(law, 2) == pytest.approx(training_seconds(law, 1))

    _, answer, rows = answered(tmp_path, law)

    assert answer["status"] == "cannot tell"
    assert "open" in {rows[devices]["state"] for devices in (1, 2)}
    assert "the runs cannot tell which finishes first" in answer["sentences"][0]
    assert "more repeat" in answer["sentences"][1]


def test_a_site_of_whole_nodes_runs_as_many_trainings_at_a_time_as_it_has_nodes(tmp_path: Path) -> None:
    law = Law(rate=1000.0, serial=0.02, scatter=0.002)
    _, answer, rows = answered(tmp_path, law, partial_nodes="billed-whole")

    assert [int(rows[devices]["at_a_time"]) for devices in (1, 2, 4, 8)] == [2, 2, 2, 1]
    assert answer["best"] == 4
    hours = 8 * 4 * training_seconds(law, 1) / 3600
    assert float(rows[1]["device_hours"]) == pytest.approx(hours, rel=0.01)
    assert any("whole nodes" in sentence for sentence in answer["sentences"])


def test_the_answer_is_in_the_report_and_on_the_card(tmp_path: Path) -> None:
    study, answer, _ = answered(tmp_path, Law(rate=1000.0, serial=0.3, scatter=0.002))
    study.analyse()
    page = unescape(study.write().read_text(encoding="utf-8"))

    assert answer["sentences"][0].startswith("8 trainings on 8 GPUs: all at once on 1 GPU each finish in ")
    assert "one after another on 8 GPUs in " in answer["sentences"][0]
    assert all(sentence in page for sentence in answer["sentences"])
    traces = json.loads((study.folder / "figures/traces.json").read_text(encoding="utf-8"))["splits"]
    assert traces["message"] == ""
    (drawn,) = traces["traces"]
    assert drawn["x"] == [1, 2, 4, 8]


def test_one_training_has_nothing_to_split(tmp_path: Path) -> None:
    _, answer, rows = answered(tmp_path, Law(), trainings=1)
    assert answer is None
    assert rows == {}
