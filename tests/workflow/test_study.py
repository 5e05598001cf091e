"""A tiny real study, from the configuration to the report."""

import json
import re
import sys
from itertools import pairwise

import pandas as pd
import pytest
from tests.bucket_view_study import COPIES, TOLERANCE, compared_options
from tests.bucket_view_study import STUDY as MEMORY
from tests.paths import CLI, SNAKEFILE
from tests.workflow.workplace import ON_PARTITIONS, PARTITIONS, TINY, FinishedStudy, Outcome, Workplace

from scalewise.config.catalog import MIRROR_VARIABLE, prepared_path

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


def test_the_status_has_every_point_the_answers_and_no_line_beyond_80_columns(study: FinishedStudy) -> None:
    status = study.workplace.run(["python", str(SNAKEFILE.parent / "scripts" / "status.py")])
    assert status.code == 0, status.text
    lines = status.text.splitlines()
    for name in ("strong", "weak"):
        answer = json.loads((study.results / name / "answer.json").read_text())
        assert any(line.startswith(f"{name}: {answer['verdict']}"[:80]) for line in lines)
    assert any(line.startswith("  d1.bucket-view-off: 2 of 2 done, ") for line in lines)
    assert re.fullmatch(r"[\d.]+ device-hours by the records of the runs\.", lines[-2])
    assert max(map(len, lines)) <= 80


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
    assert "No answer for weak yet." in failed.text
    assert "weak/d1.r1 failed: rank 0 on " in failed.text
    assert "is damaged" in failed.text
    assert f"python {CLI} report" in failed.text
    failure = json.loads((workplace.folder / "results/weak/runs/d1.r1/failure.json").read_text())
    assert failure["outcome"] == "failed"
    assert failure["output"]

    partial = workplace.run(["python", str(CLI), "report"])
    assert partial.code == 0, partial.text
    assert "weak: No run has a result that can be compared.\n" in partial.text
    html = (workplace.folder / "results" / "report.html").read_text()
    assert "Partial report." in html
    assert "is damaged" in html
    runs = pd.read_csv(workplace.folder / "results" / "partial" / "strong" / "runs.csv")
    assert list(runs["outcome"]) == ["completed", "completed"]


# --- on several partitions -----------------------------------------------------------------------------


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


# --- data are prepared by the rules --------------------------------------------------------------------


STUDY = """\
experiments:
  study:
    dataset: {dataset}
    image_size: 16
    model: linear
    devices: [1]
    global_batch_size: 20
    epochs: 1
    repeats: 1
    warmup_steps: 1
"""


def prepare(workplace: Workplace, dataset: str) -> Outcome:
    return workplace.snakemake(str(prepared_path(dataset)), config=STUDY.format(dataset=dataset))


def test_a_mirror_is_used_and_its_change_reruns_nothing(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace.folder / "near").mkdir()
    name = "train-images-idx3-ubyte.gz"
    (workplace.folder / "near" / name).write_bytes(b"other bytes")
    monkeypatch.setenv(MIRROR_VARIABLE, "near")
    outcome = prepare(workplace, "mnist")
    assert outcome.code != 0
    assert f"{workplace.folder}/near/{name}" in outcome.text
    assert "Traceback" not in outcome.text

    assert prepare(workplace, "digits").code == 0
    monkeypatch.setenv(MIRROR_VARIABLE, "https://mirror.example/data")
    assert "Nothing to be done" in prepare(workplace, "digits").text


# --- the memory that an option saves, as a user reads it -----------------------------------------------


MB = 1e6
PROCESSES = f"accelerator: cpu\ndevices_per_node: 2\ncpus_per_node: 2\npython: {sys.executable}\n"
"""Ranks start as real processes: a fork has the memory of the process that it was forked from."""


def test_gradients_as_bucket_views_save_one_copy_of_the_parameters(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what glibc keeps of freed tensors, for each thread, is up to half a copy, by the threads' timing
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    outcome = workplace.snakemake("--scheduler", "greedy", config=MEMORY, site=PROCESSES)
    assert outcome.code == 0, outcome.text
    results = workplace.folder / "results"
    html = (results / "report.html").read_text(encoding="utf-8")
    for name, copies in COPIES.items():
        gain = compared_options(results / name)
        runs = pd.read_csv(results / name / "runs.csv")
        # with interpreter and libraries, some 500 MB
        assert set(runs["peak_memory_kind"]) == {"process peak RSS, evaluation included"}
        parameters = 4 * int(runs["parameters"].iloc[0])
        assert parameters > 4 * 20e6
        assert gain["reference_peak_memory_bytes"] / parameters > copies
        assert gain["peak_memory_saved_bytes"] / parameters == pytest.approx(1, rel=TOLERANCE)
        cells = [f"{gain[f'peak_memory{end}_bytes'] / MB:,.0f}" for end in ("", "_saved")]
        assert re.search("".join(rf'<td data-v="[^"]+">{cell}</td>' for cell in cells), html), name
