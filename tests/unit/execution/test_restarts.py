"""The starts of one training: counted, with what was done twice, and given up where none comes further."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.planted_records import BEGAN, leave_failure, provenance, run_record
from tests.small_runs import definition, definition_of, plan_one_run, rank_setup, train_arguments

import cli
from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.config.site import Container
from scalewise.execution import run, train_job
from scalewise.execution.finished_results import finished_result, publish, publish_again
from scalewise.execution.history import (
    HistoryWriter,
    in_training,
    load_history,
    lost_steps,
    starts_without_progress,
    would_fail_again,
)
from scalewise.execution.input_hashes import input_hashes
from scalewise.execution.messages import GracefulStop, Progress, RankSetup, TrainSpec
from scalewise.execution.next_try import failure_to_repeat, hashes_of
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.requeue import Requeue, requeue_after
from scalewise.execution.run import RunFailedError, refuse_start, resume_or_begin
from scalewise.execution.run_lock import LOCK, LockLostError, LockOwner
from scalewise.execution.run_log import SHOWN_BYTES
from scalewise.execution.saved_training import SavedTraining, leave_enough_to_measure, saved_training
from scalewise.execution.slurm import OtherJobs
from scalewise.execution.supervisor import ExitStatus, RankGroup
from scalewise.plan.launch import Launch, SiteLaunch
from scalewise.plan.plan_file import TrainJob
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import (
    HISTORY,
    MODEL,
    RECORD,
    RECORD_LOG,
    RUN_RECORDS,
    SUMMARY,
    History,
    RecordError,
    Start,
    later,
    read_failure,
    read_history,
    utc_now,
    write_json,
)
from scalewise.training.prepared import write

DEFINITION = definition(2, epochs=2)
SMALL_EPOCHS: dict[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 64,
    "warmup_steps": 2,
}


class RestartedRun:
    """A run's folder, in which starts are made as train.py makes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rank_files = folder, RankFiles(folder / "attempt")

    def earlier(self, definition: RunDefinition = DEFINITION, dataset: str = "a") -> History:
        return load_history(self.folder, definition, {"dataset": dataset}, self.rank_files)

    def start(self, step: int, seen: int | None = None, by_user: bool = False) -> HistoryWriter:
        """A start that comes as far as this step, and is killed unless another end is given."""
        history = begin(self.folder, self.earlier(), step, by_user)
        self.rank_files.end()
        self.rank_files.folder.mkdir()
        if seen is not None:
            self.rank_files.progress(Progress(epoch=0, epochs=2, step=seen))
        return history

    def end(self, step: int, seen: int | None = None, why: str = "failed", no_progress: bool = True) -> None:
        self.start(step, seen).end(self.rank_files, outcome=why, reason=f"of {why}", no_progress=no_progress)

    def starts_if_from(self, step: int) -> tuple[int, int]:
        """The number of starts, and the steps that are done again, as the next start has them."""
        history = self.start(step).history
        return len(in_training(history)), lost_steps(history, step)

    def row(self, step: int) -> list[str | None]:
        return [start.outcome for start in starts_without_progress(self.earlier(), step)]


def begin(folder: Path, earlier: History, step: int, by_user: bool = False) -> HistoryWriter:
    history = HistoryWriter(folder, earlier, new_start(by_user))
    history.begin(step)
    return history


def new_start(by_user: bool = False) -> Start:
    return Start(
        started_at=utc_now(),
        host="node-a",
        limit_seconds=600.0,
        slurm_job_id="7",
        restart_count=0 if by_user else 2,
    )


@pytest.fixture
def restarted(tmp_path: Path) -> RestartedRun:
    return RestartedRun(tmp_path)


def test_steps_that_no_checkpoint_had_are_counted_as_lost(restarted: RestartedRun) -> None:
    assert restarted.starts_if_from(0) == (1, 0)
    restarted.rank_files.progress(Progress(epoch=0, epochs=2, step=130))
    assert restarted.starts_if_from(100) == (2, 30)
    restarted.rank_files.progress(Progress(epoch=0, epochs=2, step=250))
    assert restarted.starts_if_from(250) == (3, 30)
    restarted.rank_files.progress(Progress(epoch=0, epochs=2, step=260))
    # the newest checkpoint was damaged
    assert restarted.starts_if_from(200) == (4, 30 + 60)


