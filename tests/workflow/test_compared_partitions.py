"""An experiment on several partitions: its rule, its files, and the answer from the command to the report."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_study import Law, PlantedStudy, experiments
from tests.workflow.conftest import SNAKEFILE, Workplace
from tests.workflow.results_contract import broken_promises, listing, promised

from scalewise.analysis.queue_waits import QUEUE_WAIT_COLUMNS
from scalewise.plan.runs.run_definition import RunDefinition

pytestmark = pytest.mark.contract

STUDY = experiments(
    known={"title": "What is planted", "devices": [1, 2, 4], "partitions": ["a100", "h200"]},
    plain={"devices": [1, 2]},
)
SITE: dict[str, object] = {
    "accelerator": "cuda",
    "cpus_per_node": 32,
    "partitions": {
        "a100": {"devices_per_node": 4, "price_per_device_hour": 1.5},
        "h200": {"devices_per_node": 2, "price_per_device_hour": 4.5},
    },
    "default_partition": "a100",
}
SLOW, FAST = Law(rate=200.0, serial=0.05, scatter=0.004), Law(rate=500.0, serial=0.02, scatter=0.004)


def speed(run: RunDefinition) -> float:
    """Return the speed of a run: the devices of one partition are 2.5 times as fast."""
    return (FAST if run.experiment.endswith("@h200") else SLOW).speed(run)


WAITS = {"known@a100": 60.0, "known@h200": 7200.0}
"""Seconds that each job waits."""


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
    made = PlantedStudy(tmp_path_factory.mktemp("partitions") / "study", STUDY, speed, SITE)
    made.finish(plant_waits)
    return made


def answer_of(study: PlantedStudy) -> dict[str, Any]:
    """Return the contents of partitions.json."""
    text = (study.results / "known" / "partitions.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def test_the_planted_partition_is_the_answer(planted: PlantedStudy) -> None:
    answer = answer_of(planted)
    best = {
        aim: (each["point"]["partition"], each["point"]["devices"]) for aim, each in answer["best"].items()
    }

    # 2 x 500 at 2 % against 4 x 200 at 5 %: 980 to 696 samples/s; start-up and a price 3 times as high
    assert best["time"] == ("h200", 2)
    assert best["cost"][0] == "a100"
    assert answer["best"]["time"]["partition_status"] == "clear"
    assert {name: each["price"] for name, each in answer["partitions"].items()} == {"a100": 1.5, "h200": 4.5}


def test_the_waits_of_the_jobs_turn_the_order_of_the_ends(planted: PlantedStudy) -> None:
    answer = answer_of(planted)

    assert answer["best"]["soonest"]["point"] == {"partition": "a100", "series": "all runs", "devices": 4}
    ends = {each["partition"]: each["ratio"] for each in answer["best"]["soonest"]["rivals"]}
    # 2 h more to wait, and about 2 to 3 minutes to run
    assert ends["h200"] > 30
    assert answer["card"]["waits"].startswith(
        "Waits in the queue are those of 15 runs of this study (2026-03-02)."
    )


def test_a_price_is_for_the_billed_hours_of_the_run(planted: PlantedStudy) -> None:
    with (planted.results / "known" / "partitions.csv").open(encoding="utf-8") as file:
        rows = {(row["partition"], int(row["devices"])): row for row in csv.DictReader(file)}

    assert list(rows) == [("a100", 1), ("a100", 2), ("a100", 4), ("h200", 1), ("h200", 2)]
    for (partition, devices), row in rows.items():
        hours = devices * float(row["seconds"]) / 3600
        assert float(row["cost"]) == pytest.approx(hours * {"a100": 1.5, "h200": 4.5}[partition])


def test_the_report_on_all_experiments_shows_the_answer_before_the_partitions(planted: PlantedStudy) -> None:
    page = (planted.results / "report.html").read_text(encoding="utf-8")
    verdict = answer_of(planted)["card"]["verdict"]

    assert page.index("What is planted: which partition?") < page.index(verdict)
    assert page.index(verdict) < page.index('id="known@a100"')
    assert '<a href="known/report.html">' in page
    assert 'id="plain.partitions"' not in page


def test_the_report_on_the_partitions_links_theirs(planted: PlantedStudy) -> None:
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


def test_a_partial_report_compares_what_has_finished(tmp_path: Path) -> None:
    study = PlantedStudy(tmp_path / "study", STUDY, speed, SITE)
    study.make_runs(most=9)
    page = study.write_partial().read_text(encoding="utf-8")

    assert "What is planted: which partition?" in page
    assert "h200 has no result yet that can be compared." in page


TINY = """\
experiments:
  digits:
    dataset: digits
    model: linear
    global_batch_size: 256
    epochs: 2
    devices: [1]
    partitions: all
    repeats: 2
    runtime_minutes: 2
    predict: false
"""
TINY_SITE = """\
accelerator: cpu
cpus_per_node: 2
devices_per_node: 1
partitions:
  one: {price_per_device_hour: 1}
  other: {price_per_device_hour: 50}
default_partition: one
"""


def test_a_study_on_two_partitions_runs_from_the_command_to_the_report(workplace: Workplace) -> None:
    done = workplace.snakemake(config=TINY, site=TINY_SITE)
    assert done.code == 0, done.text
    results = workplace.folder / "results"
    answer = json.loads((results / "digits" / "partitions.json").read_text(encoding="utf-8"))

    assert {"compare_partitions", "write_report"} <= done.rules
    assert answer["card"]["verdict"] in " ".join(done.text.split())
    assert list(answer["partitions"]) == ["one", "other"]
    # the same machine at 50 times the price
    assert answer["best"]["cost"]["point"]["partition"] == "one"
    for name in ("digits", "digits@one", "digits@other"):
        assert (results / name / "report.html").exists()

    again = workplace.snakemake("-n", config=TINY, site=TINY_SITE)
    assert again.rules == set()
    repriced = workplace.snakemake("-n", config=TINY, site=TINY_SITE.replace("hour: 50", "hour: 60"))
    assert repriced.rules == {"all", "compare_partitions", "write_overall_report"}

    run = "results/digits@other/runs/d1.r1/summary.json"
    forced = workplace.snakemake("-n", "--forcerun", run, config=TINY, site=TINY_SITE)
    assert forced.trained == {"digits@other/d1.r1"}
    shown = workplace.run(["python", str(SNAKEFILE.parent / "scripts" / "status.py")])
    assert shown.code == 0, shown.text
    assert "4 of 4 runs done" in shown.text
    assert "digits@one" in shown.text
    assert "digits@other" in shown.text
