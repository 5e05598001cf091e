"""How a run ends, with real processes in place of the ranks' program, and the sentence that explains it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from tests.paths import SCRIPTS
from tests.planted_records import leave_failure
from tests.small_runs import definition, rank_setup

from scalewise.config.shape import Shape
from scalewise.execution import run_lock
from scalewise.execution.failure_reason import failure_reason
from scalewise.execution.history import HistoryWriter, load_history
from scalewise.execution.messages import Progress, TrainSpec, is_out_of_memory
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.run import RunFailedError, resume_or_begin
from scalewise.execution.run_lock import LOCK, LockLostError, RunLock, lock_run
from scalewise.execution.run_log import SHOWN_BYTES, shorten_log
from scalewise.execution.supervisor import ExitStatus, RankGroup
from scalewise.execution.watchdog import Kept
from scalewise.plan.launch import Launch, rank_environment
from scalewise.records import (
    EPOCHS,
    HISTORY,
    LOG_TAIL_LINES,
    RANKS,
    RECORD,
    RECORD_LOG,
    RUN_RECORDS,
    SUMMARY,
    UTILIZATION,
    Start,
    read_failure,
    read_summary,
)

PREAMBLE = """
import sys
from pathlib import Path
from scalewise.execution.rank_files import RankFiles
attempt = RankFiles(Path(sys.argv[1]))
"""

OUT_OF_MEMORY = (
    PREAMBLE
    + """
for rank in (0, 1):
    attempt.started(rank, "node-a")
attempt.failed(0, "node-a", RuntimeError("Connection closed by peer"), False)
attempt.failed(1, "node-a", MemoryError("tried to allocate 3 GiB\\nmore lines"), True)
sys.exit(1)
"""
)


DEFINITION = definition(2, epochs=2)


def rank_group(
    folder: Path, program: str, limit_seconds: float = 60, world_size: int = 2, lock: RunLock | None = None
) -> RankGroup:
    rank_files = RankFiles(folder / "attempt")
    return RankGroup(
        label="study/d2.r1",
        rank_files=rank_files,
        launch=Launch(
            "torchrun",
            (sys.executable, "-c", program, str(rank_files.folder)),
            {"PYTHONPATH": str(SCRIPTS), "GREETING": "from the launch"},
            shown=(sys.executable,),
        ),
        world_size=world_size,
        log=folder / "train.log",
        limit_seconds=limit_seconds,
        lock=lock,
    )


def supervise(rank_group: RankGroup) -> None:
    setup = rank_setup(supervisor_host=socket.gethostname(), supervisor_pid=os.getpid())
    folder = rank_group.rank_files.folder.parent
    spec = TrainSpec(
        definition=DEFINITION,
        dataset=folder / "d.safetensors",
        folder=folder,
        started_at="2026-01-01T00:00:00+00:00",
    )
    earlier = load_history(folder, DEFINITION, {}, rank_group.rank_files)
    start = Start(started_at="2026-01-01T00:00:00+00:00", limit_seconds=rank_group.limit_seconds)
    history = HistoryWriter(folder, earlier, start)
    resume_or_begin(rank_group, setup, spec, history, keep_checkpoints=False)


def test_running_out_of_device_memory_is_a_result_with_a_reason(tmp_path: Path) -> None:
    leave_failure(tmp_path, DEFINITION, "failed", "of an earlier start")
    supervise(rank_group(tmp_path, OUT_OF_MEMORY))
    summary = read_summary(tmp_path)
    assert summary.outcome == "out-of-memory"
    assert summary.reason == "rank 1 on node-a: MemoryError: tried to allocate 3 GiB"
    assert summary.measurements is None
    assert {path.name for path in tmp_path.iterdir()} == {
        SUMMARY,
        HISTORY,
        *RUN_RECORDS,
        RECORD_LOG,
        "train.log",
    }
    for name in (EPOCHS, RANKS, UTILIZATION):
        assert len((tmp_path / name).read_text(encoding="utf-8").splitlines()) == 1


def test_where_no_rank_started_the_words_of_the_launcher_are_shown_and_the_reason_ends_the_log(
    tmp_path: Path,
) -> None:
    log = tmp_path / "train.log"
    log.write_text("what happened yesterday\n", encoding="utf-8")
    with pytest.raises(
        RunFailedError, match="no rank started, and the launcher exited with code 1"
    ) as failed:
        supervise(rank_group(tmp_path, "import sys; sys.exit('no such module')"))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.outcome == "failed"
    assert failure.log_tail[-1] == "no such module"
    assert "no such module" in str(failed.value)
    # Snakemake shows only the end of the log; an earlier attempt stays readable
    first, second, *_, last = log.read_text(encoding="utf-8").splitlines()
    assert first == "what happened yesterday"
    assert sys.executable in second
    assert "failed: no rank started, and the launcher exited with code 1." in last


RANK_1_EXITS = (
    PREAMBLE
    + """
