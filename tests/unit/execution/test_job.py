"""One run from its lock to its record, with real processes in place of the ranks' program."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.paths import SCRIPTS
from tests.planted_records import leave_failure, provenance, run_record
from tests.small_runs import LIMITS, definition, definition_of, rank_setup
from tests.waiting import wait_until

from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.config.shape import Shape
from scalewise.config.site import Container
from scalewise.execution import job as jobs
from scalewise.execution.inputs import input_hashes
from scalewise.execution.job import RunFailedError, RunJob, is_unfinished, launch_of, run_train_job, train
from scalewise.execution.log import OUTPUT, SHOWN_BYTES
from scalewise.execution.next_try import failure_to_repeat
from scalewise.execution.rank_files import ATTEMPT, RankFiles, TrainSpec
from scalewise.execution.saved import Saved, prepare_to_train, remove_after_training, saved_training
from scalewise.execution.start import RankProcesses
from scalewise.execution.watchdog import RunTakenError
from scalewise.plan.launch import Launch, SiteLaunch, rank_environment
from scalewise.plan.plan_file import TrainJob
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import (
    EPOCHS,
    FAILURE,
    RANKS,
    RECORD,
    UTILIZATION,
    read_failure,
    read_run,
    write_json,
)

PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
from scalewise.execution.rank_files import Progress, RankFiles
attempt = RankFiles.join(Path(sys.argv[1]))
"""
RUN = definition(2).model_copy(update={"settings": ProgramSettings(program=__file__)})
RESUMING = RUN.model_copy(update={"settings": ProgramSettings(program=__file__, resumes=True)})
SLURM, HERE = SiteLaunch(slurm=True), SiteLaunch()


class OneRun:
    """A run whose ranks are a small program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        monkeypatch.setenv("SCALEWISE_MACHINE_LOCK", str(folder))
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        self.output, self.log = folder / OUTPUT, folder / "job.log"
        self.argv: tuple[str, ...] = ()

    def job(self, run: RunDefinition = RUN, attempt: int = 1, **limits: Any) -> RunJob:
        given = replace(LIMITS, limit_seconds=60.0)
        return RunJob(run, None, self.log, replace(given, **limits), attempt, self.folder / RECORD)

    def train(self, program: str, job: RunJob | None = None, site: SiteLaunch | None = None) -> None:
        self.argv = (sys.executable, "-c", PREAMBLE + program, str(self.folder / ATTEMPT))
        environment = {"PYTHONPATH": str(SCRIPTS)}
        launch = Launch("torchrun", self.argv, environment, shown=(sys.executable,))
        self._monkeypatch.setattr(jobs, "launch_of", lambda *_arguments: launch)
        train(job or self.job(), site or SiteLaunch())

    def fails(
        self, program: str, job: RunJob | None = None, site: SiteLaunch | None = None
    ) -> RunFailedError:
        with pytest.raises(RunFailedError) as failed:
            self.train(program, job, site)
        return failed.value

    def write_result(self, run: RunDefinition = RUN) -> None:
        inputs = input_hashes(run, None)
        write_json(self.folder / RECORD, run_record(run, provenance=provenance(run, inputs=inputs)))


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneRun:
    return OneRun(tmp_path, monkeypatch)


OUT_OF_MEMORY = """
for rank in (0, 1):
    attempt.started(rank, "node-a")