def test_a_start_that_was_killed_is_filled_in_by_the_next(restarted: RestartedRun) -> None:
    restarted.start(0, seen=42)
    (killed,) = restarted.earlier().starts
    assert (killed.outcome, killed.steps, killed.no_progress) == ("killed", 42, True)


def test_where_the_ranks_stopped_in_order_the_step_is_the_one_they_stopped_at(
    restarted: RestartedRun,
) -> None:
    history = restarted.start(0, seen=42)
    restarted.rank_files.stopped(GracefulStop(step=50, saved=True, stop_source="SIGUSR1"))
    history.end(restarted.rank_files, outcome="interrupted", reason="ended by SIGUSR1.")
    (start,) = history.history.starts
    assert (start.steps, start.ended_at is not None) == (50, True)
    assert read_history(restarted.folder) == history.history
    assert restarted.starts_if_from(50) == (2, 0)


@pytest.mark.fault(17)
@pytest.mark.parametrize(
    ("tries", "step", "row"),
    [
        pytest.param(
            [("failed", 0, None), ("failed", 0, None), ("killed", 0, None)],
            0,
            ["killed", "failed", "failed"],
            id="none came further",
        ),
        pytest.param([("failed", 0, None), ("failed", 0, 120)], 100, [], id="progress forgives"),
        pytest.param(
            [("failed", 0, None), ("failed", 0, 120), ("failed", 100, None)], 100, ["failed"], id="and then"
        ),
        pytest.param(
            [("failed", 0, None), *[("interrupted", 0, None)] * 5, ("failed", 0, None)],
            0,
            ["failed", "failed"],
            id="signals stand aside",
        ),
    ],
)
def test_tries_in_a_row_that_come_no_further_are_counted_against_the_training(
    tries: list[tuple[str, int, int | None]], step: int, row: list[str], restarted: RestartedRun
) -> None:
    for outcome, begin_at, seen in tries:
        if outcome == "killed":
            restarted.start(begin_at, seen)
        else:
            restarted.end(begin_at, seen, outcome, no_progress=outcome == "failed")
    assert restarted.row(step) == row


def test_a_user_who_starts_again_forgives_failures_and_keeps_the_counts_of_what_is_resumed(
    restarted: RestartedRun,
) -> None:
    restarted.end(0, seen=130)
    restarted.end(100, seen=110)
    history = restarted.start(100, seen=110, by_user=True).history
    assert (len(in_training(history)), lost_steps(history, 100)) == (3, 30 + 10)
    assert restarted.row(100) == ["killed"]


def test_a_training_that_begins_again_has_no_earlier_starts(restarted: RestartedRun) -> None:
    restarted.end(0, seen=130)
    other = DEFINITION.model_copy(update={"settings": definition(epochs=3).settings})
    assert in_training(restarted.earlier(definition=other)) == []
    assert in_training(restarted.earlier(dataset="b")) == []
    assert len(in_training(restarted.earlier())) == 1
    restarted.end(0, why="completed")
    # what they took is still known
    assert (in_training(restarted.earlier()), len(restarted.earlier().starts)) == ([], 2)
    history = restarted.start(0, by_user=True).history
    assert (len(in_training(history)), len(history.starts)) == (1, 3)


@pytest.mark.parametrize("damage", ["{", '{"starts": 3}', "\x00\xff"])
def test_a_damaged_history_is_as_none(restarted: RestartedRun, damage: str) -> None:
    restarted.end(0)
    (restarted.folder / HISTORY).write_text(damage, encoding="latin-1")
    assert restarted.earlier().starts == []


def test_progress_that_was_cut_off_while_it_was_written_is_none(restarted: RestartedRun) -> None:
    restarted.start(0, seen=42)
    (restarted.rank_files.folder / "progress.json").write_text("{", encoding="utf-8")
    assert restarted.earlier().starts[0].steps is None


ON_SLURM = SiteLaunch(slurm=True)