import os, signal, socket, time
# as a rank does that waits for another one inside NCCL
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = int(os.environ["RANK"])
attempt.started(rank, socket.gethostname())
if rank == 1:
    sys.exit(3)
time.sleep(1000)
"""
)


def test_of_ranks_without_a_launcher_between_one_that_exits_takes_the_others_along(tmp_path: Path) -> None:
    started = rank_group(tmp_path, RANK_1_EXITS)
    both = tuple(rank_environment(local_rank, Shape(1, 2)) for local_rank in range(2))
    launch = replace(started.launch, name="popen", process_environments=both)
    alone = rf"failed: rank 1 on {socket.gethostname()} \(pid \d+\) ended without an error message"
    with pytest.raises(RunFailedError, match=alone) as failed:
        supervise(replace(started, launch=launch))
    assert failed.value.ended is not None
    assert failed.value.ended.code == 3
    for note in (tmp_path / "attempt").glob("rank?.json"):
        assert not psutil.pid_exists(json.loads(note.read_text(encoding="utf-8"))["pid"])


LOUD = (
    PREAMBLE
    + """
import os
attempt.started(0, "node-a")
for number in range(100_000):
    print(f"\\x1b[2J{number} \\x07", flush=number % 1000 == 0)
sys.stdout.flush()
os.write(1, b"\\xff\\xfe not text\\n")
print("\\r 10%\\r 20%", os.environ["GREETING"], flush=True)
attempt.failed(0, "node-a", ValueError("\\x1b]0;title\\x07" + "x" * 2_000_000), False)
sys.exit(1)
"""
)


def test_a_terminal_gets_a_bounded_and_printable_part_of_what_a_failed_run_printed(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError) as failed:
        supervise(rank_group(tmp_path, LOUD, world_size=1))
    log = tmp_path / "train.log"
    printed = log.read_bytes()
    shorten_log(log)
    failure = read_failure(tmp_path)
    assert failure is not None

    assert (tmp_path / RECORD_LOG).read_bytes() == printed
    assert len(failure.log_tail) == LOG_TAIL_LINES
    assert failure.log_tail[-1].endswith("from the launch")
    assert any(line.endswith("not text") for line in failure.log_tail)
    shown = [str(failed.value), failure.reason, failure.traceback, *failure.log_tail, log.read_text()]
    assert [text for text in shown if set(text) & {"\x1b", "\x07", "\r"}] == []
    assert max(map(len, shown)) < 4 * SHOWN_BYTES
    first, *lines = log.read_text().splitlines()
    assert first == f"The printable end of {len(printed):,} bytes. The whole log: {tmp_path}/{RECORD_LOG}"
    assert "failed: rank 0 on node-a" in "".join(lines)


def test_the_whole_log_of_a_run_keeps_every_start_that_failed_before_its_result(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    for start in range(2):
        long = f"import sys; print('of start {start}\\n' * {SHOWN_BYTES}); sys.exit(1)"
        with pytest.raises(RunFailedError):
            supervise(rank_group(tmp_path, long))
        shorten_log(log)
        assert log.read_text().startswith("The printable end of ")
    supervise(rank_group(tmp_path, OUT_OF_MEMORY))

    assert [log.read_text().count(f"of start {start}\n") for start in range(2)] == [SHOWN_BYTES] * 2
    assert "The printable end of " not in log.read_text()
    assert (tmp_path / RECORD_LOG).read_text() == log.read_text()


def test_a_short_and_printable_log_stays_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("epoch 1\n\ttrain loss 0.3 µs\n")
    shorten_log(log)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "train.log": "epoch 1\n\ttrain loss 0.3 µs\n"
    }


TAKEN = (
    PREAMBLE
    + """
