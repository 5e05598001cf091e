"""Columns, keys and types below results/ that users rely on, and kept results that are read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.paths import CLI
from tests.workflow.results_contract import KEPT, broken_promises, listing, place_kept_study, promised
from tests.workflow.workplace import FinishedStudy, Outcome, Workplace

pytestmark = pytest.mark.contract

EXPERIMENTS = {"strong": 8, "chosen": 6, "program": 4}
"""Runs of the kept experiments that have an answer; of one on two partitions those of both."""


@dataclass(frozen=True)
class ReadBack:
    """What `cli.py report` makes of the kept records."""

    results: Path
    outcome: Outcome

    @property
    def tables(self) -> Path:
        return self.results / "partial"


FAILURE = "{experiment}/runs/{run}/failure.json"


@pytest.fixture(scope="session")
def read_back(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> ReadBack:
    """The kept study in a new folder, reported on from its records."""
    workplace = Workplace(tmp_path_factory.mktemp("kept"), preloaded_python)
    place_kept_study(workplace.folder)
    config, site = ((workplace.folder / f"{name}.yaml").read_text() for name in ("study", "site"))
    # the plan of a study comes from its session; this one trains nothing
    session = workplace.snakemake("--until", "prepare_dataset", config=config, site=site)
    assert session.code == 0, session.text
    outcome = workplace.run(["python", str(CLI), "report"])
    assert outcome.code == 0, outcome.text
    return ReadBack(workplace.folder / "results", outcome)


def test_a_study_writes_every_column_and_key_that_is_promised(study: FinishedStudy) -> None:
    found = listing(study.results)
    assert found.keys() == promised().keys() - {FAILURE}, "no run of it has failed"
    assert broken_promises(found, promised()) == []


def test_kept_records_and_tables_made_of_them_have_what_is_promised(read_back: ReadBack) -> None:
    records, tables = listing(KEPT / "results"), listing(read_back.tables)
    proposal = "{experiment}/proposal/table.csv"
    assert records.keys() | tables.keys() == promised().keys() - {proposal}
    assert broken_promises(records, promised()) == []
    assert broken_promises(tables, promised()) == []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_kept_record_is_in_the_tables_with_its_figures(read_back: ReadBack, experiment: str) -> None:
    records = {
        (path.parents[2].name.partition("@")[2], path.parent.name): json.loads(
            path.read_text(encoding="utf-8")
        )
        for folder in (experiment, f"{experiment}@*")
        for path in (KEPT / "results").glob(f"{folder}/runs/*/record.json")
    }
    assert len(records) == EXPERIMENTS[experiment]
    runs = pd.read_csv(read_back.tables / experiment / "runs.csv", keep_default_na=False)
    runs = runs.set_index(["partition", "run"])
    assert set(runs.index) == records.keys()
    for place, record in records.items():
        assert record["outcome"] == "completed"
        run: dict[Any, Any] = pd.Series(runs.loc[place]).to_dict()
        measured = record["measurements"]
        for column in ("throughput_samples_per_second", "train_seconds", "peak_memory_bytes"):
            assert float(run[column]) == measured[column]
        nodes, per_node = map(int, record["definition"]["shape"].split("x"))
        assert float(run["devices"]) == nodes * per_node
    compared = runs[runs["outcome"] == "completed"].reset_index()
    points = pd.read_csv(read_back.tables / experiment / "scaling.csv", keep_default_na=False)
    alike = ["partition", "series", "devices"]
    rates = compared.groupby(alike)["throughput_samples_per_second"]
    for _, point in points.iterrows():
        of_point = rates.get_group(tuple(point[alike])).astype(float)
        assert int(point["n"]) == len(of_point)
        assert of_point.min() <= float(point["throughput_samples_per_second"]) <= of_point.max()


def test_a_kept_failure_is_reported_with_its_reason(read_back: ReadBack) -> None:
    runs = pd.read_csv(read_back.tables / "failing" / "runs.csv")
    assert list(runs["outcome"]) == ["failed"]
    assert "RuntimeError: on purpose" in runs["reason"].iloc[0]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_answer_is_a_measured_device_count_and_stands_in_page_and_terminal(
    read_back: ReadBack, experiment: str
) -> None:
    answer = json.loads((read_back.tables / experiment / "answer.json").read_text(encoding="utf-8"))
    assert answer in json.loads((read_back.results / "decision.json").read_text(encoding="utf-8"))
    points = pd.read_csv(read_back.tables / experiment / "scaling.csv")
    (chosen,) = points[points["recommended"]].to_dict("records")
    assert (answer["series"], answer["devices"]) == (chosen["series"], chosen["devices"])
    assert answer["verdict"] in unescape((read_back.results / "report.html").read_text(encoding="utf-8"))
    printed = " ".join(read_back.outcome.text.split())
    assert f"{experiment}: {answer['verdict']}" in printed


def test_a_column_that_is_gone_or_of_another_type_is_found(tmp_path: Path) -> None:
    place_kept_study(tmp_path)
    run = tmp_path / "results" / "strong" / "runs" / "d1.bucket-view-off.r1"
    ranks, record = run / "ranks.csv", run / "record.json"
    table = pd.read_csv(ranks).drop(columns="rank").rename(columns={"host": "node"})
    table.assign(peak_memory_bytes="0.9 MB").to_csv(ranks, index=False)
    summary = json.loads(record.read_text(encoding="utf-8"))
    del summary["measurements"]["windows"][0]["samples"]
    record.write_text(json.dumps(summary), encoding="utf-8")
    ranks_table, record_name = (f"{{experiment}}/runs/{{run}}/{path.name}" for path in (ranks, record))
    assert sorted(broken_promises(listing(tmp_path / "results"), promised())) == [
        f"{ranks_table}: host may be absent",
        f"{ranks_table}: peak_memory_bytes has a text, not a number",
        f"{ranks_table}: rank may be absent",
        f"{record_name}: measurements.windows[].samples may be absent",
    ]
