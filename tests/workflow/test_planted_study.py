"""Studies whose speeds are planted: their records become answers and pages by the rules' own commands."""

from __future__ import annotations

import json
import math
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_study import (
    EPOCHS_OF_A_RUN,
    SITE,
    START_UP_SECONDS,
    STEPS_OF_AN_EPOCH,
    Law,
    PlantedStudy,
    experiments,
)
from tests.workflow.results_contract import broken_promises, listing, promised

from scalewise.plan.runs.run_definition import RunDefinition

pytestmark = pytest.mark.contract

STUDY = experiments(
    known={
        "title": "What is planted",
        "devices": [1, 2, 4],
        "partitions": ["a100", "h200"],
        "proposal": {"centre": "ncar"},
    },
    plain={"title": "On one partition", "decision": {"min_efficiency": 0.7}},
    seeds={"trainings": 8},
)
PARTITIONS: dict[str, object] = {
    "accelerator": "cuda",
    "cpus_per_node": 32,
    "partitions": {
        "a100": {"devices_per_node": 8, "price_per_device_hour": 1.5},
        "h200": {"devices_per_node": 2, "price_per_device_hour": 4.5},
    },
}
SLOW, FAST = Law(rate=200.0, serial=0.05, scatter=0.004), Law(rate=500.0, serial=0.02, scatter=0.004)
PLAIN = Law(rate=1000.0, serial=0.1, scatter=0.002)
"""Efficiency 0.91 on 2 devices, 0.77 on 4, 0.59 on 8."""
ANSWER = 4
SAMPLES = STEPS_OF_AN_EPOCH * EPOCHS_OF_A_RUN * 256


def speed(run: RunDefinition) -> float:
    """Return the speed of a run: the devices of one partition are 2.5 times as fast."""
    law = FAST if run.partition == "h200" else SLOW if run.experiment.startswith("known") else PLAIN
    return law.speed(run)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedStudy:
    """The study, from its records to its report."""
    made = PlantedStudy(tmp_path_factory.mktemp("planted") / "study", STUDY, speed, PARTITIONS)
    made.finish()
    return made


def answer_of(study: PlantedStudy, experiment: str) -> dict[str, Any]:
    """Return the contents of answer.json."""
    return dict(json.loads((study.results / experiment / "answer.json").read_text(encoding="utf-8")))


def points_of(study: PlantedStudy, experiment: str) -> pd.DataFrame:
    """Return scaling.csv by partition and devices."""
    table = pd.read_csv(study.results / experiment / "scaling.csv")
    names = table["partition"].astype(object).fillna("")
    return table.assign(partition=names).set_index(["partition", "devices"])


def page_of(study: PlantedStudy) -> str:
    """Return the text of the report."""
    return unescape((study.results / "report.html").read_text(encoding="utf-8"))


def test_the_planted_speeds_are_in_the_tables(planted: PlantedStudy) -> None:
    points = points_of(planted, "plain").loc[""]
    assert list(points.index) == [1, 2, 4, 8]
    for devices in (1, 2, 4, 8):
        point = points.loc[devices]
        efficiency = 1 / (1 + PLAIN.serial * (devices - 1))
        assert point["n"] == 3
        assert point["throughput_samples_per_second"] == pytest.approx(1000 * devices * efficiency, rel=0.01)
        assert point["parallel_efficiency"] == pytest.approx(efficiency, rel=0.01)


def test_the_planted_answers_stand_in_one_file_and_on_the_page(planted: PlantedStudy) -> None:
    names = ["known", "plain", "seeds"]
    answers = [answer_of(planted, name) for name in names]
    assert json.loads((planted.results / "decision.json").read_text(encoding="utf-8")) == answers
    assert (answers[1]["devices"], answers[1]["certainty"]) == (ANSWER, "clear")
    page = page_of(planted)
    assert all(answer["verdict"] in page for answer in answers)
    assert "On one partition" in page


def test_what_is_planted_has_the_columns_and_keys_that_are_promised(planted: PlantedStudy) -> None:
    """The kept study knows no energy."""
    found = listing(planted.results)
    assert found["{experiment}/scaling.csv"]["energy_kwh"] == "number"
    assert broken_promises(found, promised()) == []


# --- partitions ------------------------------------------------------------------------------------------