import time
attempt.started(0, "node-a")
attempt.started(1, "node-a")
run = attempt.folder.parent
(attempt.folder / "of the other").touch()
(run / "train.log").unlink()
next((run / "lock").iterdir()).unlink()
(run / "lock" / "other").write_text(
    '{"token": "other", "host": "node-b", "pid": 1, "job": "7", "restart": 1}'
)
%s
"""
)


@pytest.mark.parametrize(
    "then", ["time.sleep(600)", "sys.exit(1)", "(attempt.folder.parent / 'record.json').touch()"]
)
def test_ranks_whose_run_another_has_taken_are_ended_and_nothing_of_the_others_is_touched(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes lived on while Slurm had given up its node, and its file system stalled."""
    if "sleep" in then:  # where the ranks end by themselves, it is found before anything is written
        monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.1)
    with (
        pytest.raises(
            LockLostError, match=r"study/d2\.r1: Slurm job 7 on node-b has taken over this run"
        ) as taken,
        lock_run(tmp_path, 0, lambda text: None) as lock,
    ):
        supervise(rank_group(tmp_path, TAKEN % then, lock=lock))
    assert "its file system stalled, or it was suspended" in str(taken.value)
    left = {path.name for path in tmp_path.iterdir()} - {RECORD}
    assert left == {"attempt", LOCK, HISTORY}
    assert (tmp_path / "attempt" / "of the other").exists()
    assert "node-b" in (tmp_path / LOCK / "other").read_text(encoding="utf-8")


def test_a_folder_that_was_removed_under_the_ranks_is_what_failed(tmp_path: Path) -> None:
    program = PREAMBLE + "import shutil\nattempt.started(0, 'node-a')\nshutil.rmtree(attempt.folder)"
    with pytest.raises(RunFailedError, match=r"attempt was removed while the run was at work\. Give"):
        supervise(rank_group(tmp_path, program))


HOST = "node-a"
TIMED_OUT = "timed out: no rank waited at a rendezvous within 120 s"
CLOSED = "[pair.cc:561] Connection closed by peer [10.0.0.1]:21927"
GLOO = ["[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer", "Broken pipe"]
OWN = "label 11 is out of range"
FINISHED = dict.fromkeys(range(4), "finished")


def group_of(files: RankFiles, world_size: int, kept: Kept = Kept.BY_PROGRAM) -> RankGroup:
    launch = Launch("torchrun", (sys.executable,), {})
    log = files.folder.parent / "train.log"
    return RankGroup("study/d4.r1", files, launch, world_size, log, limit_seconds=60, kept=kept)


