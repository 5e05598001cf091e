"""Columns, keys and types below results/ that users rely on, and kept results that are read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from tests.paths import CLI
from tests.workflow.results_contract import KEPT, broken_promises, listing, place_kept_study, promised
from tests.workflow.workplace import FinishedStudy, Outcome, Workplace

pytestmark = pytest.mark.contract

EXPERIMENTS = {"strong": 8, "chosen@cheap": 4, "program": 4}
"""Runs of the kept experiments that have an answer."""


@dataclass(frozen=True)
class ReadBack:
    """What `cli.py report` makes of the kept records."""

    results: Path
    outcome: Outcome


@pytest.fixture(scope="session")
def read_back(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> ReadBack:
    """The kept study in a new folder, reported on again from its records only."""
    workplace = Workplace(tmp_path_factory.mktemp("kept"), preloaded_python)
    place_kept_study(workplace.folder)
    config, site = ((workplace.folder / f"{name}.yaml").read_text() for name in ("study", "site"))
    # the plan of a study comes from its session; this one trains nothing
    session = workplace.snakemake("plan", config=config, site=site)
    assert session.code == 0, session.text
    outcome = workplace.run(["python", str(CLI), "report"])
    assert outcome.code == 0, outcome.text
    return ReadBack(workplace.folder / "results", outcome)


def test_a_study_writes_every_column_and_key_that_is_promised(study: FinishedStudy) -> None:
    found = listing(study.results)
    assert {
        "decision.json",
        "{experiment}/decision.json",
        "{experiment}/epochs.csv",
        "{experiment}/gains.csv",
        "{experiment}/laws.json",
        "{experiment}/options.csv",
        "{experiment}/proposal/table.csv",
        "{experiment}/runs.csv",
        "{experiment}/runs/{run}/epochs.csv",
        "{experiment}/runs/{run}/history.json",
        "{experiment}/runs/{run}/ranks.csv",
        "{experiment}/runs/{run}/summary.json",
        "{experiment}/runs/{run}/utilization.csv",
        "{experiment}/scaling.csv",
    } <= found.keys()
    assert broken_promises(found, promised()) == []


def test_the_kept_results_have_what_is_promised() -> None:
    found = listing(KEPT / "results")
    assert found.keys() == promised().keys()
    assert broken_promises(found, promised()) == []


def test_tables_made_again_of_kept_records_have_what_is_promised(read_back: ReadBack) -> None:
    found = listing(read_back.results / "partial")
    assert {"{experiment}/runs.csv", "{experiment}/scaling.csv", "{experiment}/decision.json"} <= found.keys()
    assert broken_promises(found, promised()) == []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_kept_record_is_in_the_tables_with_its_figures(read_back: ReadBack, experiment: str) -> None:
    records = {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))
        for path in (KEPT / "results" / experiment / "runs").glob("*/summary.json")
    }
    assert len(records) == EXPERIMENTS[experiment]
    tables = read_back.results / "partial" / experiment
    runs = pd.read_csv(tables / "runs.csv").set_index("run")
    assert set(runs.index) == records.keys()
    for run, record in records.items():
        assert record["outcome"] == "completed"
        assert runs.loc[run, "outcome"] == "completed"
        measured = record["measurements"]
        for column in ("throughput_samples_per_second", "train_seconds", "peak_memory_bytes"):
            assert runs.loc[run, column] == measured[column]
        nodes, per_node = map(int, record["definition"]["shape"].split("x"))
        assert runs.loc[run, "devices"] == nodes * per_node
    for _, point in pd.read_csv(tables / "scaling.csv").iterrows():
        alike = runs[(runs["series"] == point["series"]) & (runs["devices"] == point["devices"])]
        alike = alike[alike["outcome"] == "completed"]
        assert point["n"] == len(alike)
        rates = alike["throughput_samples_per_second"]
        # whatever mean it is
        assert rates.min() <= point["throughput_samples_per_second"] <= rates.max()


def test_a_kept_failure_is_reported_with_its_reason(read_back: ReadBack) -> None:
    runs = pd.read_csv(read_back.results / "partial" / "failing" / "runs.csv")
    assert list(runs["outcome"]) == ["failed"]
    assert "RuntimeError: on purpose" in runs["reason"].iloc[0]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_answer_is_a_measured_device_count_and_stands_in_page_and_terminal(
    read_back: ReadBack, experiment: str
) -> None:
    tables = read_back.results / "partial" / experiment
    decision = json.loads((tables / "decision.json").read_text(encoding="utf-8"))
    points = pd.read_csv(tables / "scaling.csv")
    alike = points[points["series"] == decision["series"]]
    assert decision["devices"] in set(alike["devices"])
    verdict = decision["card"]["verdict"]
    assert f"Use {decision['devices']} CPU process" in verdict
    page = unescape((read_back.results / "report.html").read_text(encoding="utf-8"))
    assert verdict in page
    assert f"{experiment}: {verdict}" in read_back.outcome.text


def test_kept_decisions_are_printed(workplace: Workplace) -> None:
    place_kept_study(workplace.folder)
    results = workplace.folder / "results"
    # pages are not kept
    (results / "report.html").touch()
    script = str(CLI)
    outcome = workplace.run(["python", script, "decisions", "results"])
    assert outcome.code == 0, outcome.text
    lines = outcome.text.splitlines()
    for decision in json.loads((results / "decision.json").read_text(encoding="utf-8")):
        assert f"{decision['experiment']}: {decision['card']['verdict']}" in outcome.text
    assert lines[-1] == "Report: results/report.html"


def test_a_column_that_is_gone_or_of_another_type_is_found(tmp_path: Path) -> None:
    place_kept_study(tmp_path)
    results = tmp_path / "results" / "strong"
    runs, record = results / "runs.csv", results / "runs" / "d1.bucket-view-off.r1" / "summary.json"
    table = pd.read_csv(runs).drop(columns="devices").rename(columns={"reason": "why"})
    table.assign(peak_memory_bytes="0.9 MB").to_csv(runs, index=False)
    summary = json.loads(record.read_text(encoding="utf-8"))
    del summary["measurements"]["windows"][0]["samples"]
    record.write_text(json.dumps(summary), encoding="utf-8")
    (tmp_path / "results" / "decision.json").unlink()
    runs_table, record_name = "{experiment}/runs.csv", "{experiment}/runs/{run}/summary.json"
    assert sorted(broken_promises(listing(tmp_path / "results"), promised())) == [
        f"{runs_table}: devices may be absent",
        f"{runs_table}: peak_memory_bytes has a text, not a number",
        f"{runs_table}: reason may be absent",
        f"{record_name}: measurements.windows[].samples may be absent",
    ]
