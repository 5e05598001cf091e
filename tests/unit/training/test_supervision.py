"""How a run ends, told by real processes that stand in for the ranks' program."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from scalewise.plan.launch import Launch
from scalewise.records import (
    EPOCHS,
    FAILURE,
    RANKS,
    SUMMARY,
    UTILIZATION,
    Definition,
    read_failure,
    read_summary,
)
from scalewise.training.supervision.attempt import Assignment, Attempt, Muster
from scalewise.training.supervision.execution import LOG_TAIL_LINES, RunFailedError, execute, has_result
from scalewise.training.supervision.supervisor import End, Order, reason

SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"

PREAMBLE = """
import sys
from pathlib import Path
from scalewise.training.supervision.attempt import Attempt
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


DEFINITION = Definition(
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


def order(folder: Path, program: str, limit_seconds: float = 60, world_size: int = 2) -> Order:
    attempt = Attempt(folder / "attempt")
    return Order(
        label="study/d2.r1",
        attempt=attempt,
        launch=Launch(
            "torchrun",
            (sys.executable, "-c", program, str(attempt.folder)),
            {"PYTHONPATH": str(SCRIPTS), "GREETING": "from the launch"},
        ),
        world_size=world_size,
        log=folder / "train.log",
        limit_seconds=limit_seconds,
    )


def supervise(order: Order) -> None:
    """Run it as a training, with its records beside its attempt."""
    muster = Muster(
        shape="1x2",
        accelerator="cpu",
        cpus_per_device=1,
        launcher="torchrun",
        rendezvous="tcp",
        network_interface=None,
        timeout_seconds=120,
        supervisor_host=socket.gethostname(),
        supervisor_pid=os.getpid(),
    )
    folder = order.attempt.folder.parent
    assignment = Assignment(
        definition=DEFINITION,
        dataset=folder / "d.safetensors",
        folder=folder,
        started_at="2026-01-01T00:00:00+00:00",
    )
    execute(order, muster, assignment)


def test_running_out_of_device_memory_is_a_result_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / FAILURE).write_text("of an earlier attempt", encoding="utf-8")
    supervise(order(tmp_path, OUT_OF_MEMORY))
    summary = read_summary(tmp_path)
    assert summary.outcome == "out-of-memory"
    assert summary.reason == "rank 1 on node-a: MemoryError: tried to allocate 3 GiB"
    assert summary.measurements is None
    assert {path.name for path in tmp_path.iterdir()} == {SUMMARY, EPOCHS, RANKS, UTILIZATION, "train.log"}
    for name in (EPOCHS, RANKS, UTILIZATION):
        assert len((tmp_path / name).read_text(encoding="utf-8").splitlines()) == 1


def test_an_end_without_an_error_and_without_a_result_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"study/d2\.r1 failed: the launcher exited with code 0\."):
        supervise(order(tmp_path, SUCCESS_IN_WORDS_ALONE))
    assert not (tmp_path / SUMMARY).exists()


ONE_CAME = (
    PREAMBLE
    + """
attempt.started(1, "node-a")
sys.exit(1)
"""
)


def test_ranks_that_never_started_are_counted_and_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"1 of 2 ranks started; missing: 0\."):
        supervise(order(tmp_path, ONE_CAME))


def test_where_no_rank_started_the_words_of_the_launcher_are_shown(tmp_path: Path) -> None:
    with pytest.raises(
        RunFailedError, match="no rank started, and the launcher exited with code 1"
    ) as failed:
        supervise(order(tmp_path, "import sys; sys.exit('no such module')"))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.outcome == "failed"
    assert failure.definition.run == "d2.r1"
    assert failure.log_tail[-1] == "no such module"
    assert "no such module" in str(failed.value)


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


def test_the_reason_ends_the_log_which_is_all_that_snakemake_shows(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError):
        supervise(order(tmp_path, "raise SystemExit('of the rank')"))
    last = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()[-1]
    assert "failed: no rank started, and the launcher exited with code 1." in last


def test_the_traceback_of_the_first_rank_that_raised_is_kept(tmp_path: Path) -> None:
    program = (
        PREAMBLE
        + """
for rank in (0, 1):
    attempt.started(rank, "node-a")
try:
    {}["label"]
except KeyError as error:
    attempt.failed(1, "node-a", error, False)
attempt.failed(0, "node-a", RuntimeError("Connection closed by peer"), False)
sys.exit(1)
"""
    )
    with pytest.raises(RunFailedError, match=r"rank 1 on node-a: KeyError: 'label'"):
        supervise(order(tmp_path, program))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.traceback.startswith("Traceback (most recent call last)")
    assert "KeyError: 'label'" in failure.traceback


TIMED_OUT = RuntimeError("timed out: nobody waited at a rendezvous within 120 s")
LOST = RuntimeError("Connection closed by peer [10.0.0.1]:41234")
OWN = ValueError("label 11 is out of range")


@pytest.mark.parametrize(
    ("came", "complaints", "says"),
    [
        pytest.param(
            (0, 1, 2), {0: TIMED_OUT, 1: TIMED_OUT}, "3 of 4 ranks started; missing: 3.", id="late peer"
        ),
        pytest.param(
            (1, 2), {1: TIMED_OUT, 2: LOST}, "2 of 4 ranks started; missing: 0, 3.", id="two missing"
        ),
        pytest.param(
            (0, 1, 2), {1: LOST, 2: OWN}, "rank 2 on node-a: ValueError: label 11", id="own error first"
        ),
        pytest.param((), {}, "no rank started, and the launcher exited with code 1.", id="none"),
        pytest.param((0, 1, 2, 3), {0: LOST, 1: LOST}, "rank 2 on node-a (pid", id="killed peers"),
        pytest.param(
            (0, 1, 2, 3), dict.fromkeys(range(4), LOST), "rank 0 on node-a: RuntimeError: Conn", id="network"
        ),
    ],
)
def test_a_failure_is_put_down_to_its_cause_and_not_to_those_who_noticed(
    came: tuple[int, ...], complaints: dict[int, Exception], says: str, tmp_path: Path
) -> None:
    failed = order(tmp_path, "", world_size=4)
    failed.attempt.folder.mkdir()
    for rank in came:
        failed.attempt.started(rank, "node-a")
    for rank, error in complaints.items():
        failed.attempt.failed(rank, "node-a", error, out_of_memory=False)

    text = reason(failed, End(1, "failed"), failed.attempt.cause(4))

    assert text.startswith(says)


def test_a_folder_has_a_result_where_the_records_are_of_just_this_run(tmp_path: Path) -> None:
    assert not has_result(tmp_path, DEFINITION)
    supervise(order(tmp_path, OUT_OF_MEMORY))
    assert has_result(tmp_path, DEFINITION)
    other = DEFINITION.model_copy(update={"settings": {"epochs": 3}})
    assert not has_result(tmp_path, other)
    (tmp_path / SUMMARY).write_text("{", encoding="utf-8")
    assert not has_result(tmp_path, DEFINITION)