def start(folder: Path) -> RunFailedError:
    """A start of a training, as Slurm makes it again, that fails."""
    rank_group = RankGroup(
        label="study/d2.r1",
        rank_files=RankFiles(folder / "attempt"),
        launch=Launch("spawn", ("true",), {}),
        world_size=2,
        log=folder / "train.log",
        limit_seconds=600,
    )
    spec = TrainSpec(definition=DEFINITION, dataset=folder / "d", folder=folder, started_at="")
    earlier = load_history(folder, DEFINITION, {}, rank_group.rank_files)
    history = HistoryWriter(folder, earlier, new_start())
    with pytest.raises(RunFailedError) as failed:
        resume_or_begin(rank_group, rank_setup(), spec, history, keep_checkpoints=False)
    return failed.value


@pytest.mark.fault(17)
def test_a_run_that_is_given_up_does_not_say_that_it_could_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's signal ends each start, and none can write its checkpoint."""
    stopped = GracefulStop(step=50, saved=False, stop_source="SIGUSR1")

    def fail(group: RankGroup, _setup: RankSetup, _spec: TrainSpec, history: HistoryWriter) -> None:
        history.end(group.rank_files, outcome="interrupted", reason="ended by SIGUSR1", no_progress=True)
        raise RunFailedError("ended by SIGUSR1", "ended by SIGUSR1", ExitStatus(0, "interrupted", stopped))

    monkeypatch.setattr(run, "run_ranks", fail)
    ends = [start(tmp_path) for _ in range(3)]
    again = [requeue_after(end, in_slurm_job=True) for end in ends]
    assert again == [Requeue.FROM_START, Requeue.FROM_START, Requeue.NO]
    assert "3 tries without progress: none came to a checkpoint" in str(ends[-1])


class Command:
    """train.py on a run's folder, as a job of Slurm's or on one machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, launch: SiteLaunch = ON_SLURM) -> None:
        self.folder, self.log = folder, folder / "train.log"
        self.definition = DEFINITION.model_copy(update={"launcher": "spawn"}).as_json()
        plan = plan_one_run(
            folder / "plan.json", self.definition, folder / "d.safetensors", launch, limit_seconds=600.0
        )
        for name, value in plan.items():
            monkeypatch.setenv(name, value)
        self.arguments = train_arguments(self.definition, folder)

    def fails(self, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The lines of its log, where training ends in this."""

        def fail(*_arguments: object) -> int:
            raise error

        monkeypatch.setattr(train_job, "train_or_reuse", fail)
        assert cli.main(self.arguments) == 1
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    handler = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr(signal, "signal", lambda *_arguments: handler)
    return Command(tmp_path, monkeypatch)


def test_a_run_whose_jobs_time_is_over_goes_back_into_the_queue_unless_it_is_given_up(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    requeued: list[tuple[object, ...]] = []
    printed = "a step\n" * SHOWN_BYTES
    monkeypatch.setattr(
        train_job,
        "requeue_job",
        lambda log, label, saved: requeued.append((log.read_text() == printed, label, saved)),
    )
    for saved in (True, False):
        command.log.write_text(printed, encoding="utf-8")
        ended = ExitStatus(0, "interrupted", GracefulStop(step=50, saved=saved, stop_source="SIGUSR1"))
        command.fails(RunFailedError("of it", "of it", ended), monkeypatch)
        command.fails(RunFailedError("given up", "given up", ended, given_up=True), monkeypatch)
    # the next start adds to the whole log
    assert requeued == [(True, "study/d2.r1", saved) for saved in (True, False)]


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


def ordered(command: Command, monkeypatch: pytest.MonkeyPatch, waits: bool) -> tuple[int, list[RankGroup]]:
    """What train.py makes of a run of ten minutes, once it holds the folder; its exit code first."""
    orders: list[RankGroup] = []
    (command.folder / "d.safetensors").write_bytes(b"data")
    if waits:
        other = LockOwner(token="x", host="node-far-away", pid=1, job="7", restart=0)
        (command.folder / LOCK).mkdir()
        (command.folder / LOCK / other.token).write_text(other.model_dump_json(), encoding="utf-8")
        monkeypatch.setattr("scalewise.execution.run_lock.LOST_SECONDS", 0.2)
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        train_job, "resume_or_begin", lambda rank_group, *_arguments: orders.append(rank_group)
    )
    monkeypatch.setattr(train_job, "other_jobs", lambda _environ: OtherJobs())
    monkeypatch.setattr(train_job, "seconds_left", lambda _environ: 300.0)
    return cli.main(command.arguments), orders


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


