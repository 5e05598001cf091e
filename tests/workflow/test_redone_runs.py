"""Disturbed runs are made again by one command and the next snakemake, and no others."""

import os
import socket
from pathlib import Path

import pytest
import yaml
from tests.paths import CLI
from tests.planted_records import leave_result, measurements, run_record
from tests.prepared_digits import place_digits_of_study
from tests.small_runs import rank_setup
from tests.workflow.workplace import Workplace

from scalewise.execution.rank_files import ATTEMPT, RankFiles
from scalewise.plan.study import load_study
from scalewise.records import RECORD, read_run, write_json

STUDY = """\
defaults: {dataset: digits, model: linear, epochs: 3, devices: [1], repeats: 3}
experiments:
  first: {global_batch_size: 256}
  second: {global_batch_size: 128}
"""
DISTURBED = {"first/d1.r2", "first/d1.r3", "second/d1.r1"}


@pytest.fixture
def planted(workplace: Workplace) -> Workplace:
    """A study whose runs are all made, some of them on a busy machine."""
    place_digits_of_study(workplace.folder)
    assert workplace.snakemake("--until", "prepare_dataset", config=STUDY).code == 0
    folder = workplace.folder
    study = load_study(yaml.safe_load(STUDY), [folder / "study.yaml"], folder / "site.yaml")
    for experiment in study.parts:
        for run in experiment.runs:
            busy = 0.4 if f"{run.experiment}/{run.run}" in DISTURBED else 0.02
            record = run_record(run, measurements=measurements(other_cpu_fraction=busy))
            leave_result(folder / "results" / run.experiment / "runs" / run.run, record)
    return workplace


def redo(study: Workplace, *arguments: str) -> tuple[int, str]:
    outcome = study.run(["python", str(CLI), "redo", *arguments])
    return outcome.code, outcome.text


def to_train(study: Workplace) -> set[str]:
    """Return the runs that the next snakemake makes."""
    outcome = study.snakemake("--dry-run", config=STUDY)
    assert outcome.code == 0, outcome.text
    return outcome.trained


def runs_in(results: Path) -> set[str]:
    return {f"{path.parents[1].name}/{path.name}" for path in results.glob("*/runs/*")}


def test_the_next_snakemake_makes_just_the_disturbed_runs_again(planted: Workplace) -> None:
    results = planted.folder / "results"
    everything = runs_in(results)
    assert to_train(planted) == set()
    code, text = redo(planted, "--disturbed", "--dry-run")
    assert (code, runs_in(results)) == (0, everything)
    assert {line.split(":")[0] for line in text.splitlines()[:-1]} == DISTURBED
    assert "other processes took 40 % of the CPUs" in text

    code, text = redo(planted, "--disturbed", "second")
    assert (code, runs_in(results)) == (0, everything - {"second/d1.r1"})
    code, text = redo(planted, "--disturbed")
    assert (code, runs_in(results)) == (0, everything - DISTURBED)
    assert {line.split(":")[0] for line in text.splitlines()[:-1]} == DISTURBED - {"second/d1.r1"}
    assert to_train(planted) == DISTURBED
    assert redo(planted, "--disturbed")[1] == "There is no such run: nothing was removed.\n"


def test_named_runs_and_failed_ones_are_made_again(planted: Workplace) -> None:
    results = planted.folder / "results"
    everything = runs_in(results)
    folder = results / "second" / "runs" / "d1.r3"
    record = read_run(folder)
    changes = {"outcome": "diverged", "reason": "the loss is NaN"}
    write_json(folder / RECORD, record.model_copy(update=changes))
    code, text = redo(planted, "--failed")
    assert (code, runs_in(results)) == (0, everything - {"second/d1.r3"})
    assert "second/d1.r3: diverged: the loss is NaN" in text
    code, text = redo(planted, "first/d1.r1")
    assert (code, runs_in(results)) == (0, everything - {"second/d1.r3", "first/d1.r1"})
    assert to_train(planted) == {"second/d1.r3", "first/d1.r1"}
    code, text = redo(planted)
    assert (code, "name runs or experiments" in text) == (1, True)


def test_a_run_that_is_being_made_is_kept(planted: Workplace) -> None:
    results = planted.folder / "results"
    everything = runs_in(results)
    run = results / "first" / "runs" / "d1.r2"
    setup = rank_setup(run, supervisor_host=socket.gethostname(), supervisor_pid=os.getpid())
    RankFiles(run / ATTEMPT).begin(setup)
    code, text = redo(planted, "--disturbed")
    assert (code, runs_in(results)) == (0, everything - DISTURBED | {"first/d1.r2"})
    assert "first/d1.r2 is being made, and was kept." in text
    locks = planted.folder / ".snakemake" / "locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").touch()
    code, text = redo(planted, "--disturbed")
    assert (code, "snakemake --unlock" in text) == (1, True)
    assert "first/d1.r2" in runs_in(results)


def test_an_unknown_experiment_and_a_folder_without_a_study_are_refused(
    planted: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name, near in [("secnd", "second"), ("first/d1.r9", "first/d1.r"), ("third/*", "Known: first")]:
        code, text = redo(planted, "--disturbed", name)
        assert (code, f"{name}: not in the study" in text, near in text) == (1, True, True)
    elsewhere = Workplace(tmp_path_factory.mktemp("elsewhere"), planted.python)
    assert redo(elsewhere, "--disturbed")[0] == 1
