"""Studies whose speeds are planted: their records become answers and pages by the rules' own commands."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.planted_records import STARTUP
from tests.planted_study import (
    EPOCHS_OF_A_RUN,
    SITE,
    START_UP_SECONDS,
    STEPS_OF_AN_EPOCH,
    Law,
    PlantedStudy,
    experiments,
)
from tests.truth.splits import verdicts
from tests.workflow.results_contract import broken_promises, listing, promised

from scalewise.analysis.queue_waits import QUEUE_WAIT_COLUMNS
from scalewise.plan.runs.run_definition import RunDefinition

pytestmark = pytest.mark.contract

STUDY = experiments(
    known={
        "title": "What is planted",
        "devices": [1, 2, 4],
        "partitions": ["a100", "h200"],
        "proposal": {"centre": "ncar"},
    },
    plain={"title": "On one partition", "decision": {"min_efficiency": 0.7}, "trainings": 8},
)
PARTITIONS: dict[str, object] = {
    "accelerator": "cuda",
    "cpus_per_node": 32,
    "partitions": {
        "a100": {"devices_per_node": 8, "price_per_device_hour": 1.5},
        "h200": {"devices_per_node": 2, "price_per_device_hour": 4.5},
    },
    "default_partition": "a100",
}
SLOW, FAST = Law(rate=200.0, serial=0.05, scatter=0.004), Law(rate=500.0, serial=0.02, scatter=0.004)
PLAIN = Law(rate=1000.0, serial=0.1, scatter=0.002)
"""Efficiency 0.91 on 2 devices, 0.77 on 4, 0.59 on 8."""
ANSWER = 4
WAITS = {"known@a100": 60.0, "known@h200": 7200.0}
"""Seconds that each job waits."""


def speed(run: RunDefinition) -> float:
    """Return the speed of a run: the devices of one partition are 2.5 times as fast."""
    law = PLAIN if run.experiment == "plain" else FAST if run.experiment.endswith("@h200") else SLOW
    return law.speed(run)


def plant_waits(folder: Path) -> None:
    """Write waits as Slurm's accounting has them, between the tables of an experiment and its figures."""
    if folder.name in WAITS:
        runs = pd.read_csv(folder / "runs.csv")
        waits = runs[["run", "series", "devices"]].assign(
            started="2026-03-02T09:00:00+00:00", wait_seconds=WAITS[folder.name]
        )
        waits.reindex(columns=QUEUE_WAIT_COLUMNS).to_csv(folder / "queue_waits.csv", index=False)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedStudy:
    """The study, from its records to its reports."""
    made = PlantedStudy(tmp_path_factory.mktemp("planted") / "study", STUDY, speed, PARTITIONS)
    made.finish(plant_waits)
    return made


def table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def page_of(report: Path) -> str:
    """Return the text of a report."""
    return unescape(report.read_text(encoding="utf-8"))


def test_the_planted_speeds_are_in_the_tables(planted: PlantedStudy) -> None:
    points = {int(point["devices"]): point for point in table(planted.results / "plain" / "scaling.csv")}
    assert list(points) == [1, 2, 4, 8]
    for devices, point in points.items():
        efficiency = 1 / (1 + PLAIN.serial * (devices - 1))
        assert int(point["n"]) == 3
        assert float(point["throughput_samples_per_second"]) == pytest.approx(
            1000 * devices * efficiency, rel=0.01
        )
        assert float(point["parallel_efficiency"]) == pytest.approx(efficiency, rel=0.01)


def test_the_planted_answer_stands_in_decision_and_page(planted: PlantedStudy) -> None:
    decision = json.loads((planted.results / "plain" / "decision.json").read_text(encoding="utf-8"))
    assert decision in json.loads((planted.results / "decision.json").read_text(encoding="utf-8"))
    assert decision["devices"] == ANSWER
    page = page_of(planted.results / "report.html")
    assert decision["card"]["verdict"] in page
    assert "On one partition" in page


