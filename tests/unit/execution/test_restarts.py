"""The starts of one training: counted, with what was done twice, and given up where none comes further."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.small_runs import definition, rank_setup
from tests.waiting import LIMIT_SECONDS

import train
from scalewise.execution import run, train_job
from scalewise.execution.messages import GracefulStop, Progress, RankSetup, TrainSpec
from scalewise.execution.outcome import RunFailedError, record_refused_start, would_fail_again
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.requeue import Requeue, requeue_after
from scalewise.execution.restarts import (
    RESTARTS,
    SILENT,
    RestartHistory,
    load_history,
    read_history,
    record_end,
    record_start,
)
from scalewise.execution.run import StartContext, run_with_restarts
from scalewise.execution.run_lock import LockLostError, LockOwner, lock_run
from scalewise.execution.supervisor import ExitStatus, RankGroup
from scalewise.plan.jobs.launch import Launch
from scalewise.records import SUMMARY, Definition, RecordError, read_failure

DEFINITION = definition(2, epochs=2)
INPUTS = {"dataset": "a"}
ME = LockOwner(token="t", host="node-a", pid=1, job="7", restart=2)


class Training:
    """A run's folder, in which starts are made as train.py makes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rank_files = folder, RankFiles(folder / "attempt")

    def earlier(
        self, step: int, fresh: bool = False, definition: Definition = DEFINITION, dataset: str = "a"
    ) -> RestartHistory:
        return load_history(self.folder, definition, {"dataset": dataset}, self.rank_files, step, fresh)

    def start(self, step: int, seen: int | None = None, fresh: bool = False) -> RestartHistory:
        """A start that comes as far as this step, and is killed unless told how it ends."""
        history = record_start(self.folder, self.earlier(step, fresh), step, ME)
        self.rank_files.end()
        self.rank_files.folder.mkdir()
        if seen is not None:
            self.rank_files.progress(Progress(epoch=0, epochs=2, step=seen))
        return history

    def fail(self, step: int, seen: int | None = None, why: str = "failed", no_progress: bool = True) -> None:
        record_end(self.folder, self.start(step, seen), self.rank_files, why, f"of {why}", no_progress)


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_a_training_that_nothing_disturbs_has_one_start_and_loses_nothing(training: Training) -> None:
    history = training.start(0)
    assert history.starts == 1
    assert history.lost_steps(0) == 0
    (only,) = history.restarts
    assert (only.job, only.restart, only.host) == ("7", 2, "node-a")


def test_steps_that_no_checkpoint_had_are_counted_as_lost(training: Training) -> None:
    training.start(0, seen=130)
    assert training.earlier(100).lost_steps(100) == 30
    training.start(100, seen=250)
    assert training.earlier(250).lost_steps(250) == 30
    training.start(250, seen=260)
    third = training.earlier(200)  # the newest checkpoint was damaged
    assert third.starts == 3
    assert third.lost_steps(200) == 30 + 60


def test_a_start_that_was_killed_is_filled_in_by_the_next(training: Training) -> None:
    training.start(0, seen=42)
    (killed,) = training.earlier(40).restarts
    assert (killed.ended, killed.last_step, killed.no_progress) == (SILENT, 42, True)


def test_where_the_ranks_stopped_in_order_the_step_is_the_one_they_stopped_at(training: Training) -> None:
    history = training.start(0, seen=42)
    training.rank_files.stopped(GracefulStop(step=50, saved=True, stop_source="SIGUSR1"))
    ended = record_end(
        training.folder, history, training.rank_files, "interrupted", "ended by SIGUSR1.", no_progress=False
    )
    assert ended.restarts[-1].last_step == 50
    assert ended.lost_steps(50) == 0
    assert read_history(training.folder) == ended


@pytest.mark.fault(17)
def test_tries_in_a_row_that_come_no_further_are_counted_against_the_training(training: Training) -> None:
    for _ in range(2):
        training.fail(0)
    training.start(0)  # and one that was killed
    assert [each.ended for each in training.earlier(0).starts_without_progress(0)] == [
        SILENT,
        "failed",
        "failed",
    ]


def test_progress_forgives_what_failed_before_it(training: Training) -> None:
    training.fail(0)
    training.fail(0, seen=120)
    assert training.earlier(100).starts_without_progress(100) == []
    training.fail(100)
    assert len(training.earlier(100).starts_without_progress(100)) == 1


def test_tries_that_a_signal_ended_stand_aside(training: Training) -> None:
    training.fail(0)
    for _ in range(5):
        training.fail(0, why="interrupted", no_progress=False)
    training.fail(0)
    assert len(training.earlier(0).starts_without_progress(0)) == 2


