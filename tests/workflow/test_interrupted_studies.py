"""A study on one machine that is interrupted leaves nothing running, and resumes where it stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.machine import needs_two_cores
from tests.marked_outcomes import Record
from tests.paths import CLI
from tests.planted_records import leave_failure
from tests.waiting import wait_until
from tests.workflow.workplace import TINY, Workplace, running

from scalewise.records import EPOCHS, RANKS, RECORD, UTILIZATION, read_run

pytestmark = needs_two_cores

ENDLESS = TINY.replace("epochs: 2", "epochs: 1000000").replace("linear", "planted_unhurried")


@pytest.mark.fault(14)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM to all"])
def test_an_interrupted_study_leaves_nothing_running_and_resumes_where_it_stopped(
    tmp_path: Path, how: signal.Signals, record_property: Record
) -> None:
    # a signal to the group of a program does not reach its fork's
    python = Path(sys.executable)
    with running(tmp_path, python, ENDLESS) as study:
        study.wait_until(lambda: "epoch 2/" in study.logs(), "no epoch 2")
        os.killpg(study.process.pid, how)
        code = study.end()
        assert code != 0
        assert study.left_over() == []
        assert list((tmp_path / ".snakemake" / "locks").glob("*")) == []
        assert list(tmp_path.glob(f"results/*/runs/*/{RECORD}")) == []

    with running(tmp_path, python, ENDLESS) as study:
        study.wait_until(lambda: "resumed from " in study.logs(), "no run resumes")
        os.killpg(study.process.pid, how)
        study.end()
        assert study.left_over() == []
    record_property("figure", "0 processes left")


@pytest.mark.fault(14)
def test_sigterm_to_only_snakemake_ends_the_study_after_the_run_that_is_under_way(
    tmp_path: Path, preloaded_python: Path
) -> None:
    with running(tmp_path, preloaded_python, TINY.replace("epochs: 2", "epochs: 40")) as study:
        study.wait_until(
            lambda: list(tmp_path.glob("results/*/runs/*/attempt/rank_setup.json")), "no run begins"
        )
        study.process.terminate()
        assert study.end() != 0
        assert "Will exit after finishing currently running jobs" in study.output
        assert study.left_over() == []
    assert len(list(tmp_path.glob(f"results/*/runs/*/{RECORD}"))) == 1


@pytest.mark.fault(14)
def test_a_forced_run_is_trained_from_the_beginning(tmp_path: Path, preloaded_python: Path) -> None:
    target = f"results/weak/runs/d1.r1/{RECORD}"
    records = []
    for forced in ([], ["--forcerun", target]):
        with running(tmp_path, preloaded_python, TINY, *forced, "--", target) as study:
            assert study.end() == 0, study.output
        records.append(read_run((tmp_path / target).parent))
    first, second = (record.provenance for record in records)
    assert first is not None
    assert second is not None
    assert second.started_at > first.ended_at
    assert [record.measurements and record.measurements.from_step for record in records] == [0, 0]


def test_a_run_that_would_use_its_time_again_is_not_started_and_the_others_are(
    tmp_path: Path, preloaded_python: Path
) -> None:
    text = TINY.replace("epochs: 2", "epochs: 2\n  runtime_minutes: 7")
    wanted = [f"results/{run[0]}/runs/{run[1]}/{RECORD}" for run in (LIMITED, ("weak", "d1.r1"))]
    with running(tmp_path, preloaded_python, text, wanted[0]) as study:
        assert study.end() == 0, study.output
    folder = tmp_path / "results" / LIMITED[0] / "runs" / LIMITED[1]
    plant_time_out(folder, limit_seconds=420)

    for arguments in (["--dry-run"], ["--keep-going", "--show-failed-logs", "--retries", "2"]):
        with running(tmp_path, preloaded_python, text, *arguments, "--", *wanted) as study:
            assert study.end() == (0 if arguments == ["--dry-run"] else 1), study.output
        assert "stopped after 7 minutes." in " ".join(study.output.split())
        assert "/".join(LIMITED) in study.output
    assert (tmp_path / wanted[1]).exists(), "the other run"

    more = text.replace("runtime_minutes: 7", "runtime_minutes: 8")
    with running(tmp_path, preloaded_python, more, "--", wanted[0]) as study:
        assert study.end() == 0, study.output


LIMITED = ("strong", "d1.bucket-view-off.r1")


def plant_time_out(folder: Path, limit_seconds: float) -> None:
    """Leave a run as if its limit had ended it instead of its last step."""
    record = read_run(folder)
    assert record.provenance is not None
    reason = f"stopped after {limit_seconds / 60:.0f} minutes. Raise runtime_minutes."
    changes: dict[str, Any] = {"permanent": True, "limit_seconds": limit_seconds}
    leave_failure(folder, record.definition, "timed-out", reason, inputs=record.provenance.inputs, **changes)
    for name in (RECORD, EPOCHS, RANKS, UTILIZATION):
        (folder / name).unlink()


TWO_RUNS = """\
experiments:
  halfway:
    dataset: digits
    model: planted_held_back_later
    global_batch_size: 256
    epochs: 2
    warmup_steps: 2
    devices: [1]
    repeats: 2
    timeout_seconds: 600
