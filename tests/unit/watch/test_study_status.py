"""Which sessions of Snakemake are shown as a study, and its status in another process."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.planted_records import leave_failure, leave_result, run_record
from tests.planted_study import PlantedStudy
from tests.small_runs import definition
from tests.unit.watch.planted_status import point

from scalewise.config.experiment import Experiment, Target
from scalewise.plan.planned_study import Study
from scalewise.snakemake_adapter import BUDGET, Snakemake
from scalewise.watch.follow import SILENT_SECONDS, follow_status, print_status
from scalewise.watch.session import RuleNames, forced_runs, watch_session
from scalewise.watch.status import StatusReader
from scalewise.watch.study import SESSION, Rounds, StudySession, WatchedStudy, required_efficiency

STUDY = WatchedStudy(points=(point(1), point(2)), min_efficiency={"digits": None})


def session(**changes: object) -> StudySession:
    now = time.time()
    known = StudySession(
        study=STUDY,
        rounds=Rounds(requested={"digits": {"d1": 2, "d2": 1}}),
        first_requested={"digits": {"d1": 2, "d2": 1}},
        host=socket.gethostname(),
        pid=os.getpid(),
        began=now,
        written_at=now,
        runs=(("digits", "d1.r1"), ("digits", "d1.r2"), ("digits", "d2.r1")),
    )
    return known.model_copy(update=changes)


def status(folder: Path) -> list[str]:
    """The lines that `status.py` prints."""
    printed = io.StringIO()
    assert print_status(folder, printed) == 0
    return printed.getvalue().splitlines()


def test_it_says_how_a_study_stands_and_changes_nothing(tmp_path: Path) -> None:
    session().write(tmp_path)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))

    head, heading, *points, last = status(tmp_path)
    assert head.startswith("Running since ")
    assert heading.split() == ["devices", "runs", "done", "now"]
    assert [line.split() for line in points] == [
        ["1", "0", "of", "2", "waiting"],
        ["2", "0", "of", "1", "waiting"],
    ]
    assert last.startswith("0 of 3 runs done")
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_run_that_is_not_started_is_shown_by_its_outcome_and_no_longer_expected(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "digits" / "runs" / "d2.r1"
    leave_failure(folder, definition(2), "timed-out", "stopped after 1 minute")
    session(refused=(("digits", "d2.r1"),)).write(tmp_path)

    *_, shown, last = status(tmp_path)
    assert shown.split() == ["2", "0", "of", "1,", "1", "failed", "timed-out"]
    assert last.startswith("0 of 3 runs done, 1 failed")


SILENT = "which has reported nothing for 2 days 4 h"


@pytest.mark.parametrize(
    ("changes", "silent_hours", "said"),
    [
        ({"ended": True}, 0, "ended"),
        ({"pid": 2**22 + 1}, 0, "which has ended"),
        ({"host": "login9"}, 0, "Running since"),
        # its process id may be in use again
        ({"host": "login9"}, 52, SILENT),
        ({}, 52, SILENT),
    ],
)
def test_the_status_shows_whether_the_study_runs(
    tmp_path: Path, changes: dict[str, object], silent_hours: int, said: str
) -> None:
    session(**changes | {"written_at": time.time() - silent_hours * 3600}).write(tmp_path)
    assert said in status(tmp_path)[0]


def test_after_the_study_it_shows_the_answers(tmp_path: Path) -> None:
    texts = ("reason", "basis", "rule", "next_larger", "limit", "spent", "to_do", "command")
    lists = ("figures", "options", "others", "candidates", "cautions")
    answer: dict[str, Any] = dict.fromkeys(texts, "") | {name: [] for name in lists}
    answer |= {"experiment": "digits", "verdict": "Use 2 GPUs.", "certainty": "clear"}
    (tmp_path / "results").mkdir()
    (tmp_path / "results/decision.json").write_text(json.dumps([answer]))
    session().write(tmp_path)
    assert "Use 2 GPUs." not in "".join(status(tmp_path)), "the study may change it"
    session(ended=True).write(tmp_path)
    assert status(tmp_path)[-1] == "digits: Use 2 GPUs. [clear]"


def test_following_a_study_shows_who_runs_it_and_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalewise.watch.follow.POLL_SECONDS", 0.1)
    shown = io.StringIO()
    session(host="login9", written_at=time.time() - SILENT_SECONDS + 2).write(tmp_path)
    assert follow_status(tmp_path, {}, shown) == 0
    lines = shown.getvalue().splitlines()
    assert lines[0].startswith("Running since ")
    assert "which has reported nothing for 3 min" in lines[-1]


def test_a_record_that_cannot_be_read_is_not_taken_for_none_and_a_missing_one_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = io.StringIO()
    session().write(tmp_path)
    (tmp_path / SESSION).write_text("{}")
    assert print_status(tmp_path, shown) == follow_status(tmp_path, {}, shown) == 1
    damaged = "study.json is damaged. The next start of snakemake writes it again."
    assert capsys.readouterr().err.count(damaged) == 2
    (tmp_path / SESSION).unlink()
    (tmp_path / SESSION).mkdir()
    assert print_status(tmp_path, shown) == 1
    assert "study.json cannot be read: Is a directory." in capsys.readouterr().err
    assert print_status(tmp_path / "other", shown) == 1
    assert f"No study has been started in {tmp_path / 'other'}" in capsys.readouterr().err
    assert shown.getvalue() == ""


def test_repeats_that_a_round_asks_for_and_that_are_there_already_are_done(tmp_path: Path) -> None:
    for repeat in (1, 2, 3, 4):
        leave_result(tmp_path / "digits" / "runs" / f"d1.r{repeat}", run_record(definition()))
    requested = Rounds(requested={"digits": {"d1": 5, "d2": 0}})
    begun = session(first_requested={"digits": {"d1": 3, "d2": 0}}, runs=(), rounds=requested)

    (found,) = StatusReader(tmp_path).read(begun, time.time()).points
    assert [run.state for run in found.runs.values()] == ["done"] * 4 + ["waiting"]


CONFIG = """\
experiments:
  digits:
    dataset: digits
    model: linear
    global_batch_size: 256
    devices: [1, 2]
    repeats: 3
    sweep: {gradient_as_bucket_view: [false, true]}
    decision: {min_efficiency: 0.7}
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    site = {"accelerator": "cpu", "devices_per_node": 2, "cpus_per_node": 2}
    return PlantedStudy(tmp_path, CONFIG, site=site).study