@pytest.mark.parametrize(
    ("came", "complaints", "says"),
    [
        pytest.param((0, 1, 2, 3), FINISHED, "the launcher exited with code 1.", id="no result"),
        pytest.param(
            (0, 1, 2), {0: TIMED_OUT, 1: TIMED_OUT}, "3 of 4 ranks started; missing: 3.", id="late peer"
        ),
        pytest.param(
            (1, 2), {1: TIMED_OUT, 2: CLOSED}, "2 of 4 ranks started; missing: 0, 3.", id="two missing"
        ),
        pytest.param((), {}, "no rank started, and the launcher exited with code 1.", id="none"),
        *(
            pytest.param(
                (0, 1, 2),
                {1: lost, 2: OWN},
                f"rank 2 on node-a: RuntimeError: {OWN}",
                id=f"who raised, not who noticed: {lost}",
            )
            for lost in GLOO
        ),
        pytest.param((0, 1, 2, 3), {1: OWN, 0: "x"}, "rank 1 on node-a: RuntimeError: label", id="the first"),
        pytest.param((0, 1, 2, 3), {0: CLOSED, 1: CLOSED}, "rank 2 on node-a (pid", id="killed peers"),
        pytest.param(
            (0, 1, 2, 3), {0: OWN}, "rank 0 on node-a: RuntimeError: label", id="next to a killed rank"
        ),
        pytest.param(
            (0, 1, 2, 3), dict.fromkeys(range(4), CLOSED), "rank 0 on node-a: RuntimeError: [p", id="network"
        ),
    ],
)
def test_a_failure_is_put_down_to_its_cause_and_not_to_those_who_noticed(
    came: tuple[int, ...], complaints: Mapping[int, str], says: str, rank_files: RankFiles
) -> None:
    for rank in came:
        rank_files.started(rank, HOST)
    for rank, message in complaints.items():
        if message == FINISHED[rank]:
            rank_files.finished(rank)
        else:
            rank_files.failed(rank, HOST, RuntimeError(message), out_of_memory=False)

    text = failure_reason(group_of(rank_files, 4), ExitStatus(1, "failed"), rank_files.root_cause(4))

    assert text.startswith(says)


UNANSWERED = "[unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        pytest.param([UNANSWERED, CLOSED], [1], id="the others waited for it"),
        pytest.param([CLOSED, UNANSWERED, UNANSWERED], [0], id="two waited"),
        pytest.param([UNANSWERED, CLOSED, CLOSED], [], id="one of two"),
        pytest.param([UNANSWERED, None, CLOSED], [1], id="one is silent"),
    ],
)
def test_the_rank_that_all_others_waited_for_is_named_though_it_was_woken_to_be_ended(
    rank_files: RankFiles, messages: list[str | None], named: list[int]
) -> None:
    for rank, message in enumerate(messages):
        rank_files.started(rank, HOST)
        if message is not None:
            rank_files.failed(rank, HOST, RuntimeError(message), out_of_memory=False)
    assert [note.rank for note in rank_files.unresponsive(len(messages))] == named


NOT_ENDED = "its program did not end within 30 s of its last step"


@pytest.mark.parametrize(
    ("noticed", "because", "ended", "says"),
    [
        pytest.param(CLOSED, NOT_ENDED, ExitStatus(1, "failed", dead_before=(0,)), NOT_ENDED, id="program"),
        pytest.param(CLOSED, "", ExitStatus(1, "failed", ended_alive=(0,)), "then", id="a peer failed"),
        pytest.param(UNANSWERED, "", ExitStatus(1, "failed", ended_alive=(0,)), "hangs", id="a peer waited"),
        pytest.param(
            None, "", ExitStatus(1, "failed", ended_alive=(0,)), "no sign of life", id="a heartbeat"
        ),
        pytest.param(CLOSED, "", ExitStatus(1, "failed", dead_before=(0,)), "", id="killed before"),
        pytest.param(CLOSED, "", ExitStatus(1, "failed"), "", id="on another host"),
    ],
)
def test_a_rank_that_scalewise_ended_itself_is_not_put_down_to_the_out_of_memory_killer(
    noticed: str | None, because: str, ended: ExitStatus, says: str, rank_files: RankFiles
) -> None:
    world_size = 1 if noticed is None else 2
    for rank in range(world_size):
        rank_files.started(rank, HOST)
    if because:
        rank_files.ended(0, because)
    if noticed is not None:
        rank_files.failed(1, HOST, RuntimeError(noticed), out_of_memory=False)

    text = failure_reason(group_of(rank_files, world_size), ended, rank_files.root_cause(world_size))

    assert "rank 0 on node-a (pid" in text
    assert ("out-of-memory killer" in text) == (not says)
    assert ("Scalewise" in text) == bool(says)
    if because:
        assert f"{because}. Then rank 1 on node-a: RuntimeError: {CLOSED}." in text
    elif says:
        assert says in text