def test_a_run_that_used_its_time_is_not_tried_again_for_any_wait_of_its_next_job(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_group = RankGroup(
        "", RankFiles(command.folder / "attempt"), Launch("", (), {}), 2, command.log, 600.0
    )
    definition = RunDefinition.model_validate_json(command.definition)
    (command.folder / "d.safetensors").write_bytes(b"data")
    inputs = input_hashes(command.folder / "d.safetensors", None)
    earlier = load_history(command.folder, definition, inputs, rank_group.rank_files)
    history = HistoryWriter(command.folder, earlier, new_start())
    refuse_start(rank_group, history, "timed-out", "all of its time is used")
    assert (failure := read_failure(command.folder)) is not None
    assert would_fail_again(history.history, 600.0) == failure
    assert would_fail_again(history.history, 600.5) is None
    command.arguments = train_arguments(command.definition, command.folder, attempt=2)
    assert ordered(command, monkeypatch, waits=True) == (1, [])
    assert "study/d2.r1 is not tried again: all of its time is used" in capsys.readouterr().err


def test_a_run_whose_job_was_killed_after_its_record_was_written_is_not_started_again(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALEWISE_COMMIT", "c0ffee")
    (command.folder / "d.safetensors").write_bytes(b"data")
    definition = RunDefinition.model_validate_json(command.definition)
    inputs = input_hashes(command.folder / "d.safetensors", None)
    rank_files = RankFiles(command.folder / "attempt")
    begin(command.folder, load_history(command.folder, definition, inputs, rank_files), 0)
    for name in RUN_RECORDS:
        (command.folder / name).touch()
    write_json(
        command.folder / RECORD,
        run_record(definition, provenance=provenance(definition, inputs=inputs, commit="c0ffee")),
    )

    assert ordered(command, monkeypatch, waits=False) == (0, [])
    assert "the result was there before snakemake saw this run end" in capsys.readouterr().err
    assert (command.folder / SUMMARY).read_bytes() == (command.folder / RECORD).read_bytes()
    history = read_history(command.folder)
    assert history is not None
    (start,) = history.starts
    ended_at = "2026-01-01T00:01:30+00:00"
    assert (start.outcome, start.no_progress, start.ended_at) == ("completed", False, ended_at)


def test_a_container_sees_a_run_whose_results_lie_behind_a_link(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = SiteLaunch(slurm=True, container=Container(image="a.sif", runtime="apptainer"))
    (tmp_path / "scratch").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "scratch")
    folder = tmp_path / "results" / "study" / "runs" / "d2.r1"
    folder.mkdir(parents=True)
    code, (rank_group,) = ordered(Command(folder, monkeypatch, launch), monkeypatch, waits=False)
    assert code == 0
    assert f"--bind={folder.resolve()}" in rank_group.launch.argv


OF_PROGRAM = definition(2).model_copy(update={"settings": ProgramSettings(program="train.py")})


@pytest.mark.parametrize("permanent", [False, True])
def test_what_would_end_alike_is_not_tried_again(tmp_path: Path, permanent: bool) -> None:
    leave_failure(tmp_path, OF_PROGRAM, "failed", "64 samples a step, 32 were planned", permanent=permanent)

    rank_files = RankFiles(tmp_path / "attempt")
    same = load_history(tmp_path, OF_PROGRAM, {}, rank_files)
    assert (would_fail_again(same, 60) is not None) == permanent
    changed = OF_PROGRAM.model_copy(update={"settings": ProgramSettings(program="other.py")})
    assert would_fail_again(load_history(tmp_path, changed, {}, rank_files), 60) is None


def job_of(run: RunDefinition, **limits: Any) -> TrainJob:
    """The job of a run of ten minutes."""
    usual = {"limit_seconds": 600.0, "timeout_seconds": 60}
    return TrainJob(
        threads=1, resources={}, limits=usual | limits, definition=run.as_json(), inputs={}, priority=0
    )


def set_inputs(folder: Path, run: RunDefinition) -> None:
    """Write the program's files as they are now into a run's history."""
    history = read_history(folder)
    assert history is not None
    write_json(folder / HISTORY, history.model_copy(update={"inputs": hashes_of(run, None, None)}))


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize(
    ("outcome", "permanent", "limit", "refused"),
    [
        pytest.param("timed-out", True, 600, {1, 2}, id="all of its time used"),
        pytest.param("timed-out", True, 601, set(), id="more time"),
        pytest.param("timed-out", False, 600, {2}, id="hung or never began: only the user can know"),
        pytest.param("failed", True, 600, {2}, id="a mistake, which the user may have fixed"),
        pytest.param("failed", False, 600, set(), id="may pass"),
        pytest.param("interrupted", False, 600, set(), id="interrupted"),
    ],
)
def test_a_try_that_would_fail_again_is_known_before_a_job_is_submitted(
    outcome: str, permanent: bool, limit: float, refused: set[int], attempt: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import torch\n", encoding="utf-8")
    program = ProgramSettings(program=str(tmp_path / "train.py"))
    run = definition(2).model_copy(update={"settings": program})
    folder = tmp_path / "run"
    assert failure_to_repeat(job_of(run), folder, attempt) is None, "never started"
    folder.mkdir()
    leave_failure(folder, run, outcome, "why", permanent=permanent)
    set_inputs(folder, run)

    failure = failure_to_repeat(job_of(run, limit_seconds=limit), folder, attempt)
    assert (failure is not None) == (attempt in refused)
    (tmp_path / "train.py").write_text("import torch  # fixed\n", encoding="utf-8")
    assert failure_to_repeat(job_of(run), folder, attempt) is None, "another program"


def test_what_a_budget_has_left_for_another_try_is_known_before_a_job_is_submitted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run = definition(2).model_copy(update={"settings": ProgramSettings(program=__file__)})
    leave_failure(folder, run, "failed", "why", ended_at=later(BEGAN, 550))
    set_inputs(folder, run)
    job = job_of(run, limit_over_tries=True)

    assert failure_to_repeat(job, folder, attempt=1) is None, "of another command"
    with pytest.raises(ValueError, match="50 s are left, less than 60 s"):
        failure_to_repeat(job, folder, attempt=2)


def test_what_a_failed_run_printed_is_bounded_before_snakemake_shows_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.log.write_bytes(b"a bar of progress\r" * 100_000)
    command.fails(RunFailedError("own/d2.r1 failed: no more samples"), monkeypatch)
    assert command.log.stat().st_size < 2 * SHOWN_BYTES
    assert (command.folder / RECORD_LOG).stat().st_size == 1_800_000


# --- a result that Snakemake has deleted is linked again if it is whole and of just this run -------------

FINISHED = definition(save_model=True)
INPUTS = {"dataset": "abc"}
LOG = "train.log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that has completed, with all that it leaves."""
    run = tmp_path / "results" / "study" / "runs" / "d1.r1"
    run.mkdir(parents=True)
    for name in (*RUN_RECORDS, MODEL, LOG):
        (run / name).write_text(f"{name} as it was", encoding="utf-8")
    write_record(run)
    return run


def write_record(run: Path, **changes: Any) -> None:
    usual = {"provenance": provenance(FINISHED, inputs=INPUTS, commit="c0ffee")}
    write_json(run / RECORD, run_record(FINISHED, **usual | changes))


def delete(folder: Path) -> None:
    """What snakemake does before it starts a job."""
    (folder / SUMMARY).unlink()
    (folder / LOG).unlink()


def found(folder: Path, **sought: Any) -> bool:
    usual: dict[str, Any] = {"definition": FINISHED, "inputs": INPUTS, "commit": "c0ffee"}
    return finished_result(folder, **usual | sought) is not None


def refuse_links(*_names: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_what_snakemake_deletes_comes_back_as_new_as_its_job(
    folder: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    for name in (RECORD, LOG):
        os.utime(folder / name, (1000, 1000))
    publish(folder, folder / LOG)
    assert ((folder / SUMMARY).stat().st_nlink == 2) == links
    delete(folder)
    assert found(folder)
    publish_again(folder, folder / LOG)
    assert (folder / SUMMARY).read_bytes() == (folder / RECORD).read_bytes()
    assert (folder / LOG).read_text(encoding="utf-8") == f"{LOG} as it was"
    assert (folder / SUMMARY).stat().st_mtime > 1000
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("missing", [*RUN_RECORDS, MODEL])
def test_a_result_that_is_not_whole_is_trained_again(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    assert not found(folder)


@pytest.mark.parametrize(
    "sought",
    [{"definition": definition(save_model=True, epochs=9)}, {"inputs": {"dataset": "b"}}, {"commit": "b"}],
    ids=["other settings", "other data", "another workflow"],
)
def test_a_result_of_something_else_is_trained_again(folder: Path, sought: dict[str, Any]) -> None:
    assert not found(folder, **sought)


def test_a_damaged_result_or_one_of_unknown_inputs_is_trained_again(folder: Path) -> None:
    write_record(folder, provenance=None)
    assert not found(folder)
    (folder / RECORD).write_text("{", encoding="utf-8")
    assert not found(folder)


def prepared(path: Path, pixel: int = 0) -> Path:
    images = torch.zeros(20, 1, 8, 8, dtype=torch.uint8)
    images[7, 0, 3, 3] = pixel
    write({"train_images": images, "train_labels": torch.arange(20) % 10}, path)
    return path


def test_data_that_was_prepared_again_is_the_same_and_another_pixel_is_not(tmp_path: Path) -> None:
    first = input_hashes(prepared(tmp_path / "a"), None)
    copy = prepared(tmp_path / "b")
    os.utime(copy, (1, 1))
    assert input_hashes(copy, None) == first
    assert input_hashes(prepared(tmp_path / "c", pixel=1), None) != first
    assert first.keys() == {"dataset"}


def test_weights_count_by_every_byte(tmp_path: Path) -> None:
    data, weights = prepared(tmp_path / "a"), tmp_path / "w.safetensors"
    write({"layer": torch.zeros(4)}, weights)
    first = input_hashes(data, weights)
    assert first.keys() == {"dataset", "weights"}

    write({"layer": torch.ones(4)}, weights)
    second = input_hashes(data, weights)
    assert {name for name in first if first[name] != second[name]} == {"weights"}


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x05\x00\x00\x00\x00\x00\x00\x00ab"])
def test_a_file_that_is_cut_has_a_fingerprint_and_is_refused_by_the_ranks(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "cut").write_bytes(content)
    assert input_hashes(tmp_path / "cut", None) != input_hashes(prepared(tmp_path / "a"), None)


@pytest.mark.parametrize(
    ("changed", "accuracies", "kept"),
    [
        ({"epochs": 4}, [0.1, 0.2], 2),
        ({"epochs": 4}, [0.1, 0.2, 0.3, 0.4], 3),
        ({"epochs": 4, "warmup_steps": 20}, [0.1, 0.2, 0.3, 0.4], 0),
        ({"epochs": 4, "warmup_steps": 20}, [0.1, 0.2], 2),
        ({"epochs": 9, "stop_at_accuracy": 0.3}, [0.1, 0.2, 0.3], 2),
        ({"epochs": 9, "stop_at_accuracy": 0.3, "stop_patience_epochs": 2}, [0.1, 0.2, 0.3], 3),
        ({"epochs": 9, "stop_at_accuracy": 0.3, "warmup_steps": 20}, [0.1, 0.2], 0),
    ],
)
def test_a_start_resumes_where_enough_steps_follow_to_be_measured(
    tmp_path: Path, changed: dict[str, Any], accuracies: list[float], kept: int
) -> None:
    run = definition_of(Settings(**{**SMALL_EPOCHS, **changed}))  # 22 steps an epoch
    rows = [{"train_seconds": 2.0, "evaluation_seconds": 1.0, "test_accuracy": each} for each in accuracies]
    for epochs in (len(rows) - 1, len(rows)):
        folder = tmp_path / "checkpoints" / f"epoch-{epochs:06d}"
        folder.mkdir(parents=True)
        written = json.dumps({"rows": rows[:epochs], "sha256": {}})
        (folder / "training.json").write_text(written, encoding="utf-8")
    leave_enough_to_measure(tmp_path, run)
    assert saved_training(tmp_path, run) == SavedTraining(22 * kept, 3.0 * kept)