attempt.failed(0, "node-a", "RuntimeError: Connection closed by peer")
attempt.failed(1, "node-a", "MemoryError: tried to allocate 3 GiB\\nmore lines", out_of_memory=True)
sys.exit(1)
"""


def test_running_out_of_device_memory_is_a_result_and_leaves_no_earlier_failure(one: OneRun) -> None:
    leave_failure(one.folder, RUN, "failed", "x", inputs=input_hashes(RUN, None), seconds=100.0)
    one.train(OUT_OF_MEMORY)
    record = read_run(one.folder)
    assert (record.outcome, record.measurements) == ("out-of-memory", None)
    assert record.reason == "rank 1 on node-a: MemoryError: tried to allocate 3 GiB"
    # it is paid, with the tries before it
    assert record.provenance is not None
    assert record.provenance.failed_seconds == 100.0
    assert record.provenance.ended_at > record.provenance.started_at
    left = {path.name for path in one.folder.iterdir()}
    assert left == {RECORD, EPOCHS, RANKS, UTILIZATION, OUTPUT, "program"}


def test_a_launcher_that_fails_is_shown_and_the_failure_says_all_that_a_next_try_needs(
    one: OneRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one.output.write_text("what happened before\n", encoding="utf-8")
    leave_failure(one.folder, RUN, "failed", "x", inputs=input_hashes(RUN, None))
    monkeypatch.setattr(jobs, "train", lambda job, site: one.train("sys.exit('no such module')", job, site))
    monkeypatch.setattr(signal, "signal", lambda *_arguments: signal.SIG_DFL)
    assert run_train_job(one.job(attempt=2), SiteLaunch()) == 1
    failure = read_failure(one.folder)
    assert failure is not None
    assert (failure.outcome, failure.attempt, failure.permanent) == ("failed", 2, False)
    assert (failure.definition, failure.inputs) == (RUN, input_hashes(RUN, None))
    assert 0 < failure.command_seconds == failure.seconds < 60 == failure.limit_seconds
    assert failure.log_tail[-1] == "no such module"
    shown = capsys.readouterr().err
    assert "study/d2.r1 failed: no rank started, and the launcher exited with code 1" in shown
    assert "no such module" in shown
    # an earlier try stays readable
    assert "what happened before" in one.output.read_text(encoding="utf-8")
    assert one.log.read_text(encoding="utf-8").startswith("failed: no rank started")


LOUD = """
attempt.started(0, "node-a")
for number in range(100_000):
    print(f"\\x1b[2J{number} \\x07", flush=number % 1000 == 0)
sys.stdout.flush()
os.write(1, b"\\xff\\xfe not text\\n")
print("\\r 10%\\r 20%", flush=True)
attempt.failed(0, "node-a", "ValueError: \\x1b]0;title\\x07" + "x" * 2_000_000)
sys.exit(1)
"""


def test_a_terminal_gets_a_bounded_and_printable_part_and_the_next_start_adds_to_the_whole_log(
    one: OneRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "train", lambda job, site: one.train(LOUD, job, site))
    monkeypatch.setattr(signal, "signal", lambda *_arguments: signal.SIG_DFL)
    assert run_train_job(one.job(), SiteLaunch()) == 1
    failure = read_failure(one.folder)
    assert failure is not None
    shown = [capsys.readouterr().err, failure.reason, failure.traceback, one.log.read_text()]
    assert [text for text in shown if set(text) & {"\x1b", "\x07", "\r"}] == []
    assert max(map(len, shown)) < 4 * SHOWN_BYTES
    one.train(OUT_OF_MEMORY)
    assert one.output.read_bytes().count(b"\x07") == 100_000


def test_of_ranks_without_a_launcher_between_one_that_exits_takes_the_others_along(
    one: OneRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        PREAMBLE
        + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a rank that waits inside NCCL
rank = int(os.environ["RANK"])
attempt.started(rank, "node-a")
if rank == 1:
    sys.exit(3)
time.sleep(1000)
"""
    )
    launch = Launch(
        "popen",
        (sys.executable, "-c", program, str(one.folder / ATTEMPT)),
        {"PYTHONPATH": str(SCRIPTS)},
        tuple(rank_environment(local_rank, Shape(1, 2)) for local_rank in range(2)),
    )
    monkeypatch.setattr(jobs, "launch_of", lambda *_arguments: launch)
    with pytest.raises(RunFailedError, match=r"rank 1 on node-a .* ended without an error message"):
        train(one.job(), SiteLaunch())
    for path in (one.folder / ATTEMPT).glob("rank?.json"):
        assert not psutil.pid_exists(json.loads(path.read_text(encoding="utf-8"))["pid"])


@pytest.mark.fault(15)
def test_a_run_whose_result_another_job_has_left_is_not_trained(one: OneRun) -> None:
    one.write_result()
    before = (one.folder / RECORD).read_bytes()
    one.train("Path(sys.argv[1]).parent.joinpath('trained').touch()")
    assert (one.folder / RECORD).read_bytes() == before
    other = RUN.model_copy(update={"global_batch_size": 99})
    assert "no rank started" in one.fails("sys.exit(1)", one.job(other)).failure.reason


TAKEN = """
attempt.started(0, "node-a")
RankFiles(attempt.folder, "other").begin(attempt.rank_setup())
%s
"""


@pytest.mark.parametrize("then", ["time.sleep(600)", "sys.exit(1)"])
def test_ranks_whose_run_another_job_has_taken_are_ended_and_its_files_are_not_touched(
    then: str, one: OneRun
) -> None:
    """Its processes lived on while Slurm had given up its node, and its file system stalled."""
    with pytest.raises(RunTakenError, match="another job has taken over this run"):
        one.train(TAKEN % then)
    assert not (one.folder / FAILURE).exists()
    assert RankFiles.join(one.folder / ATTEMPT).token == "other"