def snakemake(*rules: str, touch: bool = False, sends_jobs: bool = False, **asked: Any) -> Snakemake:
    """Return Snakemake's workflow as far as the watcher reads it, as the profiles set it."""
    nothing: dict[str, Any] = {"verbose": False, "quiet": set(), "debug_dag": False, "printshellcmds": False}
    settings = nothing | {"log_handler_settings": {}, "show_failed_logs": True} | asked
    run = {"experiment": "digits", "run": "d1.bucket-view-on.r1"}
    jobs = [SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards=run) for rule in rules]
    dag = SimpleNamespace(needrun_jobs=lambda: iter(jobs))
    workflow = {"output_settings": SimpleNamespace(**settings), "touch": touch, "dag": dag}
    workflow |= {"non_local_exec": sends_jobs, "global_resources": {BUDGET: 8}}
    return Snakemake(SimpleNamespace(**workflow))


@pytest.mark.parametrize(
    ("settings", "environ", "is_shown"),
    [
        ({}, {}, True),
        ({"verbose": True}, {}, False),
        ({"quiet": {"all"}}, {}, False),
        ({"debug_dag": True}, {}, False),
        ({"printshellcmds": True}, {}, False),
        ({"log_handler_settings": {"rich": None}}, {}, False),
        ({"show_failed_logs": False}, {}, False),
        ({}, {"SCALEWISE_PROGRESS": "off"}, False),
    ],
    ids=str,
)
def test_a_study_is_shown_unless_the_user_chooses_snakemakes_log(
    study: Study, settings: dict[str, Any], environ: dict[str, str], is_shown: bool
) -> None:
    watcher = watch_session(study, snakemake("train", **settings), RuleNames(), environ)
    assert watcher is not None
    assert watcher.is_shown is is_shown


