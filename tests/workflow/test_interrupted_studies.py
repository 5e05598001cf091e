"""A study on one machine that is interrupted leaves nothing running, and resumes where it stopped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from tests.machine import needs_two_cores
from tests.marked_outcomes import Record
from tests.paths import SNAKEFILE
from tests.workflow.workplace import TINY, Workplace, running

from scalewise.ranks.monitoring.environments import source_version
from scalewise.records import (
    HISTORY,
    RECORD,
    RUN_RECORDS,
    SUMMARY,
    read_history,
    read_summary,
    write_json,
)

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
        assert list(tmp_path.glob(f"results/*/runs/*/{SUMMARY}")) == []

    with running(tmp_path, python, ENDLESS) as study:
        study.wait_until(lambda: "resumed at step " in study.logs(), "no run resumes")
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
    assert len(list(tmp_path.glob(f"results/*/runs/*/{SUMMARY}"))) == 1


@pytest.mark.fault(14)
def test_a_result_that_was_there_when_snakemake_was_killed_is_kept_unless_it_is_forced(
    tmp_path: Path, preloaded_python: Path
) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    scripts = SNAKEFILE.parent / "scripts"
    version = source_version(scripts)
    with running(killed, preloaded_python, TINY) as study:
        # the job continues to its end, which snakemake does not see
        study.wait_until(lambda: list(killed.glob(f"results/*/runs/*/{RECORD}")), "no run completes")
        study.process.kill()
        assert study.left_over() == []
    # on a fast machine snakemake has seen earlier runs end
    summary = max(killed.glob(f"results/*/runs/*/{SUMMARY}"), key=lambda path: path.stat().st_mtime_ns)
    target = str(summary.relative_to(killed))
    before = {name: (summary.parent / name).read_bytes() for name in (SUMMARY, *RUN_RECORDS)}
    shutil.copytree(killed, tmp_path / "forced", symlinks=True)

    with running(killed, preloaded_python, TINY, "--rerun-incomplete", "--nolock", target) as study:
        assert study.end() == 0, study.output
    if source_version(scripts) != version:
        pytest.skip("the checkout was changed while the test ran: a result of other code is not kept")
    assert {name: (summary.parent / name).read_bytes() for name in (SUMMARY, *RUN_RECORDS)} == before
    log = (summary.parent / "train.log").read_text(encoding="utf-8")
    assert "epoch 2/2" in log
    assert "the result was there before snakemake saw this run end" in log.splitlines()[-1]

    asked = ("--rerun-incomplete", "--nolock", "--forcerun", target)
    with running(tmp_path / "forced", preloaded_python, TINY, *asked) as study:
        assert study.end() == 0, study.output
    assert (tmp_path / "forced" / target).read_bytes() != before[SUMMARY]


def test_a_run_that_would_use_its_time_again_is_not_started_and_the_others_are(
    tmp_path: Path, preloaded_python: Path
) -> None:
    text = TINY.replace("epochs: 2", "epochs: 2\n  runtime_minutes: 7")
    wanted = [f"results/{run[0]}/runs/{run[1]}/{SUMMARY}" for run in (LIMITED, ("weak", "d1.r1"))]
    with running(tmp_path, preloaded_python, text, wanted[0]) as study:
        assert study.end() == 0, study.output
    folder = tmp_path / "results" / LIMITED[0] / "runs" / LIMITED[1]
    plant_time_out(folder, limit_seconds=420)

    for arguments in (["--dry-run"], ["--keep-going", "--show-failed-logs", "--retries", "2"]):
        with running(tmp_path, preloaded_python, text, *arguments, "--", *wanted) as study:
            assert study.end() == (0 if arguments == ["--dry-run"] else 1), study.output
        assert "A run is not started" in study.output
        assert "/".join(LIMITED) + " timed-out: stopped after 7 minutes. Raise runtime_min" in study.output
    assert (tmp_path / wanted[1]).exists(), "the other run"
    assert "1 run would end the same way" in study.output
    history = read_history(folder)
    assert history is not None
    assert len(history.starts) == 1

    more = text.replace("runtime_minutes: 7", "runtime_minutes: 8")
    with running(tmp_path, preloaded_python, more, "--", wanted[0]) as study:
        assert study.end() == 0, study.output
    plant_time_out(folder, limit_seconds=480)
    with running(tmp_path, preloaded_python, more, "--forcerun", wanted[0], "--", wanted[0]) as study:
        assert study.end() == 0, study.output


LIMITED = ("strong", "d1.bucket-view-off.r1")


def plant_time_out(folder: Path, limit_seconds: float) -> None:
    """Leave a run as if its limit had ended it instead of its last step."""
    history = read_history(folder)
    assert history is not None
    reason = f"stopped after {limit_seconds / 60:.0f} minutes. Raise runtime_minutes."
    end = {"outcome": "timed-out", "reason": reason, "permanent": True, "limit_seconds": limit_seconds}
    start = history.starts[-1].model_copy(update=end)
    write_json(folder / HISTORY, history.model_copy(update={"starts": [start]}))
    for name in (SUMMARY, RECORD, *RUN_RECORDS):
        (folder / name).unlink(missing_ok=True)


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
    table = "results/halfway/scaling.csv"
    with running(tmp_path, preloaded_python, TWO_RUNS, table) as study:
        study.wait_until(lambda: list(runs.glob(f"*/{SUMMARY}")), "no run completes")
        # the folder of an attempt goes with its end
        (first,) = runs.glob(f"*/{SUMMARY}")
        study.wait_until(lambda: not (first.parent / "attempt").exists(), "the attempt of run 1 is left")
        study.wait_until(lambda: list(runs.glob("*/attempt/rank0.json")), "run 2 does not begin")
        before = {path: path.read_bytes() for path in first.parent.iterdir() if path.is_file()}
        command = ["snakemake", "-s", str(SNAKEFILE), "--configfile", "study.yaml"]
        command += ["--config", "site=site.yaml", "--cores", "1", "--nolock", "partial_report"]
        outcome = Workplace(tmp_path, preloaded_python).run(command)
        assert outcome.code == 0, outcome.text
        assert "Report on what has finished: results/partial_report.html" in outcome.text
        page = (tmp_path / "results" / "partial_report.html").read_text(encoding="utf-8")
        # the run that has finished with its rate, the other one as missing
        (rate,) = re.findall(r"^  Measured: ([\d.,]+) samples/s", outcome.text, re.MULTILINE)
        assert rate in page
        assert (tmp_path / "results" / "partial" / "halfway" / "runs.csv").exists()

        assert study.process.poll() is None, study.output
        held_back.unlink()
        assert study.end() == 0, study.output
    assert {path: path.read_bytes() for path in before} == before
    for run in ("d1.r1", "d1.r2"):
        measured = read_summary(runs / run).measurements
        assert measured is not None
        assert measured.resumption.starts == 1
    assert (tmp_path / table).exists()