def test_a_signal_to_the_job_ends_its_ranks(one: OneRun) -> None:
    program = "attempt.started(0, 'node-a')\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(600)"
    failure = one.fails(program).failure
    assert (failure.outcome, failure.permanent) == ("interrupted", False)
    assert "ended by SIGTERM" in failure.reason


# --- what is resumed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "then", "resumes"),
    [
        pytest.param(RESUMING, "nothing", True, id="cut off"),
        pytest.param(RUN, "nothing", False, id="a program that does not resume"),
        pytest.param(RESUMING, "other settings", False, id="other settings"),
        pytest.param(RESUMING, "result", False, id="forced after a result"),
    ],
)
def test_a_program_resumes_from_the_files_of_this_very_run_that_has_no_result(
    run: RunDefinition, then: str, resumes: bool, one: OneRun
) -> None:
    save = "(attempt.folder.parent / 'program' / 'saved').touch()\nsys.exit(1)"
    one.fails(save, one.job(run))
    if then == "other settings":
        run = run.model_copy(update={"repeat": 2})
    if then == "result":  # Snakemake deletes only the record
        (one.folder / RANKS).touch()
    job = one.job(run)
    inputs = input_hashes(run, None)
    assert is_unfinished(job, RankFiles(one.folder / ATTEMPT), inputs) == resumes
    one.fails("sys.exit(1)", job)
    assert (one.folder / "program" / "saved").exists() == resumes


SMALL_EPOCHS: dict[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 64,
    "warmup_steps": 2,
}


def save(folder: Path, epochs: int, accuracies: list[float]) -> None:
    """Leave a checkpoint of train.py."""
    rows = [{"train_seconds": 2.0, "evaluation_seconds": 1.0, "test_accuracy": each} for each in accuracies]
    checkpoint = folder / "program" / "checkpoints" / f"epoch-{epochs:06d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "training.json").write_text(json.dumps({"rows": rows[:epochs]}), encoding="utf-8")


@pytest.mark.parametrize(
    ("changed", "accuracies", "kept"),
    [
        ({"epochs": 4}, [0.1, 0.2], 2),
        ({"epochs": 4}, [0.1, 0.2, 0.3, 0.4], 3),
        ({"epochs": 4, "warmup_steps": 20}, [0.1, 0.2, 0.3, 0.4], 0),
        ({"epochs": 9, "stop_at_accuracy": 0.3}, [0.1, 0.2, 0.3], 2),
        ({"epochs": 9, "stop_at_accuracy": 0.3, "stop_patience_epochs": 2}, [0.1, 0.2, 0.3], 3),
        ({"epochs": 9, "stop_at_accuracy": 0.3, "warmup_steps": 20}, [0.1, 0.2], 0),
    ],
)
def test_a_start_resumes_where_enough_steps_follow_to_be_measured(
    tmp_path: Path, changed: dict[str, Any], accuracies: list[float], kept: int
) -> None:
    run = definition_of(Settings(**{**SMALL_EPOCHS, **changed}))  # 22 steps an epoch
    for epochs in (len(accuracies) - 1, len(accuracies)):
        save(tmp_path, epochs, accuracies)
    prepare_to_train(tmp_path, run, resumes=True)
    assert saved_training(tmp_path, run) == Saved(22 * kept, 3.0 * kept)


def test_checkpoints_of_a_result_are_removed(tmp_path: Path) -> None:
    run = definition_of(Settings(**SMALL_EPOCHS))
    save(tmp_path, 3, [0.1, 0.2, 0.3])
    remove_after_training(tmp_path, run)
    assert not (tmp_path / "program").exists()
    assert saved_training(tmp_path, run) == Saved()


# --- the end of a job's time ------------------------------------------------------------------------------

STOPPED = "attempt.started(0, 'node-a')\n%sattempt.stopped(0, '%s')\n"
STEP = "attempt.progress(Progress(epoch=0, epochs=0, step=3))\n"


