"""One run from its lock to its record, with real processes in place of the ranks' program."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.paths import SCRIPTS
from tests.planted_records import leave_failure, provenance, run_record
from tests.small_runs import definition, definition_of, job_of, rank_setup, site_of

from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.config.site import Container, Site
from scalewise.config.slurm import Slurm
from scalewise.execution import job as jobs
from scalewise.execution import lock
from scalewise.execution.job import RunJob, launch_of, run_train_job, train
from scalewise.execution.lock import LockError
from scalewise.execution.rank_files import ATTEMPT, RankFiles
from scalewise.execution.run_folder import (
    OUTPUT,
    SHOWN_BYTES,
    failure_to_repeat,
    input_hashes,
    prepare_to_train,
    saved_epochs,
)
from scalewise.execution.start import RankProcesses
from scalewise.plan.launch import Launch
from scalewise.plan.run_definition import RunDefinition
from scalewise.records import FAILURE, RECORD, Failure, read_failure, read_run, write_json

PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
from scalewise.execution.rank_files import RankFiles
attempt = RankFiles(Path(sys.argv[1]))
attempt.setup
"""
RUN = definition(2).model_copy(update={"settings": ProgramSettings(program=__file__)})
RESUMING = RUN.model_copy(update={"settings": ProgramSettings(program=__file__, resumes=True)})
SLURM, HERE = site_of(Slurm()), site_of()


class OneRun:
    """A run whose ranks are a small program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        monkeypatch.setenv("SCALEWISE_MACHINE_LOCK", str(folder))
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        self.output, self.log = folder / OUTPUT, folder / "job.log"
        self.argv: tuple[str, ...] = ()

    def job(
        self, run: RunDefinition = RUN, attempt: int = 1, site: Site = HERE, folder: Path | None = None
    ) -> RunJob:
        planned = job_of(run, limit_seconds=60.0)
        return RunJob(planned, site, attempt, folder or self.folder, self.log)

    def train(self, program: str, job: RunJob | None = None) -> Failure | None:
        self.argv = (sys.executable, "-c", PREAMBLE + program, str(self.folder / ATTEMPT))
        launch = Launch(self.argv, ({"PYTHONPATH": str(SCRIPTS)},), shown=(sys.executable,))
        self._monkeypatch.setattr(jobs, "launch_of", lambda _job: launch)
        return train(job or self.job())

    def fails(self, program: str, job: RunJob | None = None) -> Failure:
        failure = self.train(program, job)
        assert failure is not None
        assert failure == read_failure(self.folder)
        return failure

    def run(self, program: str, job: RunJob) -> Failure:
        """Run the whole job, whose ranks fail."""
        self._monkeypatch.setattr(jobs, "train", partial(self.train, program))
        self._monkeypatch.setattr(signal, "signal", lambda *_arguments: signal.SIG_DFL)
        assert run_train_job(job) == 1
        failure = read_failure(self.folder)
        assert failure is not None
        return failure


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneRun:
    return OneRun(tmp_path, monkeypatch)


OUT_OF_MEMORY = """
for rank in (0, 1):
    attempt.mark(rank, "running", host="node-a")
attempt.mark(0, "failed", error="RuntimeError: Connection closed by peer")
attempt.mark(1, "failed", error="MemoryError: tried to allocate 3 GiB\\nmore lines", out_of_memory=True)
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
    assert left == {RECORD, OUTPUT, "program"}


def test_a_launcher_that_fails_is_shown_and_the_failure_says_all_that_a_next_try_needs(
    one: OneRun, capsys: pytest.CaptureFixture[str]
) -> None:
    one.output.write_text("what happened before\n", encoding="utf-8")
    leave_failure(one.folder, RUN, "failed", "x", inputs=input_hashes(RUN, None))
    failure = one.run("sys.exit('no such module')", one.job(attempt=2))
    assert (failure.outcome, failure.permanent) == ("failed", False)
    assert (failure.definition, failure.inputs) == (RUN, input_hashes(RUN, None))
    assert 0 < failure.seconds < 60 == failure.limit_seconds
    assert failure.output[-1] == "no such module"
    shown = capsys.readouterr().err
    assert "study/d2.r1 failed: no rank started, and the launcher exited with code 1" in shown
    assert "no such module" in shown
    # an earlier try stays readable
    assert "what happened before" in one.output.read_text(encoding="utf-8")
    assert one.log.read_text(encoding="utf-8").startswith("failed: no rank started")