def test_the_planted_partition_is_the_answer_and_the_other_one_costs_less(planted: PlantedStudy) -> None:
    answer, points = answer_of(planted, "known"), points_of(planted, "known")

    # 2 x 500 at 2 % against 4 x 200 at 5 %: 980 to 696 samples/s, at a price 3 times as high
    assert (answer["partition"], answer["devices"], answer["certainty"]) == ("h200", 2, "clear")
    assert points.index[points["recommended"]].tolist() == [("h200", 2)]
    assert points["cost"].idxmin() == ("a100", 1)
    assert points["seconds"].idxmin() == ("h200", 2)
    verdicts = {row["label"]: row["verdict"] for row in answer["candidates"]}
    assert len(verdicts) == 5
    assert "best for time" in verdicts["2 GPUs on h200"]
    assert "best for cost" in verdicts["1 GPU on a100"]


def test_a_price_is_for_the_billed_hours_of_the_same_work(planted: PlantedStudy) -> None:
    points = points_of(planted, "known")
    assert list(points.index) == [("a100", 1), ("a100", 2), ("a100", 4), ("h200", 1), ("h200", 2)]
    for partition, devices in points.index:
        point = points.loc[(partition, devices)]
        hours = devices * point["seconds"] / 3600
        assert point["cost"] == pytest.approx(hours * {"a100": 1.5, "h200": 4.5}[partition])


def test_the_page_shows_the_answer_before_figures_and_tables(planted: PlantedStudy) -> None:
    page = page_of(planted)
    verdict = answer_of(planted, "known")["verdict"]
    assert page.index(verdict) < page.index('id="known.time_cost"') < page.index('id="known.points"')


def test_a_proposal_is_for_the_partition_of_the_answer(planted: PlantedStudy) -> None:
    folder = planted.results / "known" / "proposal"
    assert "h200" in (folder / "proposal.md").read_text(encoding="utf-8")
    assert "known on 2 GPUs on h200" in (folder / "job.sh").read_text(encoding="utf-8")


def test_a_report_on_finished_runs_compares_partitions(tmp_path: Path) -> None:
    text = experiments(known={"title": "What is planted", "devices": [1], "partitions": ["a100", "h200"]})
    study = PlantedStudy(tmp_path / "study", text, speed, PARTITIONS)
    study.make_runs(most=3)
    study.write_partial()
    runs = pd.read_csv(study.results / "partial" / "known" / "runs.csv")
    done = runs.groupby("partition")["outcome"].apply(lambda each: (each == "completed").sum())
    assert done.to_dict() == {"a100": 3, "h200": 0}
    assert "Partial report." in page_of(study)


# --- several trainings on the same devices ---------------------------------------------------------------


