"""How a run ends, with real processes that stand in for the ranks' program."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.planted_records import leave_failure
from tests.small_runs import definition, rank_setup

from scalewise.execution import run_lock
from scalewise.execution.history import HistoryWriter, load_history
from scalewise.execution.messages import TrainSpec
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.run import RunFailedError, run_ranks
from scalewise.execution.run_lock import LOCK, LockLostError, RunLock, lock_run
from scalewise.execution.run_log import SHOWN_BYTES, shorten_log
from scalewise.execution.supervisor import RankGroup
from scalewise.plan.config.shape import Shape
from scalewise.plan.jobs.launch import Launch, rank_environment
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

SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"

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
    history.begin(0)
    run_ranks(rank_group, setup, spec, history)


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
