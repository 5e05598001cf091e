"""How a run ends, told by real processes that stand in for the ranks' program."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from scalewise.plan.launch import Launch
from scalewise.records import EPOCHS, FAILURE, RANKS, SUMMARY, Definition, read_failure, read_summary
from scalewise.training.attempt import Assignment, Attempt
from scalewise.training.supervisor import LOG_TAIL_LINES, Order, RunFailedError, supervise

SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"

PREAMBLE = """
import sys
from pathlib import Path
from scalewise.training.attempt import Attempt
attempt = Attempt(Path(sys.argv[1]))
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

SUCCESS_IN_WORDS_ALONE = (
    PREAMBLE
    + """
for rank in (0, 1):
    attempt.started(rank, "node-a")
    attempt.finished(rank)
"""
)


def order(folder: Path, program: str, limit_seconds: float = 60) -> Order:
    definition = Definition(
        experiment="study",
        run="d2.r1",
        shape="1x2",
        batch_size_per_device=8,
        global_batch_size=16,
        repeat=1,
        options={},
        accelerator="cpu",
        settings={"epochs": 2},
    )
    attempt = Attempt(folder / "attempt")
    return Order(
        assignment=Assignment(
            definition=definition,
            dataset=folder / "d.safetensors",
            folder=folder,
            launcher="test",
            started_at="2026-01-01T00:00:00+00:00",
            supervisor_host=socket.gethostname(),
            supervisor_pid=os.getpid(),
        ),
        attempt=attempt,
        launch=Launch(
            "test",
            (sys.executable, "-c", program, str(attempt.folder)),
            {"PYTHONPATH": str(SCRIPTS), "GREETING": "from the launch"},
        ),
        world_size=2,
        log=folder / "train.log",
        limit_seconds=limit_seconds,
    )


def test_running_out_of_device_memory_is_a_result_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / FAILURE).write_text("of an earlier attempt", encoding="utf-8")
    supervise(order(tmp_path, OUT_OF_MEMORY))
    summary = read_summary(tmp_path)
    assert summary.outcome == "out-of-memory"
    assert summary.reason == "rank 1 on node-a: MemoryError: tried to allocate 3 GiB"
    assert summary.measurements is None
    assert {path.name for path in tmp_path.iterdir()} == {SUMMARY, EPOCHS, RANKS, "train.log"}
    for name in (EPOCHS, RANKS):
        assert len((tmp_path / name).read_text(encoding="utf-8").splitlines()) == 1


def test_an_end_without_an_error_and_without_a_result_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"study/d2\.r1 failed: the launcher exited with code 0\."):
        supervise(order(tmp_path, SUCCESS_IN_WORDS_ALONE))
    assert not (tmp_path / SUMMARY).exists()


def test_ranks_that_never_started_are_counted_and_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"0 of 2 ranks started; missing: 0, 1\."):
        supervise(order(tmp_path, "import sys; sys.exit('no such module')"))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.outcome == "failed"
    assert failure.definition.run == "d2.r1"
    assert failure.log_tail[-1] == "no such module"


def test_a_failure_shows_the_last_lines_of_the_log_whatever_bytes_are_in_it(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "for line in range(100): print('line', line, os.environ['GREETING'], flush=True)\n"
        "os.write(1, b'\\xff\\xfe not text\\n')\n"
        "sys.exit(3)"
    )
    with pytest.raises(RunFailedError) as failed:
        supervise(order(tmp_path, program))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert len(failure.log_tail) == LOG_TAIL_LINES
    assert failure.log_tail[0] == f"line {100 - LOG_TAIL_LINES + 1} from the launch"
    assert failure.log_tail[-1].endswith("not text")
    assert "line 99" in str(failed.value)
    assert str(tmp_path / "train.log") in str(failed.value)


def test_the_log_of_an_earlier_attempt_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("what happened yesterday\n", encoding="utf-8")
    with pytest.raises(RunFailedError):
        supervise(order(tmp_path, "raise SystemExit(1)"))
    first, second = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()[:2]
    assert first == "what happened yesterday"
    assert sys.executable in second


def test_a_program_that_ignores_its_limit_is_ended_all_the_same(tmp_path: Path) -> None:
    program = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    with pytest.raises(RunFailedError, match=r"timed-out: not done after 0\.01 minutes"):
        supervise(order(tmp_path, program, limit_seconds=0.6))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.outcome == "timed-out"
