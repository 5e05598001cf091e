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
from tests.small_runs import definition, muster

import train
from scalewise.execution import run, train_job
from scalewise.execution.messages import Assignment, Muster, Progress, Stopped
from scalewise.execution.outcome import RunFailedError, refuse_start, would_end_alike
from scalewise.execution.rank_files import Attempt
from scalewise.execution.restarts import SILENT, TRIES, Tries, begin_try, earlier_tries, end_try, read_tries
from scalewise.execution.run import Beginning, start_again
from scalewise.execution.run_lock import Holder, RunTakenError, owned_run
from scalewise.execution.supervisor import End, Order
from scalewise.execution.train_job import Requeue, requeue_after
from scalewise.plan.jobs.launch import Launch
from scalewise.records import SUMMARY, Definition, RecordError, read_failure

DEFINITION = definition(2, epochs=2)
INPUTS = {"dataset": "a"}
ME = Holder(token="t", host="node-a", pid=1, job="7", restart=2)


class Training:
    """A run's folder, in which starts are made as train.py makes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.attempt = folder, Attempt(folder / "attempt")

    def earlier(
        self, step: int, fresh: bool = False, definition: Definition = DEFINITION, dataset: str = "a"
    ) -> Tries:
        return earlier_tries(self.folder, definition, {"dataset": dataset}, self.attempt, step, fresh)

    def start(self, step: int, seen: int | None = None, fresh: bool = False) -> Tries:
        """A start that comes as far as this step, and is killed unless told how it ends."""
        tries = begin_try(self.folder, self.earlier(step, fresh), step, ME)
        self.attempt.end()
        self.attempt.folder.mkdir()
        if seen is not None:
            self.attempt.progress(Progress(epoch=0, epochs=2, step=seen))
        return tries

    def fail(self, step: int, seen: int | None = None, why: str = "failed", idle: bool = True) -> None:
        end_try(self.folder, self.start(step, seen), self.attempt, why, f"of {why}", idle)


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_a_training_that_nothing_disturbs_has_one_start_and_loses_nothing(training: Training) -> None:
    tries = training.start(0)
    assert tries.starts == 1
    assert tries.lost_steps(0) == 0
    (only,) = tries.tries
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
    (killed,) = training.earlier(40).tries
    assert (killed.ended, killed.last_step, killed.idle) == (SILENT, 42, True)


def test_where_the_ranks_stopped_in_order_the_step_is_the_one_they_stopped_at(training: Training) -> None:
    tries = training.start(0, seen=42)
    training.attempt.stopped(Stopped(step=50, saved=True, because="SIGUSR1"))
    ended = end_try(training.folder, tries, training.attempt, "interrupted", "ended by SIGUSR1.", idle=False)
    assert ended.tries[-1].last_step == 50
    assert ended.lost_steps(50) == 0
    assert read_tries(training.folder) == ended


@pytest.mark.fault(17)
def test_tries_in_a_row_that_come_no_further_are_counted_against_the_training(training: Training) -> None:
    for _ in range(2):
        training.fail(0)
    training.start(0)  # and one that was killed
    assert [each.ended for each in training.earlier(0).idle_tries(0)] == [SILENT, "failed", "failed"]


def test_progress_forgives_what_failed_before_it(training: Training) -> None:
    training.fail(0)
    training.fail(0, seen=120)
    assert training.earlier(100).idle_tries(100) == []
    training.fail(100)
    assert len(training.earlier(100).idle_tries(100)) == 1


def test_tries_that_a_signal_ended_stand_aside(training: Training) -> None:
    training.fail(0)
    for _ in range(5):
        training.fail(0, why="interrupted", idle=False)
    training.fail(0)
    assert len(training.earlier(0).idle_tries(0)) == 2


def test_a_user_who_starts_again_forgives_failures_and_keeps_the_counts_of_what_is_gone_on_from(
    training: Training,
) -> None:
    training.fail(0, seen=130)
    training.fail(100, seen=110)
    again = training.earlier(100, fresh=True)
    assert again.idle_tries(100) == []
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


@pytest.mark.parametrize("damage", ["", "{", '{"tries": 3}', "\x00\xff"])
def test_a_damaged_list_of_tries_is_as_none(training: Training, damage: str) -> None:
    training.fail(0)
    (training.folder / TRIES).write_text(damage, encoding="latin-1")
    assert training.earlier(0).starts == 0


def test_progress_that_was_cut_off_while_it_was_written_is_none(training: Training) -> None:
    training.start(0, seen=42)
    (training.attempt.folder / "progress.json").write_text("{", encoding="utf-8")
    assert training.earlier(0).tries[0].last_step is None


def start(folder: Path, spent: float = 0.0) -> RunFailedError:
    """A start of a training, as Slurm makes it again, that fails."""
    order = Order(
        label="study/d2.r1",
        attempt=Attempt(folder / "attempt"),
        launch=Launch("spawn", ("true",), {}),
        world_size=2,
        log=folder / "train.log",
        limit_seconds=600,
        spent_seconds=spent,
    )
    assignment = Assignment(definition=DEFINITION, dataset=folder / "d", folder=folder, started_at="")
    with pytest.raises(RunFailedError) as failed:
        start_again(order, muster(), assignment, Beginning(ME, fresh=False, keep_checkpoints=False))
    return failed.value


@pytest.mark.fault(17)
def test_a_run_that_is_given_up_does_not_say_that_it_could_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's signal ends each start, and none can write its checkpoint."""
    stopped = Stopped(step=50, saved=False, problem="no room", because="SIGUSR1")

    def execute(_order: Order, _muster: Muster, _assignment: Assignment) -> None:
        raise RunFailedError("ended by SIGUSR1", "ended by SIGUSR1", End(0, "interrupted", stopped))

    monkeypatch.setattr(run, "execute", execute)
    ends = [start(tmp_path) for _ in range(3)]
    again = [requeue_after(end, in_slurm_job=True) for end in ends]
    assert again == [Requeue.FROM_START, Requeue.FROM_START, Requeue.NO]
    assert "3 tries without progress: none has come to a checkpoint" in str(ends[-1])


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


