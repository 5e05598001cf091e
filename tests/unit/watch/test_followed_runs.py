"""Status of a run by its files and by Snakemake's log, also if files are late, damaged or old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.watch.planted_status import EPOCH, LIMIT_SECONDS, RUN, Follower, time_of

from scalewise.execution.train_job import report_wait
from scalewise.records import Start
from scalewise.watch.study import Job, RunKey


@pytest.fixture
def run(tmp_path: Path) -> Follower:
    return Follower(tmp_path / "results")


def test_a_run_is_followed_from_the_queue_to_its_figures(tmp_path: Path) -> None:
    run = Follower(tmp_path, on_cluster=True)
    states = [run.status().state]
    run.hand_over()
    assert run.status().state == "queued"
    run.hand_over(slurm="41")
    states.append(run.status().state)
    run.starts()
    states.append(run.status().state)
    run.progress(2)
    at_work = run.status()
    states.append(at_work.state)
    run.summary()
    run.ends(61.5)
    states.append(run.status().state)

    assert states == ["waiting", "queued", "starting", "running", "done"]
    assert str(at_work.progress) == "epoch 2/4"
    assert at_work.job_seconds == ()
    assert at_work.elapsed((at_work.began or 0) + 42) == 42
    assert run.log.jobs()[RUN].slurm_id == "41"
    assert (run.status().throughput, run.status().job_seconds) == (200.0, (61.5,))


def test_the_time_of_a_job_that_was_killed_is_not_its_limit(run: Follower) -> None:
    run.hand_over()
    run.starts()
    run.clock = EPOCH + 200
    run.progress(2)
    run.report("job_error", jobid=7)
    # for as long as it gave signs of life
    killed = run.status()
    assert (killed.state, killed.job_seconds) == ("failed", (201.0,))

    run.hand_over(job=8)
    run.starts(LIMIT_SECONDS)
    # the next one began 1000 seconds after it
    assert (run.status().state, run.status().job_seconds) == ("starting", (1000.0,))
    run.summary()
    run.ends(LIMIT_SECONDS, 60.0)
    assert run.status().job_seconds == (1000.0, 60.0)


def test_a_file_that_is_away_for_a_moment_ends_nothing(run: Follower) -> None:
    run.hand_over()
    run.summary()
    run.ends(60.0)
    before = run.status()
    hidden = run.folder.rename(run.folder.with_name("hidden"))
    assert run.status().state == "starting"
    hidden.rename(run.folder)
    assert run.status() == before


def test_a_run_that_waits_for_another_training_on_this_machine_is_shown_as_waiting(
    run: Follower, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run.hand_over()
    monkeypatch.setattr("scalewise.execution.rank_files.time.time", lambda: run.clock + 1)
    report_wait(run.folder, "waiting: another Scalewise run is using this machine (process 7)")
    assert "process 7" in capfd.readouterr().err
    blocked = run.status()
    assert (blocked.state, blocked.waits_for) == ("blocked", "another training on this machine")
    # its job was killed, and the next one does not wait
    run.report("job_error", jobid=7)
    run.clock += 10
    run.hand_over()
    assert run.status().state == "starting"
    run.starts()
    assert run.status().state == "starting"


def test_what_an_earlier_session_left_is_no_result_of_a_run_that_is_made_again(run: Follower) -> None:
    assert run.status(in_session=False).state == "later"
    run.progress(3)
    run.summary()
    run.ends(60.0)
    assert run.status(in_session=False).state == "done"
    assert run.status().state == "waiting"

    run.hand_over()
    assert run.status().state == "starting"
    run.starts(60.0, outcome="completed")
    # its ranks have written nothing yet
    assert (run.status().state, run.status().progress) == ("starting", None)
    run.progress(1)
    assert str(run.status().progress) == "epoch 1/4"
    assert run.status().job_seconds == (60.0,)


def test_a_failure_is_shown_until_the_run_is_tried_again(run: Follower) -> None:
    run.hand_over()
    run.ends(30.0, outcome="timed-out")
    run.report("job_error", jobid=7)
    assert (run.status().state, run.status().outcome) == ("failed", "timed-out")

    run.hand_over()
    assert run.status().state == "starting"
    run.starts(30.0, outcome="timed-out")
    run.progress(1)
    assert run.status().state == "running"
    run.report("job_error", jobid=7)
    # killed before it wrote why, and the old reason is not its own
    assert (run.status().state, run.status().outcome) == ("failed", "failed")


def test_a_run_that_diverged_is_a_failure_without_a_figure(run: Follower) -> None:
    run.hand_over()
    run.summary(outcome="diverged")
    run.ends(30.0, outcome="diverged")
    run.report("job_finished", job_id=7)
    status = run.status()
    assert (status.state, status.outcome, status.throughput) == ("failed", "diverged", None)


def test_a_job_that_slurm_has_put_back_is_in_the_queue_again(tmp_path: Path) -> None:
    run = Follower(tmp_path, on_cluster=True)
    run.hand_over(slurm="41")
    run.starts()
    run.progress(1)
    assert run.status(slurm="RUNNING").state == "running"
    put_back = run.status(slurm="PENDING", restarts=1)
    assert put_back.state == "queued"
    # at work for as long as it is known to have been, and not for its limit
    assert put_back.job_seconds == (1.0,)
    assert run.status(slurm="RUNNING", restarts=1).state == "starting"
    run.restarts = 1
    run.starts(LIMIT_SECONDS)
    run.progress(1)
    assert run.status(slurm="PENDING", restarts=1).state == "running", "Slurm's answer is older"


def test_a_job_that_has_begun_is_in_no_queue_though_slurm_reported_one_before(tmp_path: Path) -> None:
    run = Follower(tmp_path, on_cluster=True)
    run.hand_over(slurm="41")
    assert run.status(slurm="PENDING").state == "queued"
    run.starts()
    assert run.status(slurm="PENDING").state == "starting"
    run.progress(2)
    status = run.status(slurm="PENDING")
    assert (status.state, status.job_seconds) == ("running", ())


def test_a_start_of_another_job_of_slurm_is_not_shown_as_the_jobs_own(tmp_path: Path) -> None:
    run = Follower(tmp_path, on_cluster=True)
    run.hand_over(slurm="41")
    run.starts()
    run.hand_over(slurm="42")
    assert run.status().state == "queued"


@pytest.mark.parametrize("earlier", ["another shape", "damaged"])
def test_a_job_is_distinguished_from_earlier_ones_though_the_history_has_few(
    run: Follower, earlier: str
) -> None:
    run.ends(60.0, 60.0, outcome="failed")
    if earlier == "damaged":
        run.write("history.json", "{")
    run.hand_over()
    assert run.status().state == "starting"
    began = Start(started_at=time_of(5000), limit_seconds=LIMIT_SECONDS)
    run.write_history([began], devices=4)
    run.clock = EPOCH + 5000
    run.progress(2)
    status = run.status()
    assert (status.state, status.job_seconds, status.began) == ("running", (), EPOCH + 5000)


def test_a_failed_job_is_shown_before_snakemake_learns_of_it(tmp_path: Path) -> None:
    run = Follower(tmp_path, on_cluster=True)
    run.ends(20.0, outcome="interrupted")
    run.hand_over(slurm="41")
    assert run.status().state == "queued"
    run.starts(20.0)
    run.progress(2)
    assert run.status().state == "running"
    run.ends(20.0, 30.0, outcome="timed-out")
    status = run.status()
    assert (status.state, status.outcome, status.job_seconds) == ("failed", "timed-out", (20.0, 30.0))


@pytest.mark.parametrize("text", ["", "{", '{"epoch": 1', "null", "[]", '{"epoch": "x", "epochs": 2}'])
def test_files_that_are_not_whole_change_nothing(run: Follower, text: str) -> None:
    run.hand_over()
    run.starts()
    run.progress(2)
    before = run.status()
    run.write("attempt/progress.json", text)
    assert run.status() == before
    run.write("history.json", text)
    assert run.status() == before

    run.ends(60.0)
    run.write("summary.json", text)
    ended = run.status()
    assert (ended.state, ended.throughput) == ("done", None)
    run.summary(rate=150.0)
    assert run.status().throughput == 150.0


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "job_info", "rule_name": "train"},
        {"event": "job_info", "rule_name": "train", "wildcards": {}, "jobid": 1},
        {"event": "job_error", "jobid": "x"},
        {"event": "job_finished"},
        {"event": "progress", "done": 1, "total": 2},
        {"event": "job_info", "rule_name": "plot_figures", "jobid": 3, "wildcards": {"experiment": "digits"}},
    ],
)
def test_events_that_are_not_understood_are_left_out(
    run: Follower, fields: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    run.hand_over()
    before: dict[RunKey, Job] = run.log.jobs()
    run.report(**fields)
    assert run.log.jobs() == before
    assert capfd.readouterr().err == ""