LOUD = """
attempt.mark(0, "running", host="node-a")
for number in range(100_000):
    print(f"\\x1b[2J{number} \\x07", flush=number % 1000 == 0)
sys.stdout.flush()
os.write(1, b"\\xff\\xfe not text\\n")
print("\\r 10%\\r 20%", flush=True)
attempt.mark(0, "failed", error="ValueError: \\x1b]0;title\\x07" + "x" * 2_000_000)
sys.exit(1)
"""


def test_a_terminal_gets_a_bounded_and_printable_part_and_the_next_start_adds_to_the_whole_log(
    one: OneRun, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = one.run(LOUD, one.job())
    shown = [capsys.readouterr().err, failure.reason, "\n".join(failure.output), one.log.read_text()]
    assert [text for text in shown if set(text) & {"\x1b", "\x07", "\r"}] == []
    assert max(map(len, shown)) < 4 * SHOWN_BYTES
    one.train(OUT_OF_MEMORY)
    assert one.output.read_bytes().count(b"\x07") == 100_000


class Closed(io.StringIO):
    """A pipe to ``tee``, which Ctrl-C has ended."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.fault(14)
def test_a_terminal_that_is_gone_costs_neither_the_reason_nor_the_log(
    one: OneRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    assert "no rank started" in one.run("sys.exit(1)", one.job()).reason
    assert one.log.read_text(encoding="utf-8").startswith("failed: no rank started")


@pytest.mark.fault(15)
def test_a_run_whose_result_another_job_has_left_is_not_trained(one: OneRun) -> None:
    origin = provenance(RUN, inputs=input_hashes(RUN, None))
    write_json(one.folder / RECORD, run_record(RUN, provenance=origin))
    before = (one.folder / RECORD).read_bytes()
    one.train("Path(sys.argv[1]).parent.joinpath('trained').touch()")
    assert (one.folder / RECORD).read_bytes() == before
    other = RUN.model_copy(update={"global_batch_size": 99})
    assert "no rank started" in one.fails("sys.exit(1)", one.job(other)).reason


TAKEN = """
attempt.mark(0, "running", host="node-a")
RankFiles(attempt.folder).begin(attempt.setup.model_copy(update={"supervisor_host": "other"}))
%s
"""


@pytest.mark.parametrize("then", ["time.sleep(600)", "sys.exit(1)"])
def test_ranks_whose_run_another_job_has_taken_are_ended_and_its_files_are_not_touched(
    then: str, one: OneRun
) -> None:
    """Its processes lived on while Slurm had given up its node, and its file system stalled."""
    with pytest.raises(LockError, match="another job has taken over this run"):
        one.train(TAKEN % then)
    assert not (one.folder / FAILURE).exists()
    assert RankFiles(one.folder / ATTEMPT).setup.supervisor_host == "other"


def test_ranks_of_an_earlier_job_write_nothing_once_another_has_the_folder(tmp_path: Path) -> None:
    RankFiles(tmp_path).begin(rank_setup())
    earlier = RankFiles(tmp_path)
    earlier.mark(0, "running", host="node-a")
    RankFiles(tmp_path).begin(rank_setup(supervisor_host="other"))
    for write in (partial(earlier.mark, 0, "failed"), partial(earlier.request_stop, "x")):
        with pytest.raises(OSError, match="another job has it"):
            write()
    assert {path.name for path in tmp_path.iterdir()} == {"rank_setup.json"}


# --- what is resumed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "then", "resumes"),
    [
        pytest.param(RESUMING, "nothing", True, id="cut off"),
        pytest.param(RUN, "nothing", False, id="a program that does not resume"),
        pytest.param(RESUMING, "other settings", False, id="other settings"),
    ],
)
def test_a_program_resumes_from_the_files_of_this_very_run_that_has_no_result(
    run: RunDefinition, then: str, resumes: bool, one: OneRun
) -> None:
    save = "(attempt.folder.parent / 'program' / 'saved').touch()\nsys.exit(1)"
    one.fails(save, one.job(run))
    if then == "other settings":
        run = run.model_copy(update={"repeat": 2})
    one.fails("sys.exit(1)", one.job(run))
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
        ({"epochs": 9, "stop_at_accuracy": 0.3, "stop_patience_epochs": 2}, [0.1, 0.2, 0.3], 2),
        ({"epochs": 9, "stop_at_accuracy": 0.3, "warmup_steps": 20}, [0.1, 0.2], 0),
    ],
)
def test_a_start_resumes_where_enough_steps_follow_to_be_measured(
    tmp_path: Path, changed: dict[str, Any], accuracies: list[float], kept: int
) -> None:
    run = definition_of(Settings(**{**SMALL_EPOCHS, **changed}))  # 22 steps an epoch
    for epochs in (len(accuracies) - 1, len(accuracies)):
        save(tmp_path, epochs, accuracies)
    assert len(prepare_to_train(tmp_path, run, resumes=True)) == kept
    assert len(saved_epochs(tmp_path, run)) == kept


# --- the end of a job's time ------------------------------------------------------------------------------

STOPPED = "attempt.mark(0, 'running', host='node-a')\n%sattempt.mark(0, 'stopped', stop_source='%s')\n"
STEP = "attempt.probe.mkdir()\n(attempt.probe / '0.1.steps').write_text('3')\n"


@pytest.mark.fault(12)
@pytest.mark.parametrize(
    ("run", "program", "site", "spent", "outcome", "goes_back"),
    [
        pytest.param(RESUMING, STOPPED % (STEP, "SIGUSR1"), SLURM, 1, "interrupted", True, id="saved"),
        pytest.param(RESUMING, STOPPED % (STEP, "SIGUSR1"), SLURM, 60, "failed", False, id="no time left"),
        pytest.param(RESUMING, STOPPED % ("", "SIGUSR1"), SLURM, 1, "failed", False, id="nothing saved"),
        pytest.param(RUN, STOPPED % (STEP, "SIGUSR1"), SLURM, 1, "failed", False, id="never saves"),
        pytest.param(RESUMING, STOPPED % (STEP, "SIGTERM"), SLURM, 1, "interrupted", False, id="cancelled"),
        pytest.param(RESUMING, STOPPED % (STEP, "SIGUSR1"), HERE, 1, "interrupted", False, id="no Slurm"),
    ],
)
def test_only_a_run_that_the_end_of_its_job_ended_and_that_came_further_goes_back_into_the_queue(
    run: RunDefinition,
    program: str,
    site: Site,
    spent: float,
    outcome: str,
    goes_back: bool,
    one: OneRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(lock, "wait_for_earlier_job", lambda *_arguments: "")
    monkeypatch.setattr(jobs, "SIGNAL_SPREAD_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "requeue", lambda job: f"Slurm job {job} is CANCELLED")
    leave_failure(one.folder, run, "interrupted", "x", inputs=input_hashes(run, None), seconds=spent)
    failure = one.fails(program, one.job(run, site=site))
    assert (failure.outcome, failure.permanent) == (outcome, outcome == "failed")
    log = one.log.read_text(encoding="utf-8") if one.log.exists() else ""
    assert ("it does not go back: Slurm job 7 is CANCELLED" in log) == goes_back


# --- whether another try can help -------------------------------------------------------------------------


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
    leave_failure(tmp_path, RUN, "failed", "why", seconds=550.0, inputs=hashes, ended_at="2026-01-02")
    job = job_of(RUN, limit_over_tries=True)
    assert failure_to_repeat(job, tmp_path, attempt=1) is None
    assert failure_to_repeat(job, tmp_path, attempt=2, began="2026-01-03") is None, "of an earlier command"
    failure = failure_to_repeat(job, tmp_path, attempt=2, began="2026-01-01")
    assert failure is not None
    assert "the 600 s that the budget counts for it. The last one: why" in failure.reason


# --- processes and their surroundings ---------------------------------------------------------------------


def test_ranks_are_not_the_task_of_the_interactive_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = [
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    ]
    for name in task:
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    seen, srun = tmp_path / "seen", tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\nenv > {seen}\n", encoding="utf-8")
    srun.chmod(0o755)
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        assert RankProcesses(Launch((str(srun),), ({"OURS": "1"},), ()), log).wait(60) == 0
    environment = dict(line.partition("=")[::2] for line in seen.read_text(encoding="utf-8").splitlines())
    assert (environment["SLURM_JOB_ID"], environment["OURS"]) == ("4711", "1")
    assert not set(task) & set(environment)


def test_a_container_sees_a_run_whose_results_lie_behind_a_link(one: OneRun) -> None:
    (one.folder / "scratch").mkdir()
    (one.folder / "results").symlink_to(one.folder / "scratch")
    site = site_of(Slurm(), container=Container(image="a.sif", runtime="apptainer"))
    job = one.job(site=site, folder=one.folder / "results")
    assert f"--bind={one.folder / 'scratch'}" in launch_of(job).argv


@pytest.mark.parametrize("state", ["trains", "has died", "is on another host", "has left nothing"])
def test_a_run_is_training_while_its_job_is_a_process_of_this_machine(state: str, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "0" if state == "has died" else "600"]) as job:
        host = "node-a" if state == "is on another host" else socket.gethostname()
        if state != "has left nothing":
            setup = rank_setup(tmp_path, supervisor_host=host, supervisor_pid=job.pid)
            RankFiles(tmp_path).begin(setup)
        if state == "has died":
            os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOWAIT)
        assert RankFiles(tmp_path).is_training == (state == "trains")
        job.kill()


# --- inputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1_000_001])
def test_prepared_files_count_by_their_beginning_which_holds_a_checksum(size: int, tmp_path: Path) -> None:
    dataset, copy = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    dataset.write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(size))
    copy.write_bytes(dataset.read_bytes())
    os.utime(copy, (1, 1))
    assert input_hashes(definition(), dataset) == input_hashes(definition(), copy)
    copy.write_bytes((2).to_bytes(8, "little") + b"[]" + bytes(size))
    assert input_hashes(definition(), dataset) != input_hashes(definition(), copy)


@pytest.mark.parametrize(("size", "by_content"), [(1_000_000, True), (1_000_001, False)])
def test_small_files_of_a_program_count_by_content_and_large_files_and_folders_by_names_sizes_and_times(
    size: int, by_content: bool, tmp_path: Path
) -> None:
    script, data, folder = (tmp_path / name for name in ("train.py", "data", "folder"))
    folder.mkdir()
    for path in (script, data, folder / "image"):
        path.write_bytes(bytes(size))
        os.utime(path, (1, 1))

    def hashes(path: Path) -> dict[str, str]:
        settings = ProgramSettings(program=str(script), files=[str(path)])
        return input_hashes(definition().model_copy(update={"settings": settings}), None)

    before, of_folder = hashes(data), hashes(folder)
    assert before.keys() == {"program", "files"}
    for path in (data, folder / "image"):
        os.utime(path, (2, 2))
    assert (hashes(data) == before) is by_content
    assert hashes(folder) != of_folder
    data.write_bytes(bytes(size - 1) + b"x")
    os.utime(data, (1, 1))
    assert (hashes(data) != before) is by_content