def answer_of(study: PlantedStudy) -> dict[str, Any]:
    """Return the contents of partitions.json."""
    text = (study.results / "known" / "partitions.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def test_the_planted_partition_is_the_answer_and_waits_turn_the_order_of_the_ends(
    planted: PlantedStudy,
) -> None:
    answer = answer_of(planted)
    points = {aim: each["point"] for aim, each in answer["best"].items()}

    # 2 x 500 at 2 % against 4 x 200 at 5 %: 980 to 696 samples/s; start-up and a price 3 times as high
    assert (points["time"]["partition"], points["time"]["devices"]) == ("h200", 2)
    assert points["cost"]["partition"] == "a100"
    assert answer["best"]["time"]["partition_status"] == "clear"
    assert {name: each["price"] for name, each in answer["partitions"].items()} == {"a100": 1.5, "h200": 4.5}
    assert points["soonest"] == {"partition": "a100", "series": "all runs", "devices": 4}
    ends = {each["partition"]: each["ratio"] for each in answer["best"]["soonest"]["rivals"]}
    # 2 h more to wait, and about 2 to 3 minutes to run
    assert ends["h200"] > 30
    assert answer["card"]["waits"].startswith(
        "Waits in the queue are those of 15 runs of this study (2026-03-02)."
    )


def test_a_price_is_for_the_billed_hours_of_the_run(planted: PlantedStudy) -> None:
    rows = table(planted.results / "known" / "partitions.csv")

    points = [(row["partition"], int(row["devices"])) for row in rows]
    assert points == [("a100", 1), ("a100", 2), ("a100", 4), ("h200", 1), ("h200", 2)]
    for (partition, devices), row in zip(points, rows, strict=True):
        hours = devices * float(row["seconds"]) / 3600
        assert float(row["cost"]) == pytest.approx(hours * {"a100": 1.5, "h200": 4.5}[partition])


def test_the_reports_show_the_answer_before_the_partitions_and_link_theirs(planted: PlantedStudy) -> None:
    page = (planted.results / "report.html").read_text(encoding="utf-8")
    verdict = answer_of(planted)["card"]["verdict"]

    assert page.index("What is planted: which partition?") < page.index(verdict)
    assert page.index(verdict) < page.index('id="known@a100"')
    assert '<a href="known/report.html">' in page
    assert 'id="plain.partitions"' not in page
    page = (planted.results / "known" / "report.html").read_text(encoding="utf-8")
    for partition in ("a100", "h200"):
        assert f'href="../known%40{partition}/report.html"' in page
        assert (planted.results / f"known@{partition}" / "figures" / "speedup.svg").exists()


def test_planted_energy_and_waits_are_of_the_types_that_are_promised(planted: PlantedStudy) -> None:
    """The kept study has neither."""
    found = listing(planted.results)
    assert found["{experiment}/partitions.csv"]["energy_kwh"] == "number"
    assert found["{experiment}/queue_waits.csv"]["wait_seconds"].startswith("number")
    assert broken_promises(found, promised()) == []


def test_a_proposal_names_its_partition(planted: PlantedStudy) -> None:
    for partition in ("a100", "h200"):
        folder = planted.results / f"known@{partition}" / "proposal"
        text = (folder / "proposal.md").read_text(encoding="utf-8")
        assert text.partition("\n")[0].endswith(f"What is planted on {partition}")
        assert f" of the partition {partition}." in text
        assert f"known@{partition} on " in (folder / "job.sh").read_text(encoding="utf-8")


def test_a_report_on_finished_runs_compares_partitions(tmp_path: Path) -> None:
    text = experiments(known={"title": "What is planted", "devices": [1], "partitions": ["a100", "h200"]})
    study = PlantedStudy(tmp_path / "study", text, speed, PARTITIONS)
    study.make_runs(most=3)
    page = study.write_partial().read_text(encoding="utf-8")

    assert "What is planted: which partition?" in page
    assert "h200 has no result yet that can be compared." in page


# --- several trainings on the same devices ---------------------------------------------------------------

SAMPLES = STEPS_OF_AN_EPOCH * EPOCHS_OF_A_RUN * 256


def answered(
    folder: Path, law: Law, trainings: int = 8, keys: Mapping[str, Any] | None = None, **slurm: Any
) -> tuple[dict[str, Any], dict[int, dict[str, str]]]:
    """Return a study's answer on splits and the rows of splits.csv by device count.

    Args:
        folder: Receives it.
        law: Speed of its runs.
        trainings: Trainings that are planned.
        keys: Further keys of the experiment.
        slurm: Keys of the site's ``slurm`` block.
    """
    site = SITE | ({"slurm": slurm} if slurm else {})
    text = experiments(seeds={"trainings": trainings} | dict(keys or {}))
    study = PlantedStudy(folder, text, law.speed, site)
    study.tabulate()
    decision = json.loads((study.folder / "decision.json").read_text(encoding="utf-8"))
    rows = {int(row["devices"]): row for row in table(study.folder / "splits.csv")}
    return decision["splits"], rows