"""


@pytest.mark.contract
def test_a_report_on_finished_runs_is_made_while_the_study_runs_and_does_not_disturb_it(
    tmp_path: Path, preloaded_python: Path
) -> None:
    held_back, runs = tmp_path / "held.back", tmp_path / "results" / "halfway" / "runs"
    held_back.touch()
    with running(tmp_path, preloaded_python, TWO_RUNS) as study:
        study.wait_until(lambda: list(runs.glob(f"*/{RECORD}")), "no run completes")
        # the folder of an attempt goes with its end
        (first,) = runs.glob(f"*/{RECORD}")
        study.wait_until(lambda: not (first.parent / "attempt").exists(), "the attempt of run 1 is left")
        study.wait_until(lambda: list(runs.glob("*/attempt/rank0.json")), "run 2 does not begin")
        before = {path: path.read_bytes() for path in first.parent.iterdir() if path.is_file()}
        outcome = Workplace(tmp_path, preloaded_python).run(["python", str(CLI), "report"])
        assert outcome.code == 0, outcome.text
        assert outcome.text.splitlines()[-1] == "Report on the finished runs: results/report.html"
        page = (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
        (answer,) = json.loads((tmp_path / "results" / "decision.json").read_text(encoding="utf-8"))
        assert answer["verdict"] in page
        assert "Partial report." in page
        runs_table = pd.read_csv(tmp_path / "results" / "partial" / "halfway" / "runs.csv")
        # the run that has finished with its rate, the other one as missing
        assert sorted(runs_table["outcome"]) == ["completed", "not run yet"]
        assert runs_table["throughput_samples_per_second"].count() == 1

        assert study.process.poll() is None, study.output
        held_back.unlink()
        assert study.end() == 0, study.output
    assert {path: path.read_bytes() for path in before} == before
    for run in ("d1.r1", "d1.r2"):
        measured = read_run(runs / run).measurements
        assert measured is not None
        assert measured.from_step == 0
    assert "Partial report." not in (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
    (answer,) = json.loads((tmp_path / "results" / "decision.json").read_text(encoding="utf-8"))
    assert answer == json.loads((runs.parent / "answer.json").read_text(encoding="utf-8"))
    runs_table = pd.read_csv(runs.parent / "runs.csv")
    assert list(runs_table["outcome"]) == ["completed", "completed"]


@contextmanager
def held_report(folder: Path) -> Iterator[list[str]]:
    """A report that has begun to read when the statement's body begins, and continues after it.

    Yields:
        receives the lines that it prints.
    """
    lines: list[str] = []
    command = [sys.executable, str(CLI), "report"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        found = wait_until(lambda: list(folder.glob("results/.report-*")), "the report does not begin")
        process.send_signal(signal.SIGSTOP)
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGCONT)
        output, _ = process.communicate()
        lines += output.splitlines()
    assert process.returncode == 0
    assert [path for path in found if path.exists()] == []


@pytest.mark.contract
def test_a_report_that_is_older_than_a_run_is_made_again_and_never_replaces_a_later_one(
    workplace: Workplace,
) -> None:
    results = workplace.folder / "results"
    report, decisions = results / "report.html", results / "decision.json"
    assert workplace.snakemake("results/strong/figures", config=TINY).code == 0
    with held_report(workplace.folder) as lines:
        # all that the report of all experiments is made from, after this report has begun to read
        outcome = workplace.snakemake("results/weak/figures", config=TINY)
        assert outcome.code == 0, outcome.text
    assert lines[-1].endswith("runs: results/report.html")
    assert [each["experiment"] for each in json.loads(decisions.read_text())] == ["strong", "weak"]
    assert "write_report" in workplace.snakemake("-n", config=TINY).rules

    with held_report(workplace.folder) as lines:
        outcome = workplace.snakemake(config=TINY)
        assert outcome.code == 0, outcome.text
        made = report.read_bytes(), decisions.read_bytes()
    assert lines == ["The study has made its own report in the meantime: results/report.html"]
    assert (report.read_bytes(), decisions.read_bytes()) == made
    # of all runs: nothing is left to make
    assert workplace.run(["python", str(CLI), "report"]).text.endswith(
        "Report on all runs: results/report.html\n"
    )
    assert "Nothing to be done" in workplace.snakemake(config=TINY).text