@pytest.mark.parametrize(("sends_jobs", "budget"), [(True, 8), (False, None)])
def test_runs_of_a_study_that_sends_jobs_are_forecast_within_its_device_budget(
    sends_jobs: bool, budget: int | None, tmp_path: Path
) -> None:
    cluster = {"accelerator": "cuda", "devices_per_node": 2, "cpus_per_node": 2, "slurm": {"account": "a"}}
    study = PlantedStudy(tmp_path, CONFIG, site=cluster).study
    watcher = watch_session(study, snakemake("train", sends_jobs=sends_jobs), RuleNames(), {})
    assert watcher is not None
    assert watcher._session.study.device_budget == budget


def test_sessions_without_trainings_are_not_watched(study: Study) -> None:
    assert watch_session(study, snakemake("plan"), RuleNames(), {}) is None
    assert watch_session(study, snakemake("plot_figures", "write_report"), RuleNames(), {}) is None
    assert watch_session(study, snakemake("train", touch=True), RuleNames(), {}) is None
    assert watch_session(study, snakemake("judge_round"), RuleNames(), {}) is not None


def test_an_error_before_the_start_is_reported_and_does_not_stop_the_study(
    study: Study, caplog: pytest.LogCaptureFixture
) -> None:
    assert watch_session(study, Snakemake(SimpleNamespace(touch=False)), RuleNames(), {}) is None
    assert "The study is not shown (AttributeError: " in caplog.text


def test_the_points_of_a_study_are_watched_in_the_order_of_its_file(study: Study) -> None:
    watched = WatchedStudy.of(study, None)
    assert [(each.devices, each.series, each.most) for each in watched.points] == [
        (1, "bucket-view-off", 3),
        (2, "bucket-view-off", 3),
        (1, "bucket-view-on", 3),
        (2, "bucket-view-on", 3),
    ]
    assert watched.points[1].run(2) == ("digits", "d2.bucket-view-off.r2")
    assert {watched.points[1].run(repeat) for repeat in (1, 2, 3)} <= set(study.runs)
    assert watched.min_efficiency["digits"] == 0.7
    # an efficiency that is required of the time to a target is not compared with throughput
    spec = study.experiments["digits"].experiment
    assert isinstance(spec, Experiment)
    assert required_efficiency(spec.model_copy(update={"target": Target(accuracy=0.97)})) is None


ONE, TWO = ("digits", "d1.r1"), ("digits", "d2.r1")


@pytest.mark.parametrize(
    ("command", "forced"),
    [
        ({}, []),
        ({"targets": {"results/digits/runs/d1.r1/record.json"}}, []),
        ({"forcetargets": True, "targets": {"./results/digits/runs/d1.r1/record.json"}}, [ONE]),
        ({"forcerun": ["results/digits/runs/d2.r1/record.json"]}, [TWO]),
        ({"forcerun": ["scaling_train"]}, [ONE, TWO]),
        ({"forcerun": ["plot_figures"]}, []),
        ({"forceall": True}, [ONE, TWO]),
    ],
)
def test_just_the_runs_that_the_user_forces_are_trained_again(
    command: dict[str, Any], forced: list[tuple[str, str]]
) -> None:
    settings = {"forcerun": [], "targets": set(), "forcetargets": False, "forceall": False} | command
    snakemake = Snakemake(SimpleNamespace(dag_settings=SimpleNamespace(**settings)))
    assert forced_runs(snakemake, "scaling_train", [ONE, TWO]) == forced