def hops(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    monkeypatch.setattr(train_job, "hop", lambda log, label, saved: made.append((log, label, saved)))
    return made


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_whose_jobs_time_is_over_goes_back_into_the_queue_unless_it_is_given_up(
    saved: bool, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hops(monkeypatch)
    ended = End(0, "interrupted", Stopped(step=50, saved=saved, because="SIGUSR1"))
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
    assert command.fails(RunTakenError("another has it"), monkeypatch) == []
    assert capsys.readouterr().err == "scalewise: another has it\n"


def test_a_ctrl_c_while_another_trains_the_run_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    command = Command(tmp_path)
    with owned_run(tmp_path, 0, print):
        process = subprocess.Popen(
            [sys.executable, str(Path(train.__file__)), *command.arguments],
            env=os.environ | {"SCALEWISE_MACHINE_LOCK": str(tmp_path / "lock")},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert "is training this run" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        (line,) = process.communicate()[1].splitlines()
    assert process.returncode == 1
    assert line == (
        "scalewise: study/d2.r1 interrupted while no rank of it was at work; the same command trains it"
    )


def ordered(command: Command, monkeypatch: pytest.MonkeyPatch, waits: bool) -> tuple[int, list[Order]]:
    """What train.py makes of a run of ten minutes, once it holds the folder; its exit code first."""
    orders: list[Order] = []
    (command.folder / "d.safetensors").write_bytes(b"data")
    if waits:
        other = Holder(token="x", host="node-far-away", pid=1, job="7", restart=0)
        (command.folder / "holder.json").write_text(other.model_dump_json(), encoding="utf-8")
        monkeypatch.setattr("scalewise.execution.run_lock.LOST_SECONDS", 0.2)
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(train_job, "start_again", lambda order, *_arguments: orders.append(order))
    monkeypatch.setattr(train_job, "other_jobs", lambda _environ: None)
    monkeypatch.setattr(train_job, "seconds_left", lambda _environ: 300.0)
    return train.main(command.arguments), orders


@pytest.mark.parametrize("waits", [False, True])
def test_waiting_takes_nothing_of_the_runs_own_time_and_the_job_ends_it_in_time(
    waits: bool, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.monotonic()
    code, (order,) = ordered(command, monkeypatch, waits)
    assert code == 0
    assert order.limit_seconds == order.seconds_left == 600
    if waits:
        left = 300 - train_job.JOB_END_SECONDS
        assert before + left < order.job_ends_at < time.monotonic() + left
    else:
        assert order.job_ends_at == math.inf


def test_a_run_that_used_its_time_is_not_tried_again_whatever_its_next_job_waited(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order = Order("", Attempt(command.folder / "attempt"), Launch("", (), {}), 2, command.log, 600.0)
    definition = train_job.resolved(Definition.model_validate_json(command.arguments[1]))
    assignment = Assignment(definition=definition, dataset=Path("d"), folder=command.folder, started_at="")
    refuse_start(order, assignment, "timed-out", "all of its time is used")
    assert (failure := read_failure(command.folder)) is not None
    assert would_end_alike(command.folder, definition, 600.0) == failure
    assert would_end_alike(command.folder, definition, 600.5) is None
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
    code, (order,) = ordered(Command(folder), monkeypatch, waits=False)
    assert code == 0
    assert f"--bind={folder.resolve()}" in order.launch.argv
