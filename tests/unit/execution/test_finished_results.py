"""A result that Snakemake would delete is taken back where it is whole and just what is asked for now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import definition

from scalewise.execution.finished_results import forget_all, set_aside, take_back
from scalewise.records import MODEL, RUN_RECORDS, SUMMARY, Provenance, Summary, write_json

DEFINITION = definition(save_model=True)
INPUTS = {"dataset": "abc"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that has completed, with all that it leaves."""
    run = tmp_path / "results" / "study" / "runs" / "d1.r1"
    run.mkdir(parents=True)
    for name in (*RUN_RECORDS, MODEL, "train.log"):
        (run / name).write_text(f"{name} as it was", encoding="utf-8")
    write_summary(run)
    return run


def write_summary(run: Path, **changes: Any) -> None:
    origin = Provenance(
        commit="c0ffee",
        versions={},
        hosts=[],
        devices=[],
        cpu_model="",
        operating_system="",
        launcher="spawn",
        started_at="",
        ended_at="",
        slurm_job_id=None,
        restart_count=0,
        inputs=INPUTS,
        environments=[],
        gpu_limits=[],
    )
    summary = Summary(
        definition=DEFINITION, outcome="completed", reason="", measurements=None, provenance=origin
    )
    write_json(run / SUMMARY, summary.model_copy(update=changes))


def delete(folder: Path) -> None:
    """What snakemake does before it starts a job."""
    for name in (*RUN_RECORDS, "train.log"):
        (folder / name).unlink()


def texts(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text(encoding="utf-8") for name in (*RUN_RECORDS, "train.log")}


def taken(folder: Path, inputs: Mapping[str, str] = INPUTS, commit: str | None = "c0ffee") -> bool:
    return take_back(folder, DEFINITION, inputs, commit)


def test_what_snakemake_deletes_is_taken_back_whole(folder: Path) -> None:
    before = texts(folder)
    set_aside([folder], [folder])
    delete(folder)
    assert taken(folder)
    assert texts(folder) == before
    assert not (folder / "set-aside").exists()
    assert not taken(folder)


def test_a_result_that_snakemake_knows_is_not_set_aside(folder: Path) -> None:
    set_aside([], [folder])
    delete(folder)
    assert not taken(folder)


def test_what_was_set_aside_outlives_a_second_kill_before_the_job_took_it_back(folder: Path) -> None:
    set_aside([folder], [folder])
    delete(folder)
    set_aside([], [folder])
    assert taken(folder)


def test_runs_that_are_asked_for_again_are_trained_again(folder: Path) -> None:
    set_aside([folder], [folder])
    delete(folder)
    forget_all([folder])
    assert not taken(folder)


def test_what_a_job_that_was_left_over_has_written_since_counts(folder: Path) -> None:
    set_aside([folder], [folder])
    delete(folder)
    (folder / "ranks.csv").write_text("written since", encoding="utf-8")
    write_summary(folder)
    assert taken(folder)
    assert texts(folder)["ranks.csv"] == "written since"
    assert texts(folder)["epochs.csv"] == "epochs.csv as it was"


@pytest.mark.parametrize("missing", [*RUN_RECORDS, MODEL])
def test_a_result_that_is_not_whole_is_trained_again(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    set_aside([folder], [folder])
    assert not taken(folder)
    assert not (folder / "set-aside").exists()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"definition": definition(save_model=True, epochs=9)}, id="other settings"),
        pytest.param({"outcome": "diverged"}, id="diverged"),
        pytest.param({"provenance": None}, id="nobody knows of what inputs"),
    ],
)
def test_a_result_of_something_else_is_trained_again(folder: Path, changes: dict[str, Any]) -> None:
    write_summary(folder, **changes)
    set_aside([folder], [folder])
    delete(folder)
    assert not taken(folder)
    assert not (folder / SUMMARY).exists()


def test_a_result_of_other_data_or_of_another_workflow_is_trained_again(folder: Path) -> None:
    set_aside([folder], [folder])
    assert not taken(folder, inputs={"dataset": "another"})
    set_aside([folder], [folder])
    assert not taken(folder, commit="another")
