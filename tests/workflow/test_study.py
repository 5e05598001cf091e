"""A tiny real study, from the configuration to the report."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.paths import CLI, SNAKEFILE
from tests.workflow.workplace import TINY, FinishedStudy, Workplace

from scalewise.analysis.event_files import write_event_files
from scalewise.config.catalog.datasets import prepared_path
from scalewise.records import RECORD, read_run

RUNS = ("strong/runs/d1.bucket-view-off.r1", "strong/runs/d1.bucket-view-off.r2", "weak/runs/d1.r1")


def test_every_promised_file_is_there(study: FinishedStudy) -> None:
    tables = {"scaling.csv", "runs.csv", "epochs.csv", "options.csv", "answer.json", "provenance.json"}
    figures = ("throughput", "step", "loss", "accuracy", "memory")
    for experiment in ("strong", "weak"):
        folder = study.results / experiment
        assert {path.name for path in folder.iterdir() if path.is_file()} == tables
        drawn = {path.name for path in (folder / "figures").iterdir()}
        assert {f"{name}.{kind}" for name in figures for kind in ("svg", "pdf")} <= drawn
    proposals = {path.name for path in (study.results / "strong" / "proposal").iterdir()}
    assert proposals == {"proposal.md", "table.csv", "job.sh"}
    assert not (study.results / "weak" / "proposal").exists()
    for run in RUNS:
        kept = {path.name for path in (study.results / run).iterdir()}
        of_ranks = {"epochs.csv", "ranks.csv", "utilization.csv"}
        assert kept == {"record.json", "train.log", *of_ranks}


def test_the_report_needs_no_other_file_and_opens_with_the_answers(study: FinishedStudy) -> None:
    html = (study.results / "report.html").read_text()
    answers = [json.loads((study.results / name / "answer.json").read_text()) for name in ("strong", "weak")]
    assert json.loads((study.results / "decision.json").read_text()) == answers
    assert html.index(answers[1]["verdict"]) < html.index("<figure")
    assert "First title" in html
    assert 'src="http' not in html
    assert 'href="http' not in html


def test_without_a_terminal_each_point_is_reported_until_its_last_run(study: FinishedStudy) -> None:
    lines = [line[9:] for line in study.first.text.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
    strong = [line for line in lines if line.startswith("strong, 1 CPU process, bucket-view-off: ")]
    found = [re.search(r"(\d) of 2 runs done", line) for line in strong]
    counts = [int(each[1]) for each in found if each]
    # how many looks fall into a run of a second is up to the machine: tests/slurm holds runs for them
    assert counts == sorted(counts)
    assert counts[-1] == 2
    assert re.search(r"samples/s$", strong[-1])
    assert re.match(r"3 of 3 runs done, [\d.]+ device-hours spent$", lines[-1])
    assert [line for line in lines if re.match(r"[12] of 3 runs done, .* to go, done about \d\d:\d\d", line)]


def test_snakemakes_own_log_stays_in_its_file(study: FinishedStudy) -> None:
    logs = [log.read_text() for log in (study.workplace.folder / ".snakemake" / "log").glob("*.log")]
    for text in ("Job stats:", "Select jobs to execute...", "Finished jobid", "rule train:"):
        assert any(text in log for log in logs)
    openings = ("SNAKEMAKE", "Job stats:", "Complete log", "rule ")
    assert not [line for line in study.first.text.splitlines() if line.startswith(openings)]


def test_another_process_learns_how_it_ended(study: FinishedStudy) -> None:
    status = study.workplace.run(["python", str(SNAKEFILE.parent / "scripts" / "status.py")])
    assert status.code == 0
    assert status.text.splitlines()[0].startswith("Started ")
    assert "3 of 3 runs done" in status.text


def test_training_runs_never_overlap_and_each_repeat_is_done_before_the_next_begins(
    study: FinishedStudy,
) -> None:
    # the study was started with --cores 4
    spans = []
    for run in RUNS:
        origin = json.loads((study.results / run / "record.json").read_text())["provenance"]
        spans.append((origin["started_at"], origin["ended_at"], run))
    spans.sort()
    for (_, ended, _), (started, _, _) in pairwise(spans):
        assert ended <= started
    assert spans[-1][2] == "strong/runs/d1.bucket-view-off.r2"


def test_snakemakes_own_report_holds_figures_with_captions(study: FinishedStudy) -> None:
    outcome = study.workplace.snakemake("--report", "own.html", config=TINY)
    assert outcome.code == 0, outcome.text
    html = (study.workplace.folder / "own.html").read_text()
    figures = {path.name for path in (study.results / "strong" / "figures").glob("*.svg")}
    assert len(figures) >= 5
    assert {name for name in figures if name not in html} == set()
    assert "results/report.html explains its marks" in html
    assert "all experiments" in html


def test_a_failed_run_says_why_after_the_answers_that_are_known_and_a_report_shows_the_rest(
    workplace: Workplace,
) -> None:
    # one experiment's data are damaged between preparation and training
    random = "synthetic-1x8x8-10classes-300samples"
    two = TINY.replace("  weak:\n    scaling", f"  weak:\n    dataset: {random}\n    scaling")
    assert workplace.snakemake("--until", "prepare_dataset", config=two).code == 0
    prepared = workplace.folder / prepared_path(random)
    prepared.write_bytes(prepared.read_bytes()[:100])

    failed = workplace.snakemake("--keep-going", config=two)
    assert failed.code == 1
    answer = json.loads((workplace.folder / "results/strong/answer.json").read_text())["verdict"]
    assert answer in failed.text
    assert failed.text.index(answer) < failed.text.index("Not all steps were done.")
    assert "No answer for weak: 1 run has no result." in failed.text
    assert "weak/d1.r1 failed: rank 0 on " in failed.text
    assert "is damaged" in failed.text
    assert f"run `python {CLI} report`" in failed.text
    failure = json.loads((workplace.folder / "results/weak/runs/d1.r1/failure.json").read_text())
    assert failure["outcome"] == "failed"
    assert failure["log_tail"]

    partial = workplace.run(["python", str(CLI), "report"])
    assert partial.code == 0, partial.text
    assert "weak: No run has a result that can be compared.\n" in partial.text
    html = (workplace.folder / "results" / "report.html").read_text()
    assert "Partial report." in html
    assert "is damaged" in html
    runs = pd.read_csv(workplace.folder / "results" / "partial" / "strong" / "runs.csv")
    assert list(runs["outcome"]) == ["completed", "completed"]


# --- the files of TensorBoard, from the records of the runs ----------------------------------------------

COLUMNS = {
    "loss/train": "train_loss",
    "loss/test": "test_loss",
    "accuracy": "test_accuracy",
    "learning_rate": "learning_rate",
    "throughput_samples_per_second": "samples_per_second",
}
"""What users find under each tag."""

DIGITS = 1437
"""Samples of scikit-learn's digits that are trained on in an epoch."""