@pytest.mark.parametrize("ending", ["finished", "failed", "terminated"])
def test_a_rank_that_left_word_was_not_killed_from_outside(rank_files: RankFiles, ending: str) -> None:
    rank_files.started(0, HOST)
    (gone,) = rank_files.died_without_note(2)
    assert (gone.rank, gone.host, gone.pid) == (0, HOST, os.getpid())
    if ending == "failed":
        rank_files.failed(0, HOST, RuntimeError("x"), out_of_memory=False)
    else:
        getattr(rank_files, ending)(0)
    # and one that never came was not killed
    assert rank_files.died_without_note(2) == []
    assert rank_files.never_started(2) == [1]


ABORTS = """
import os, sys
from pathlib import Path
from scalewise.execution.rank_files import RankFiles
attempt, rank = RankFiles(Path(sys.argv[1])), int(sys.argv[2])
attempt.started(rank, "node-a")
attempt.keep_fault(rank)
os.abort()
"""


@pytest.mark.parametrize(
    ("aborting", "terminated", "words"),
    [
        pytest.param((1, 2), False, "ended without an error message. Slurm or", id="one is silent"),
        pytest.param((1, 2), True, "did not answer the other ranks in time", id="one was asked to end"),
        pytest.param((0, 1, 2), False, "ended by SIGABRT: NCCL gave up waiting", id="all"),
    ],
)
def test_ranks_that_abort_as_they_waited_in_vain_are_not_put_down_as_the_cause(
    aborting: tuple[int, ...], terminated: bool, words: str, rank_files: RankFiles
) -> None:
    for rank in range(3):
        rank_files.started(rank, HOST)
    for rank in aborting:
        argv = [sys.executable, "-c", ABORTS, str(rank_files.folder), str(rank)]
        ended = subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, check=False)
        assert ended.returncode == -signal.SIGABRT
    if terminated:
        rank_files.terminated(0)

    ended_by = ExitStatus(1, "failed", dead_before=aborting)
    text = failure_reason(group_of(rank_files, 3), ended_by, None)

    assert text.startswith("rank 0 on node-a (pid")
    assert words in text
    assert ("rank 1" in text) == (0 in aborting)


@pytest.mark.parametrize(
    ("seconds_ago", "kept", "says"),
    [
        (None, Kept.NOTHING, "before its first step. "),
        (0, Kept.NOTHING, "at step 10/405. Raise runtime_minutes"),
        (50, Kept.NOTHING, "at step 10/405. It may hang: its last progress was 50 s ago. Raise runtime_minu"),
        (50, Kept.BY_PROGRAM, "at step 10/405. "),
    ],
)
def test_a_run_that_reached_its_limit_names_its_progress_and_whether_it_may_hang(
    seconds_ago: int | None, kept: Kept, says: str, rank_files: RankFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seconds_ago is not None:
        rank_files.progress(Progress(epoch=0, epochs=0, step=10, steps=405))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + (seconds_ago or 0))
    ended = ExitStatus(code=1, outcome="timed-out")
    reason = failure_reason(group_of(rank_files, 1, kept), ended, None)
    assert reason.startswith(f"stopped after 1 minute, {says}")
    assert ("may hang" in reason) == ("may hang" in says)


@pytest.mark.parametrize(
    ("error", "recognized"),
    [
        pytest.param("OutOfMemoryError: in the evaluation after epoch 1: 3 GiB", True, id="repeated"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has a total", True),
        ("AcceleratorError: CUDA error: out of memory", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("DistBackendError: NCCL error ... Last error:\nCuda failure 2 'out of memory'", True),
        pytest.param(torch.OutOfMemoryError.__name__, True, id="torch's own name"),
        ("AcceleratorError: CUDA error: device-side assert triggered", False),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4398 byt", False),
        ("ValueError: too little memory for this cache", False),
    ],
)
def test_a_device_without_memory_is_recognized(error: str, recognized: bool) -> None:
    assert is_out_of_memory(error) is recognized
