"""Studies whose speeds are planted: their records become answers and pages by the rules' own commands."""

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

from scalewise.plan.run_definition import RunDefinition

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
    for name, answer in zip(names, answers, strict=True):
        assert (
            page.index(answer["verdict"])
            < page.index(f'id="{name}.time_cost"')
            < page.index(f'id="{name}.points"')
        )
        assert all(row["label"] in page for row in answer["candidates"])
    assert "8 trainings" in answers[2]["verdict"]
    assert len(answers[2]["candidates"]) == 4
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

EASY, HARD = (Law(rate=1000.0, serial=serial, scatter=0.002) for serial in (0.02, 0.3))


def answered(folder: Path, law: Law, **keys: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the answer on several trainings, by default 8, and scaling.csv by device count.

    Args:
        folder: Receives the study.
        law: Speed of its runs.
        keys: Further keys of the experiment; ``slurm`` is that block of the site.
    """
    site = SITE | ({"slurm": keys.pop("slurm")} if "slurm" in keys else {})
    study = PlantedStudy(folder, experiments(seeds={"trainings": 8} | keys), law.speed, site)
    study.tabulate()
    return answer_of(study, "seeds"), pd.DataFrame(points_of(study, "seeds").loc[""])


def seconds_of(law: Law, devices: int, samples: float = SAMPLES, before: float = START_UP_SECONDS) -> float:
    """Return the seconds of samples without scatter; by default those of a planted run."""
    return before + samples * (1 + law.serial * (devices - 1)) / (law.rate * devices)


@pytest.mark.parametrize(
    ("law", "keys", "clock", "samples", "before"),
    [
        (EASY, {}, "runs", [SAMPLES] * 4, START_UP_SECONDS),
        (HARD, {"trainings": 3}, "runs", [SAMPLES] * 4, START_UP_SECONDS),
        (HARD, {}, "runs", [SAMPLES] * 4, START_UP_SECONDS),
        # ln 18 / 0.6 = 4.82 epochs, and 2 % more for each doubling; 4 s from the imports to the first step
        (
            *(EASY, {"target": {"accuracy": 0.95}}, "target"),
            *([epochs * SAMPLES / EPOCHS_OF_A_RUN for epochs in (5, 5, 6, 6)], 4.0),
        ),
        (EASY, {"samples_per_training": 5_000_000}, "epochs", [5_000_000] * 4, 0.0),
    ],
    ids=["easy to scale", "three", "hard to scale", "to a target", "of samples"],
)
def test_the_split_that_finishes_first_is_that_of_the_planted_times(
    law: Law, keys: dict[str, Any], clock: str, samples: list[float], before: float, tmp_path: Path
) -> None:
    answer, points = answered(tmp_path, law, **keys)
    trainings, counts = keys.get("trainings", 8), (1, 2, 4, 8)
    training = [seconds_of(law, *each, before) for each in zip(counts, samples, strict=True)]
    by_hand = [math.ceil(trainings / (8 // n)) * each for n, each in zip(counts, training, strict=True)]
    best = counts[by_hand.index(min(by_hand))]
    assert (answer["devices"], answer["at_a_time"]) == (best, min(8 // best, trainings))
    assert (answer["certainty"], answer["clock"]) == ("clear", clock)
    assert points["seconds"].tolist() == pytest.approx(by_hand, rel=0.01)
    hours = [trainings * n * each / 3600 for n, each in zip(counts, training, strict=True)]
    assert points["cost"].tolist() == pytest.approx(hours, rel=0.01)
    assert (points["seconds_low"] < points["seconds"]).all()
    assert (points["seconds"] < points["seconds_high"]).all()


TIE = Law(rate=100.0, serial=-100 * START_UP_SECONDS / SAMPLES, scatter=0.05)
"""On 2 devices a training takes half the time that it takes on 1, start-up included."""


@pytest.mark.parametrize(
    ("law", "keys", "devices"),
    [
        pytest.param(HARD, {"repeats": 2}, {1}, id="two repeats"),
        # at epoch 10, 1 and 2 GPUs have an accuracy of 0.997, two of three runs on 4, and none on 8
        pytest.param(EASY, {"target": {"accuracy": 0.997}}, {1, 2, 4}, id="a target that some miss"),
        pytest.param(TIE, {}, {1, 2}, id="a tie"),
    ],
)
def test_a_split_that_is_not_shown_to_finish_first_is_not_clear(
    law: Law, keys: dict[str, Any], devices: set[int], tmp_path: Path
) -> None:
    answer, points = answered(tmp_path, law, **keys)
    assert answer["devices"] in devices
    assert answer["certainty"] != "clear"
    assert "target" not in keys or points["n_reached"].tolist() == [3, 3, 2, 0]
    assert "repeats" not in keys or points["seconds_high"].isna().all()


def test_a_site_of_whole_nodes_runs_as_many_trainings_at_a_time_as_it_has_nodes(tmp_path: Path) -> None:
    answer, points = answered(tmp_path, EASY, slurm={"exclusive": True})

    assert points["billed_devices"].tolist() == [4, 4, 4, 8]
    assert (answer["devices"], answer["at_a_time"]) == (4, 2)
    assert points.loc[1, "seconds"] == pytest.approx(4 * seconds_of(EASY, 1), rel=0.01)
    assert points.loc[1, "cost"] == pytest.approx(8 * 4 * seconds_of(EASY, 1) / 3600, rel=0.01)