def test_tensorboard_reads_just_the_epochs_that_the_records_hold(study: FinishedStudy) -> None:
    strong = study.results / "strong"
    runs = sorted(path.name for path in (strong / "runs").iterdir())
    assert sorted(path.name for path in (strong / "tensorboard").iterdir() if path.is_dir()) == runs
    for run in runs:
        shown = EventAccumulator(str(strong / "tensorboard" / run)).Reload()
        epochs = pd.read_csv(strong / "runs" / run / "epochs.csv")
        steps = DIGITS // 256  # whole batches
        for tag, column in COLUMNS.items():
            scalars = shown.Scalars(tag)
            assert [scalar.step for scalar in scalars] == [steps, 2 * steps]
            # event files hold numbers of 32 bits
            assert [scalar.value for scalar in scalars] == list(epochs[column].astype(np.float32))
        first, second = shown.Scalars("accuracy")
        took = epochs["train_seconds"] + epochs["evaluation_seconds"]
        assert abs(second.wall_time - first.wall_time - took[1]) < 1e-3

        measured = read_run(strong / "runs" / run).measurements
        assert measured is not None
        (scalar,) = shown.Scalars("measured/throughput_samples_per_second")
        assert scalar.value == np.float32(measured.throughput_samples_per_second or 0.0)
        assert scalar.step == 2 * steps


def test_of_runs_of_which_some_have_failed_the_others_are_written(
    study: FinishedStudy, tmp_path: Path
) -> None:
    strong = study.results / "strong"
    shutil.copytree(strong / "runs", tmp_path / "runs")
    failed, completed = sorted(tmp_path.glob("runs/*"))
    (failed / RECORD).unlink()
    write_event_files(strong / "runs.csv", tmp_path)
    assert [path.name for path in tmp_path.glob("tensorboard/*")] == [completed.name]