def test_a_user_who_starts_again_forgives_failures_and_keeps_the_counts_of_what_is_gone_on_from(
    training: Training,
) -> None:
    training.fail(0, seen=130)
    training.fail(100, seen=110)
    again = training.earlier(100, fresh=True)
    assert again.starts_without_progress(100) == []
    assert again.starts == 2
    assert again.lost_steps(100) == 30 + 10
    assert training.start(100, fresh=True).starts == 3


def test_a_training_that_begins_anew_has_no_earlier_starts(training: Training) -> None:
    training.fail(0, seen=130)
    assert training.earlier(0, fresh=True).starts == 0
    other = DEFINITION.model_copy(update={"settings": {"epochs": 3}})
    assert training.earlier(0, definition=other).starts == 0
    assert training.earlier(0, dataset="b").starts == 0
    assert training.earlier(0).starts == 1


@pytest.mark.parametrize("damage", ["", "{", '{"restarts": 3}', "\x00\xff"])
def test_a_damaged_list_of_tries_is_as_none(training: Training, damage: str) -> None:
    training.fail(0)
    (training.folder / RESTARTS).write_text(damage, encoding="latin-1")
    assert training.earlier(0).starts == 0


def test_progress_that_was_cut_off_while_it_was_written_is_none(training: Training) -> None:
    training.start(0, seen=42)
    (training.rank_files.folder / "progress.json").write_text("{", encoding="utf-8")
    assert training.earlier(0).restarts[0].last_step is None


def start(folder: Path, spent: float = 0.0) -> RunFailedError:
    """A start of a training, as Slurm makes it again, that fails."""
    rank_group = RankGroup(
        label="study/d2.r1",
        rank_files=RankFiles(folder / "attempt"),
        launch=Launch("spawn", ("true",), {}),
        world_size=2,
        log=folder / "train.log",
        limit_seconds=600,
        spent_seconds=spent,
    )
    spec = TrainSpec(definition=DEFINITION, dataset=folder / "d", folder=folder, started_at="")
    with pytest.raises(RunFailedError) as failed:
        run_with_restarts(
            rank_group, rank_setup(), spec, StartContext(ME, requested_by_user=False, keep_checkpoints=False)
        )
    return failed.value


@pytest.mark.fault(17)
def test_a_run_that_is_given_up_does_not_say_that_it_could_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's signal ends each start, and none can write its checkpoint."""
    stopped = GracefulStop(step=50, saved=False, problem="no room", stop_source="SIGUSR1")

    def fail(_group: RankGroup, _setup: RankSetup, _spec: TrainSpec) -> None:
        raise RunFailedError("ended by SIGUSR1", "ended by SIGUSR1", ExitStatus(0, "interrupted", stopped))

    monkeypatch.setattr(run, "run_ranks", fail)
    ends = [start(tmp_path) for _ in range(3)]
    again = [requeue_after(end, in_slurm_job=True) for end in ends]
    assert again == [Requeue.FROM_START, Requeue.FROM_START, Requeue.NO]
    assert "3 tries without progress: none came to a checkpoint" in str(ends[-1])


class Command:
    """train.py on a run's folder, as a job of Slurm's or on one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "train.log"
        settings = {"dataset": "digits", "model": "linear", "global_batch_size": 16, "epochs": 1}
        definition = DEFINITION.model_copy(update={"settings": settings, "launcher": "spawn"})
        self.arguments = [
            *("--run", definition.model_dump_json(), "--dataset", str(folder / "d.safetensors")),
            *("--log", str(self.log), "--limit-seconds", "600", "--timeout-seconds", "30"),
            str(folder / SUMMARY),
        ]

    def fails(self, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The lines of its log, where training ends in this."""

        def fail(*_arguments: object) -> int:
            raise error

        monkeypatch.setattr(train_job, "train", fail)
        assert train.main(self.arguments) == 1
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("SCALEWISE_START", json.dumps({"slurm": True}))
    handler = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr(signal, "signal", lambda *_arguments: handler)
    return Command(tmp_path)