def training_seconds(law: Law, devices: int) -> float:
    """Return the seconds of a planted run without scatter."""
    return START_UP_SECONDS + SAMPLES * (1 + law.serial * (devices - 1)) / (law.rate * devices)


def check_by_hand(
    answer: dict[str, Any], rows: dict[int, dict[str, str]], training: dict[int, float], trainings: int = 8
) -> None:
    """Check times and ratios against those of the rounds that a training's seconds by device count give."""
    total = max(training)
    by_hand = {
        devices: math.ceil(trainings / (total // devices)) * each for devices, each in training.items()
    }
    best = min(by_hand, key=by_hand.__getitem__)
    assert (answer["best"], answer["devices"]) == (best, total)
    for devices, seconds in by_hand.items():
        row = rows[devices]
        assert float(row["training_seconds"]) == pytest.approx(training[devices], rel=0.01)
        assert float(row["seconds"]) == pytest.approx(seconds, rel=0.01)
        assert devices == best or float(row["ratio"]) == pytest.approx(seconds / by_hand[best], rel=0.01)


@pytest.mark.parametrize(("serial", "trainings"), [(0.02, 8), (0.3, 3), (0.3, 8)])
def test_the_split_that_finishes_first_is_that_of_the_planted_times(
    serial: float, trainings: int, tmp_path: Path
) -> None:
    law = Law(rate=1000.0, serial=serial, scatter=0.002)
    answer, rows = answered(tmp_path, law, trainings)

    training = {devices: training_seconds(law, devices) for devices in (1, 2, 4, 8)}
    check_by_hand(answer, rows, training, trainings)
    assert (answer["status"], answer["clock"]) == ("clear", "total time")
    for devices, seconds in training.items():
        row = rows[devices]
        assert float(row["seconds_low"]) < float(row["seconds"]) < float(row["seconds_high"])
        assert float(row["device_hours"]) == pytest.approx(trainings * devices * seconds / 3600, rel=0.01)
        assert devices == answer["best"] or row["state"] == "shown"


BEFORE_TRAINING = sum(STARTUP.values()) - STARTUP["first_step_seconds"]


def seconds_of_epochs(law: Law, devices: int, epochs: int) -> float:
    """Return the seconds of a planted training until the end of an epoch, start-up included."""
    speed = law.rate * devices / (1 + law.serial * (devices - 1))
    return BEFORE_TRAINING + epochs * STEPS_OF_AN_EPOCH * 256 / speed


def test_a_training_to_a_target_takes_the_epochs_that_its_device_count_needs(tmp_path: Path) -> None:
    """An accuracy of 0.95 takes ln 18 / 0.6 = 4.82 epochs, and 2 % more for each doubling of the devices."""
    law = Law(rate=1000.0, serial=0.02, scatter=0.002)
    answer, rows = answered(tmp_path, law, keys={"target": {"accuracy": 0.95}})

    assert answer["clock"] == "time to target"
    epochs = {1: 5, 2: 5, 4: 6, 8: 6}
    check_by_hand(
        answer, rows, {devices: seconds_of_epochs(law, devices, each) for devices, each in epochs.items()}
    )
    assert answer["status"] == "clear"


@pytest.mark.parametrize(("repeats", "status"), [(2, "cannot tell"), (3, "clear")])
def test_a_split_is_clear_from_three_runs_on(tmp_path: Path, repeats: int, status: str) -> None:
    law = Law(rate=1000.0, serial=0.3, scatter=0.002)
    answer, rows = answered(tmp_path, law, keys={"repeats": repeats})
    assert answer["status"] == status
    assert (rows[1]["training_seconds_high"] == "") == (repeats == 2)


def test_trainings_that_miss_the_target_are_made_again(tmp_path: Path) -> None:
    """At epoch 10, 1 and 2 GPUs have an accuracy of 0.997, two of three runs on 4, and none on 8."""
    law = Law(rate=1000.0, serial=0.02, scatter=0.002)
    answer, rows = answered(tmp_path, law, keys={"target": {"accuracy": 0.997}})

    tries = {1: 1.0, 2: 1.0, 4: 3 / 2}
    check_by_hand(
        answer, rows, {devices: each * seconds_of_epochs(law, devices, 10) for devices, each in tries.items()}
    )
    assert rows[8]["note"] == "no run reached the target"
    # of three tries, two succeeded, and two have no interval
    assert rows[4]["state"] == "open"
    assert rows[4]["training_seconds_high"] == ""
    assert answer["status"] == "cannot tell"


def test_a_number_of_samples_takes_the_time_of_the_planted_throughput(tmp_path: Path) -> None:
    law = Law(rate=1000.0, serial=0.1, scatter=0.002)
    answer, rows = answered(tmp_path, law, keys={"samples_per_training": 5_000_000})

    assert answer["clock"] == "throughput"
    samples = 5_000_000
    check_by_hand(
        answer,
        rows,
        {
            devices: samples * (1 + law.serial * (devices - 1)) / (law.rate * devices)
            for devices in (1, 2, 4, 8)
        },
    )
    assert "A training is 5,000,000 samples at the measured throughput" in " ".join(answer["sentences"])


@pytest.mark.parametrize("name", ["3 trainings that scale well", "a tie", "less work to the target"])
def test_planted_splits_are_found_or_called_open(name: str) -> None:
    """With all cases and more studies the same is in docs/statistics.md."""
    generator = np.random.default_rng(1)
    found = Counter(verdict for _ in range(5) for verdict in verdicts(name, generator, 0.03, 3))

    assert found["wrong"] == 0
    assert (found["right"] > found["cannot tell"]) == (name != "a tie")


def test_a_planted_tie_of_splits_is_left_open(tmp_path: Path) -> None:
    """On 2 devices a training takes half the time that it takes on 1, start-up included."""
    half = (START_UP_SECONDS + SAMPLES / 100) / 2
    law = Law(rate=100.0, serial=(half - START_UP_SECONDS) * 200 / SAMPLES - 1, scatter=0.05)
    assert 2 * training_seconds(law, 2) == pytest.approx(training_seconds(law, 1))

    answer, rows = answered(tmp_path, law)

    assert answer["status"] == "cannot tell"
    assert "open" in {rows[devices]["state"] for devices in (1, 2)}
    assert "the runs cannot tell which finishes first" in answer["sentences"][0]
    assert "more repeat" in answer["sentences"][1]


def test_a_site_of_whole_nodes_runs_as_many_trainings_at_a_time_as_it_has_nodes(tmp_path: Path) -> None:
    law = Law(rate=1000.0, serial=0.02, scatter=0.002)
    answer, rows = answered(tmp_path, law, partial_nodes="billed-whole")

    assert [int(rows[devices]["at_a_time"]) for devices in (1, 2, 4, 8)] == [2, 2, 2, 1]
    assert answer["best"] == 4
    hours = 8 * 4 * training_seconds(law, 1) / 3600
    assert float(rows[1]["device_hours"]) == pytest.approx(hours, rel=0.01)
    assert any("whole nodes" in sentence for sentence in answer["sentences"])


def test_the_answer_on_splits_is_in_the_report_and_drawn(planted: PlantedStudy) -> None:
    folder = planted.results / "plain"
    answer = json.loads((folder / "decision.json").read_text(encoding="utf-8"))["splits"]
    page = page_of(planted.results / "report.html")

    assert answer["sentences"][0].startswith("8 trainings on 8 GPUs: all at once on 1 GPU each finish in ")
    assert "one after another on 8 GPUs in " in answer["sentences"][0]
    assert all(sentence in page for sentence in answer["sentences"])
    traces = json.loads((folder / "figures/traces.json").read_text(encoding="utf-8"))["splits"]
    assert traces["message"] == ""
    (drawn,) = traces["traces"]
    assert drawn["x"] == [1, 2, 4, 8]


def test_one_training_has_nothing_to_split(tmp_path: Path) -> None:
    answer, rows = answered(tmp_path, Law(), trainings=1)
    assert answer is None
    assert rows == {}