def answered(folder: Path, law: Law, trainings: int = 8, **keys: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the answer on several trainings, and scaling.csv by device count.

    Args:
        folder: Receives the study.
        law: Speed of its runs.
        trainings: Trainings that are planned.
        keys: Further keys of the experiment; ``slurm`` is that block of the site.
    """
    site = SITE | ({"slurm": keys.pop("slurm")} if "slurm" in keys else {})
    study = PlantedStudy(folder, experiments(seeds={"trainings": trainings} | keys), law.speed, site)
    study.tabulate()
    return answer_of(study, "seeds"), pd.DataFrame(points_of(study, "seeds").loc[""])


def training_seconds(law: Law, devices: int) -> float:
    """Return the seconds of a planted run without scatter."""
    return START_UP_SECONDS + SAMPLES * (1 + law.serial * (devices - 1)) / (law.rate * devices)


def check_by_hand(
    answer: dict[str, Any], points: pd.DataFrame, training: dict[int, float], trainings: int = 8
) -> None:
    """Check the answer, times and costs against those of the rounds that a training's seconds give."""
    total = max(training)
    by_hand = {
        devices: math.ceil(trainings / (total // devices)) * each for devices, each in training.items()
    }
    best = min(by_hand, key=by_hand.__getitem__)
    assert (answer["devices"], answer["at_a_time"]) == (best, min(total // best, trainings))
    for devices, seconds in by_hand.items():
        point = points.loc[devices]
        assert point["seconds"] == pytest.approx(seconds, rel=0.01)
        hours = trainings * devices * training[devices] / 3600
        assert point["cost"] == pytest.approx(hours, rel=0.01)


@pytest.mark.parametrize(("serial", "trainings"), [(0.02, 8), (0.3, 3), (0.3, 8)])
def test_the_split_that_finishes_first_is_that_of_the_planted_times(
    serial: float, trainings: int, tmp_path: Path
) -> None:
    law = Law(rate=1000.0, serial=serial, scatter=0.002)
    answer, points = answered(tmp_path, law, trainings)

    training = {devices: training_seconds(law, devices) for devices in (1, 2, 4, 8)}
    check_by_hand(answer, points, training, trainings)
    assert (answer["certainty"], answer["clock"]) == ("clear", "runs")
    assert (points["seconds_low"] < points["seconds"]).all()
    assert (points["seconds"] < points["seconds_high"]).all()


def test_a_training_to_a_target_takes_the_epochs_that_its_device_count_needs(tmp_path: Path) -> None:
    """An accuracy of 0.95 takes ln 18 / 0.6 = 4.82 epochs, and 2 % more for each doubling of the devices.

    The imports, the process group, the data and the model of each training take 4 s before it.
    """
    law = Law(rate=1000.0, serial=0.02, scatter=0.002)
    answer, points = answered(tmp_path, law, target={"accuracy": 0.95})

    assert answer["clock"] == "target"
    training = {
        devices: 4.0
        + epochs * SAMPLES / EPOCHS_OF_A_RUN * (1 + law.serial * (devices - 1)) / (law.rate * devices)
        for devices, epochs in {1: 5, 2: 5, 4: 6, 8: 6}.items()
    }
    check_by_hand(answer, points, training)
    assert answer["certainty"] == "clear"


@pytest.mark.parametrize("repeats", [2, 3])
def test_a_split_is_clear_from_three_runs_on(tmp_path: Path, repeats: int) -> None:
    law = Law(rate=1000.0, serial=0.3, scatter=0.002)
    answer, points = answered(tmp_path, law, repeats=repeats)
    assert (answer["certainty"] == "clear") == (repeats == 3)
    assert points["seconds_high"].isna().all() == (repeats == 2)


def test_trainings_of_which_some_miss_the_target_are_not_clear(tmp_path: Path) -> None:
    """At epoch 10, 1 and 2 GPUs have an accuracy of 0.997, two of three runs on 4, and none on 8."""
    law = Law(rate=1000.0, serial=0.02, scatter=0.002)
    answer, points = answered(tmp_path, law, target={"accuracy": 0.997})
    assert points["n_reached"].tolist() == [3, 3, 2, 0]
    assert answer["devices"] in (1, 2, 4)
    assert answer["certainty"] != "clear"


def test_a_number_of_samples_takes_the_time_of_the_planted_throughput(tmp_path: Path) -> None:
    law, samples = Law(rate=1000.0, serial=0.1, scatter=0.002), 5_000_000
    answer, points = answered(tmp_path, law, samples_per_training=samples)
    training = {
        devices: samples * (1 + law.serial * (devices - 1)) / (law.rate * devices) for devices in (1, 2, 4, 8)
    }
    assert answer["clock"] in ("steps", "epochs")
    check_by_hand(answer, points, training)


def test_a_planted_tie_of_splits_is_left_open(tmp_path: Path) -> None:
    """On 2 devices a training takes half the time that it takes on 1, start-up included."""
    half = (START_UP_SECONDS + SAMPLES / 100) / 2
    law = Law(rate=100.0, serial=(half - START_UP_SECONDS) * 200 / SAMPLES - 1, scatter=0.05)
    assert 2 * training_seconds(law, 2) == pytest.approx(training_seconds(law, 1))

    answer, _ = answered(tmp_path, law)
    assert answer["devices"] in (1, 2)
    assert answer["certainty"] != "clear"


def test_a_site_of_whole_nodes_runs_as_many_trainings_at_a_time_as_it_has_nodes(tmp_path: Path) -> None:
    law = Law(rate=1000.0, serial=0.02, scatter=0.002)
    answer, points = answered(tmp_path, law, slurm={"exclusive": True})

    assert points["billed_devices"].tolist() == [4, 4, 4, 8]
    assert (answer["devices"], answer["at_a_time"]) == (4, 2)
    assert points.loc[1, "seconds"] == pytest.approx(4 * training_seconds(law, 1), rel=0.01)
    assert points.loc[1, "cost"] == pytest.approx(8 * 4 * training_seconds(law, 1) / 3600, rel=0.01)


def test_the_answer_on_splits_is_in_the_report_and_drawn(planted: PlantedStudy) -> None:
    answer, page = answer_of(planted, "seeds"), page_of(planted)
    assert "8 trainings" in answer["verdict"]
    assert len(answer["candidates"]) == 4
    assert all(row["label"] in page for row in answer["candidates"])
    assert (planted.results / "seeds" / "figures" / "time_cost.pdf").exists()