def requeued(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    monkeypatch.setattr(train_job, "requeue_job", lambda log, label, saved: made.append((log, label, saved)))
    return made


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_whose_jobs_time_is_over_goes_back_into_the_queue_unless_it_is_given_up(
    saved: bool, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = requeued(monkeypatch)
    ended = ExitStatus(0, "interrupted", GracefulStop(step=50, saved=saved, stop_source="SIGUSR1"))
    command.fails(RunFailedError("of it", "of it", ended), monkeypatch)
    assert made == [(command.log, "study/d2.r1", saved)]
    command.fails(RunFailedError("given up", "given up", ended, given_up=True), monkeypatch)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(28, "No space left on device", "/scratch/x"), "/scratch/x: No space left on device ("),
        (RecordError("results/summary.json is damaged. Delete it."), "summary.json is damaged. Delete it."),
        (KeyboardInterrupt(), "study/d2.r1 interrupted while no rank of it was at work; the same command"),
    ],
    ids=["OSError", "RecordError", "KeyboardInterrupt"],
)
@pytest.mark.parametrize("logged", ["", "epoch 1/1\n"], ids=["no log", "log"])
def test_what_ends_a_run_is_one_line_for_the_user_and_the_last_of_its_log(
    error: BaseException,
    says: str,
    logged: str,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if logged:
        command.log.write_text(logged, encoding="utf-8")
    lines = command.fails(error, monkeypatch)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("scalewise: ")
    assert says in line
    if logged and isinstance(error, KeyboardInterrupt):
        # it waits, most often, and the log is of the training that it waits for
        assert lines == ["epoch 1/1"]
    else:
        assert says in lines[-1]
        assert lines[:-1] == logged.splitlines()


def test_a_run_that_another_has_taken_leaves_the_log_to_it(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.fails(LockLostError("another has it"), monkeypatch) == []
    assert capsys.readouterr().err == "scalewise: another has it\n"


def test_a_ctrl_c_while_another_trains_the_run_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    command = Command(tmp_path)
    with lock_run(tmp_path, 0, print):
        process = subprocess.Popen(
            [sys.executable, str(Path(train.__file__)), *command.arguments],
            env=os.environ | {"SCALEWISE_MACHINE_LOCK": str(tmp_path / "lock")},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert "is training this run" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        (line,) = process.communicate(timeout=LIMIT_SECONDS)[1].splitlines()
    assert process.returncode == 1
    assert line == (
        "scalewise: study/d2.r1 interrupted while no rank of it was at work; the same command trains it"
    )


def ordered(command: Command, monkeypatch: pytest.MonkeyPatch, waits: bool) -> tuple[int, list[RankGroup]]:
    """What train.py makes of a run of ten minutes, once it holds the folder; its exit code first."""
    orders: list[RankGroup] = []
    (command.folder / "d.safetensors").write_bytes(b"data")
    if waits:
        other = LockOwner(token="x", host="node-far-away", pid=1, job="7", restart=0)
        (command.folder / "holder.json").write_text(other.model_dump_json(), encoding="utf-8")
        monkeypatch.setattr("scalewise.execution.run_lock.LOST_SECONDS", 0.2)
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        train_job, "run_with_restarts", lambda rank_group, *_arguments: orders.append(rank_group)
    )
    monkeypatch.setattr(train_job, "other_jobs", lambda _environ: None)
    monkeypatch.setattr(train_job, "seconds_left", lambda _environ: 300.0)
    return train.main(command.arguments), orders


@pytest.mark.parametrize("waits", [False, True])
def test_waiting_takes_nothing_of_the_runs_own_time_and_the_job_ends_it_in_time(
    waits: bool, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.monotonic()
    code, (rank_group,) = ordered(command, monkeypatch, waits)
    assert code == 0
    assert rank_group.limit_seconds == rank_group.seconds_left == 600
    if waits:
        left = 300 - train_job.JOB_END_SECONDS
        assert before + left < rank_group.job_ends_at < time.monotonic() + left
    else:
        assert rank_group.job_ends_at == math.inf


def test_a_run_that_used_its_time_is_not_tried_again_whatever_its_next_job_waited(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_group = RankGroup(
        "", RankFiles(command.folder / "attempt"), Launch("", (), {}), 2, command.log, 600.0
    )
    definition = train_job.resolved(Definition.model_validate_json(command.arguments[1]))
    spec = TrainSpec(definition=definition, dataset=Path("d"), folder=command.folder, started_at="")
    record_refused_start(rank_group, spec, "timed-out", "all of its time is used")
    assert (failure := read_failure(command.folder)) is not None
    assert would_fail_again(command.folder, definition, 600.0) == failure
    assert would_fail_again(command.folder, definition, 600.5) is None
    command.arguments[:0] = ["--attempt", "2"]
    assert ordered(command, monkeypatch, waits=True) == (1, [])
    assert "study/d2.r1 is not tried again: all of its time is used" in capsys.readouterr().err


@pytest.mark.parametrize("linked", ["results", "results/study/runs/d2.r1"])
def test_a_container_sees_a_run_whose_results_lie_behind_a_link(
    linked: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = {"slurm": True, "container": {"image": "a.sif", "runtime": "apptainer"}}
    monkeypatch.setenv("SCALEWISE_START", json.dumps(site))
    scratch = tmp_path / "scratch"
    folder = tmp_path / "results" / "study" / "runs" / "d2.r1"
    link = tmp_path / linked
    link.parent.mkdir(parents=True, exist_ok=True)
    scratch.mkdir()
    link.symlink_to(scratch)
    folder.mkdir(parents=True, exist_ok=True)
    code, (rank_group,) = ordered(Command(folder), monkeypatch, waits=False)
    assert code == 0
    assert f"--bind={folder.resolve()}" in rank_group.launch.argv