@pytest.mark.fault(12)
@pytest.mark.parametrize(
    ("run", "program", "site", "outcome", "requeue"),
    [
        pytest.param(RESUMING, STOPPED % (STEP, "SIGUSR1"), SLURM, "interrupted", True, id="saved"),
        pytest.param(RESUMING, STOPPED % ("", "SIGUSR1"), SLURM, "timed-out", False, id="nothing saved"),
        pytest.param(RUN, STOPPED % (STEP, "SIGUSR1"), SLURM, "timed-out", False, id="never saves"),
        pytest.param(RESUMING, STOPPED % (STEP, "SIGTERM"), SLURM, "interrupted", False, id="cancelled"),
        pytest.param(
            RESUMING, STOPPED % (STEP, "SIGUSR1"), SiteLaunch(), "interrupted", False, id="no Slurm"
        ),
    ],
)
def test_only_a_run_that_the_end_of_its_job_ended_and_that_came_further_goes_back_into_the_queue(
    run: RunDefinition, program: str, site: SiteLaunch, outcome: str, requeue: bool, one: OneRun
) -> None:
    error = one.fails(program, one.job(run), site)
    assert (error.failure.outcome, error.requeue) == (outcome, requeue)
    assert error.failure.permanent == (outcome == "timed-out")


def test_a_program_that_says_it_resumes_goes_back_only_within_the_limit_of_the_run(
    one: OneRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "10000")
    monkeypatch.setattr(jobs, "requeue", lambda _job: pytest.fail("it goes back"))
    assert not one.fails(STOPPED % (STEP, "SIGUSR1"), one.job(RESUMING), SLURM).requeue


