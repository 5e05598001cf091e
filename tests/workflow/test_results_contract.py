"""Columns, keys and types below results/ that users rely on, in studies as they are made now."""

import json
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.workflow.results_contract import broken_promises, listing, promised, run_programs
from tests.workflow.workplace import FinishedStudy, Outcome, Workplace

pytestmark = pytest.mark.contract

FAILURE, METRICS = "{experiment}/runs/{run}/failure.json", "{experiment}/proposal/table.csv"


@dataclass(frozen=True)
class Reported:
    """A study with its report.

    Args:
        tables: Folder of the tables.
        outcome: The command that made the report.
    """

    results: Path
    tables: Path
    outcome: Outcome


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Reported:
    """A user's program and one that fails, reported on."""
    workplace = Workplace(tmp_path_factory.mktemp("programs"), preloaded_python)
    results = workplace.folder / "results"
    return Reported(results, results / "partial", run_programs(workplace))


@pytest.fixture(params=["strong", "weak", "program"])
def reported(
    request: pytest.FixtureRequest, study: FinishedStudy, programs: Reported
) -> tuple[str, Reported]:
    """An experiment that has an answer, and its study."""
    made = Reported(study.results, study.results, study.first)
    return request.param, programs if request.param == "program" else made


def test_a_study_writes_every_column_and_key_that_is_promised(study: FinishedStudy) -> None:
    found = listing(study.results)
    assert found.keys() == promised().keys() - {FAILURE}, "no run of it has failed"
    assert broken_promises(found, promised()) == []


def test_programs_and_failures_have_what_is_promised(programs: Reported) -> None:
    found = listing(programs.results)
    assert found.keys() == promised().keys() - {METRICS}
    assert broken_promises(found, promised()) == []
    assert broken_promises(listing(programs.tables), promised()) == []


def test_every_record_is_in_the_tables_with_its_figures(reported: tuple[str, Reported]) -> None:
    experiment, study = reported
    records = {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))
        for path in (study.results / experiment / "runs").glob("*/record.json")
    }
    assert records
    runs = pd.read_csv(study.tables / experiment / "runs.csv", keep_default_na=False).set_index("run")
    assert set(runs.index) == records.keys()
    for name, record in records.items():
        assert record["outcome"] == "completed"
        run: dict[Any, Any] = pd.Series(runs.loc[name]).to_dict()
        measured = record["measurements"]
        for column in ("throughput_samples_per_second", "train_seconds", "peak_memory_bytes"):
            assert float(run[column]) == measured[column]
        nodes, per_node = map(int, record["definition"]["shape"].split("x"))
        assert float(run["devices"]) == nodes * per_node
    compared = runs[runs["outcome"] == "completed"].reset_index()
    points = pd.read_csv(study.tables / experiment / "scaling.csv", keep_default_na=False)
    rates = compared.groupby(["series", "devices"])["throughput_samples_per_second"]
    for _, point in points.iterrows():
        of_point = rates.get_group((point["series"], point["devices"])).astype(float)
        assert int(point["n"]) == len(of_point)
        assert of_point.min() <= float(point["throughput_samples_per_second"]) <= of_point.max()


def test_a_failure_is_reported_with_its_reason(programs: Reported) -> None:
    runs = pd.read_csv(programs.tables / "failing" / "runs.csv")
    assert list(runs["outcome"]) == ["failed"]
    assert "RuntimeError: on purpose" in runs["reason"].iloc[0]


def test_the_answer_is_a_measured_device_count_and_stands_in_page_and_terminal(
    reported: tuple[str, Reported],
) -> None:
    experiment, study = reported
    answer = json.loads((study.tables / experiment / "answer.json").read_text(encoding="utf-8"))
    assert answer in json.loads((study.results / "decision.json").read_text(encoding="utf-8"))
    points = pd.read_csv(study.tables / experiment / "scaling.csv")
    (chosen,) = points[points["recommended"]].to_dict("records")
    assert (answer["series"], answer["devices"]) == (chosen["series"], chosen["devices"])
    assert answer["verdict"] in unescape((study.results / "report.html").read_text(encoding="utf-8"))
    assert f"{experiment}: {answer['verdict']}" in " ".join(study.outcome.text.split())
