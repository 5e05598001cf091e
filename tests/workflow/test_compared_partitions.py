"""A study on several partitions: its plan, its preflight, and its run from the command to the report."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from tests.paths import SNAKEFILE
from tests.workflow.workplace import ON_PARTITIONS, PARTITIONS, Workplace


def test_a_study_on_two_partitions_runs_from_the_command_to_the_report(workplace: Workplace) -> None:
    done = workplace.snakemake(config=ON_PARTITIONS, site=PARTITIONS)
    assert done.code == 0, done.text
    results = workplace.folder / "results"
    (answer,) = json.loads((results / "decision.json").read_text(encoding="utf-8"))

    assert answer["verdict"] in " ".join(done.text.split())
    assert len(answer["candidates"]) == 2
    # the same machine at 50 times the price
    points = pd.read_csv(results / "digits" / "scaling.csv").set_index("partition")
    assert list(points["n"]) == [2, 2]
    costs = points["cost"] / points["seconds"]
    assert costs["other"] / costs["one"] == pytest.approx(50)
    names = {f"d1.{partition}.r{repeat}" for partition in ("one", "other") for repeat in (1, 2)}
    assert {path.name for path in (results / "digits" / "runs").iterdir()} == names

    again = workplace.snakemake("-n", config=ON_PARTITIONS, site=PARTITIONS)
    assert again.rules == set()
    repriced = workplace.snakemake(
        "-n", config=ON_PARTITIONS, site=PARTITIONS.replace("hour: 50", "hour: 60")
    )
    assert repriced.rules == {"all", "analyze", "plot", "write_report"}

    run = "results/digits/runs/d1.other.r1/record.json"
    forced = workplace.snakemake("-n", "--forcerun", run, config=ON_PARTITIONS, site=PARTITIONS)
    assert forced.trained == {"digits/d1.other.r1"}
    shown = workplace.run(["python", str(SNAKEFILE.parent / "scripts" / "status.py")])
    assert shown.code == 0, shown.text
    assert shown.text.startswith("digits: ")
    assert "d1.one: 2 of 2 done" in shown.text
    assert "d1.other: 2 of 2 done" in shown.text