def test_why_a_job_was_not_put_back_stands_in_the_log(one: OneRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(jobs, "SIGNAL_SPREAD_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "requeue", lambda _job: "Slurm job 7 is CANCELLED")
    jobs.requeue_job(one.job())
    assert "Slurm job 7 is CANCELLED" in one.log.read_text(encoding="utf-8")


# --- whether another try can help -------------------------------------------------------------------------


def job_of(run: RunDefinition, **limits: Any) -> TrainJob:
    """The job of a run of ten minutes."""
    usual = {"limit_seconds": 600.0, "timeout_seconds": 60}
    return TrainJob(
        site="",
        threads=1,
        resources={},
        limits=usual | limits,
        definition=run.as_json(),
        inputs={},
        priority=0,
    )


@pytest.mark.fault(17)
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
    script = tmp_path / "train.py"
    script.write_text("import torch\n", encoding="utf-8")
    run = definition(2).model_copy(update={"settings": ProgramSettings(program=str(script))})
    folder = tmp_path / "run"
    assert failure_to_repeat(job_of(run), folder, attempt) is None, "never started"
    inputs = input_hashes(run, None)
    leave_failure(folder, run, outcome, "why", permanent=permanent, inputs=inputs)

    failure = failure_to_repeat(job_of(run, limit_seconds=limit), folder, attempt)
    assert (failure is not None) == (attempt in refused)
    script.write_text("import torch  # fixed\n", encoding="utf-8")
    assert failure_to_repeat(job_of(run), folder, attempt) is None, "another program"
    (folder / FAILURE).write_text("{", encoding="utf-8")
    assert failure_to_repeat(job_of(run), folder, attempt) is None, "damaged"


def test_what_a_budget_has_left_for_another_try_is_known_before_a_job_is_submitted(tmp_path: Path) -> None:
    hashes = input_hashes(RUN, None)
    leave_failure(tmp_path, RUN, "failed", "why", seconds=550.0, inputs=hashes)
    assert failure_to_repeat(job_of(RUN, limit_over_tries=True), tmp_path, attempt=2) is None, "long ago"
    leave_failure(tmp_path, RUN, "failed", "why", seconds=900.0, command_seconds=550.0, inputs=hashes)
    job = job_of(RUN, limit_over_tries=True)
    assert failure_to_repeat(job, tmp_path, attempt=1) is None
    failure = failure_to_repeat(job, tmp_path, attempt=2)
    assert failure is not None
    assert "the 600 s that the budget counts for it. The last one: why" in failure.reason


# --- processes and their surroundings ---------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["popen", "srun"])
def test_ranks_are_not_the_task_of_the_interactive_session(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID")
    for name in task:
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    seen, srun = tmp_path / "seen", tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\nenv > {seen}\n", encoding="utf-8")
    srun.chmod(0o755)
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        assert RankProcesses(Launch(launcher, (str(srun),), {"OURS": "1"}), log).wait(60) == 0
    environment = dict(line.partition("=")[::2] for line in seen.read_text(encoding="utf-8").splitlines())
    assert (environment["SLURM_JOB_ID"], environment["OURS"]) == ("4711", "1")
    assert not set(task) & set(environment)


def test_a_container_sees_a_run_whose_results_lie_behind_a_link(one: OneRun) -> None:
    (one.folder / "scratch").mkdir()
    (one.folder / "results").symlink_to(one.folder / "scratch")
    site = SiteLaunch(slurm=True, container=Container(image="a.sif", runtime="apptainer"))
    rank_files = RankFiles(one.folder / "results" / ATTEMPT)
    assert f"--bind={one.folder / 'scratch'}" in launch_of(one.job(), site, rank_files).argv


def test_ranks_of_an_earlier_job_write_nothing_once_another_has_the_folder(tmp_path: Path) -> None:
    earlier, later = (RankFiles(tmp_path, token) for token in ("a", "b"))
    earlier.begin(rank_setup())
    joined = RankFiles.join(tmp_path)
    joined.started(0, "node-a")
    (tmp_path / "probe").mkdir()
    later.begin(rank_setup(training=TrainSpec(definition=RUN, dataset=None, folder=tmp_path, started_at="")))
    assert {path.name for path in tmp_path.iterdir()} == {"rank_setup.json"}
    writes: list[Callable[[], None]] = [
        partial(joined.started, 0, "node-a"),
        partial(joined.request_stop, "x"),
        joined.check_current,
    ]
    for write in writes:
        with pytest.raises(OSError, match="another job has it"):
            write()
    joined.end()
    assert later.unfinished() is not None
    later.end()
    assert not tmp_path.exists()


def test_a_killed_job_takes_its_ranks_along(start_python: Any, tmp_path: Path) -> None:
    rank = "from scalewise.ranks.program.child import exit_when_parent_dies; import time\n"
    rank += "exit_when_parent_dies(None, False); print('ready', flush=True); time.sleep(600)"
    parent = f"import subprocess, sys\nprocess = subprocess.Popen([sys.executable, '-c', {rank!r}])\n"
    process = start_python(parent + "print(process.pid, flush=True)\nprocess.wait()")
    lines = sorted(process.stdout.readline().strip() for _ in range(2))
    assert lines[1] == "ready"
    process.send_signal(signal.SIGKILL)

    def has_ended() -> bool:
        # whoever inherits it may not have taken note of its end yet
        try:
            return psutil.Process(int(lines[0])).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_until(has_ended, "the rank lives on")


# --- inputs -----------------------------------------------------------------------------------------------


def hashes(run: RunDefinition, **files: Path) -> Mapping[str, str]:
    return input_hashes(run, files.get("dataset"))


def test_prepared_files_count_by_their_header_and_a_programs_files_by_every_byte(tmp_path: Path) -> None:
    dataset, copy, script = (tmp_path / name for name in ("a.safetensors", "b.safetensors", "train.py"))
    dataset.write_bytes((2).to_bytes(8, "little") + b"{}" + b"data")
    copy.write_bytes(dataset.read_bytes())
    os.utime(copy, (1, 1))
    built_in = definition()
    assert hashes(built_in, dataset=dataset) == hashes(built_in, dataset=copy)
    copy.write_bytes((2).to_bytes(8, "little") + b"[]")
    assert hashes(built_in, dataset=dataset) != hashes(built_in, dataset=copy)

    script.write_text("import torch\n", encoding="utf-8")
    settings = ProgramSettings(program=str(script))
    own = definition().model_copy(update={"settings": settings})
    before = hashes(own)
    assert before.keys() == {"program"}
    os.utime(script, (1, 1))
    assert hashes(own) == before
    script.write_text("import torch  # changed\n", encoding="utf-8")
    assert hashes(own) != before


@pytest.mark.parametrize(("size", "by_content"), [(1_000_000, True), (1_000_001, False)])
def test_small_files_count_by_content_and_large_files_and_folders_by_names_sizes_and_times(
    size: int, by_content: bool, tmp_path: Path
) -> None:
    script, data, folder = (tmp_path / name for name in ("train.py", "data", "folder"))
    folder.mkdir()
    for path in (script, data, folder / "image"):
        path.write_bytes(bytes(size))
        os.utime(path, (1, 1))

    def digest(path: Path) -> str:
        settings = ProgramSettings(program=str(script), files=[str(path)])
        return hashes(definition().model_copy(update={"settings": settings}))["files"]

    before, of_folder = digest(data), digest(folder)
    for path in (data, folder / "image"):
        os.utime(path, (2, 2))
    assert (digest(data) == before) is by_content
    assert digest(folder) != of_folder
    data.write_bytes(bytes(size - 1) + b"x")
    os.utime(data, (1, 1))
    assert (digest(data) != before) is by_content
