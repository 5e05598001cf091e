"""How a run ends, told by real processes that stand in for the ranks' program."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.planting import leave_failure
from tests.small_runs import definition, rank_launch, rank_setup

from scalewise.execution import run_lock
from scalewise.execution.failure_reason import failure_reason, in_minutes
from scalewise.execution.history import HistoryWriter, load_history
from scalewise.execution.messages import Progress, TrainSpec
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.run import RunFailedError, run_ranks
from scalewise.execution.run_lock import LOCK, LockLostError, RunLock, lock_run
from scalewise.execution.run_log import SHOWN_BYTES, shorten_log
from scalewise.execution.supervisor import ExitStatus, RankGroup
from scalewise.execution.watchdog import Kept
from scalewise.plan.config.shape import Shape
from scalewise.plan.config.site import Container
from scalewise.plan.jobs.launch import Launch, SiteLaunch, build_launch, rank_environment
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

SUCCESS_IN_WORDS_ALONE = (
    PREAMBLE
    + """
for rank in (0, 1):
    attempt.started(rank, "node-a")
    attempt.finished(rank)
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
    """Run it as a training, with its records beside its attempt."""
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


def test_an_end_without_an_error_and_without_a_result_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"study/d2\.r1 failed: the launcher exited with code 0\."):
        supervise(rank_group(tmp_path, SUCCESS_IN_WORDS_ALONE))
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
        supervise(rank_group(tmp_path, ONE_CAME))


def test_where_no_rank_started_the_words_of_the_launcher_are_shown(tmp_path: Path) -> None:
    with pytest.raises(
        RunFailedError, match="no rank started, and the launcher exited with code 1"
    ) as failed:
        supervise(rank_group(tmp_path, "import sys; sys.exit('no such module')"))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.outcome == "failed"
    assert failure.log_tail[-1] == "no such module"
    assert "no such module" in str(failed.value)


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


def test_a_failure_shows_the_last_lines_of_the_log_whatever_bytes_are_in_it(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "for line in range(100): print('line', line, os.environ['GREETING'], flush=True)\n"
        "os.write(1, b'\\xff\\xfe not text\\n')\n"
        "sys.exit(3)"
    )
    with pytest.raises(RunFailedError) as failed:
        supervise(rank_group(tmp_path, program))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert len(failure.log_tail) == LOG_TAIL_LINES
    assert failure.log_tail[0] == f"line {100 - LOG_TAIL_LINES + 1} from the launch"
    assert failure.log_tail[-1].endswith("not text")
    assert "line 99" in str(failed.value)
    assert str(tmp_path / "train.log") in str(failed.value)


LOUD = (
    PREAMBLE
    + """
attempt.started(0, "node-a")
for number in range(100_000):
    print(f"\\x1b[2J{number} \\x07", flush=number % 1000 == 0)
print("\\r 10%\\r 20%", flush=True)
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


def test_the_log_of_an_earlier_attempt_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("what happened yesterday\n", encoding="utf-8")
    with pytest.raises(RunFailedError):
        supervise(rank_group(tmp_path, "raise SystemExit(1)"))
    first, second = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()[:2]
    assert first == "what happened yesterday"
    assert sys.executable in second


def test_a_program_that_ignores_its_limit_is_ended_all_the_same(tmp_path: Path) -> None:
    program = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    with pytest.raises(
        RunFailedError, match=r"timed-out: stopped after 0\.01 minutes, before its first step"
    ):
        supervise(rank_group(tmp_path, program, limit_seconds=0.6))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.outcome == "timed-out"


def test_a_limit_is_told_in_plain_digits() -> None:
    limits = (0.6, 3, 25, 90, 330 * 60, 1440 * 60, 10_080 * 60)
    assert [in_minutes(limit) for limit in limits] == [
        f"{minutes} minutes" for minutes in ("0.01", "0.05", "0.417", "1.5", "330", "1440", "10080")
    ]


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


def test_a_log_names_what_is_started_without_what_the_site_says_of_itself(tmp_path: Path) -> None:
    secret = "hf_Secret"
    start = SiteLaunch(
        prelude=("true", f"export HF_TOKEN={secret}", f"KEY={secret} no-such-command"),
        container=Container(image="a.sif", runtime="/no/such/runtime"),
        container_arguments=("--env", f"KEY={secret}"),
    )
    started = rank_group(tmp_path, "")
    words = (str(SCRIPTS / "rank.py"), str(started.rank_files.folder))
    launch = build_launch(rank_launch(), start, words, sys.executable, [])
    with pytest.raises(RunFailedError) as failed:
        supervise(replace(started, launch=launch))
    log = (tmp_path / "train.log").read_text(encoding="utf-8")
    assert secret not in log + str(failed.value) + (tmp_path / HISTORY).read_text(encoding="utf-8")
    first = log.splitlines()[0]
    assert "'[prelude]' '[container]' python3 -m torch.distributed.run" in first
    assert "scalewise: this line of prelude failed: KEY ... (line 3 of 3)" in log


COMPLAINING = """
import os, sys
from pathlib import Path
from scalewise.ranks.rank_process import run_and_report_errors
from scalewise.execution.rank_files import RankFiles
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
def complain(*words):
    raise OSError(28, "No space left on device", "attempt/.rank0.json.failed")
if "full" in sys.argv:
    RankFiles.failed = complain
def work():
    raise ValueError("of the training")
run_and_report_errors(RankFiles(Path(sys.argv[1])), work)
"""


@pytest.mark.slow
def test_what_a_rank_raised_is_in_the_log_although_there_is_no_room_to_leave_it_elsewhere(
    tmp_path: Path,
) -> None:
    full = rank_group(tmp_path, COMPLAINING)
    full = replace(full, launch=replace(full.launch, argv=(*full.launch.argv, "full")))
    with pytest.raises(RunFailedError):
        supervise(full)
    log = (tmp_path / "train.log").read_text(encoding="utf-8")
    assert "ValueError: of the training" in log
    assert "OSError: [Errno 28]" not in log


def test_the_reason_ends_the_log_which_is_all_that_snakemake_shows(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError):
        supervise(rank_group(tmp_path, "raise SystemExit('of the rank')"))
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
        supervise(rank_group(tmp_path, program))
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.traceback.startswith("Traceback (most recent call last)")
    assert "KeyError: 'label'" in failure.traceback


TIMED_OUT = RuntimeError("timed out: no rank waited at a rendezvous within 120 s")
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
    failed = rank_group(tmp_path, "", world_size=4)
    failed.rank_files.folder.mkdir()
    for rank in came:
        failed.rank_files.started(rank, "node-a")
    for rank, error in complaints.items():
        failed.rank_files.failed(rank, "node-a", error, out_of_memory=False)

    text = failure_reason(failed, ExitStatus(1, "failed"), failed.rank_files.root_cause(4))

    assert text.startswith(says)


ABORTS = (
    PREAMBLE
    + """
import os
rank = int(sys.argv[2])
attempt.started(rank, "node-a")
attempt.keep_fault(rank)
os.abort()
"""
)


@pytest.mark.parametrize(
    ("aborting", "terminated", "words"),
    [
        pytest.param((1, 2), False, "ended without an error message. Slurm or", id="one is silent"),
        pytest.param((1, 2), True, "did not answer the other ranks in time", id="one was asked to end"),
        pytest.param((0, 1, 2), False, "ended by SIGABRT: NCCL gave up waiting", id="all"),
    ],
)
def test_ranks_that_abort_as_they_waited_in_vain_are_not_put_down_as_the_cause(
    aborting: tuple[int, ...], terminated: bool, words: str, tmp_path: Path
) -> None:
    failed = rank_group(tmp_path, "", world_size=3)
    failed.rank_files.folder.mkdir()
    for rank in range(3):
        failed.rank_files.started(rank, "node-a")
    for rank in aborting:
        argv = [sys.executable, "-c", ABORTS, str(failed.rank_files.folder), str(rank)]
        ended = subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, check=False)
        assert ended.returncode == -signal.SIGABRT

    if terminated:
        failed.rank_files.terminated(0)

    text = failure_reason(failed, ExitStatus(1, "failed", dead_before=aborting), None)

    assert text.startswith("rank 0 on node-a (pid")
    assert words in text
    assert ("rank 1" in text) == (0 in aborting)


@pytest.mark.parametrize(
    ("seconds_ago", "kept", "hangs"),
    [(0, Kept.NOTHING, False), (50, Kept.NOTHING, True), (50, Kept.CHECKPOINT, False)],
)
def test_a_run_that_reached_its_limit_names_its_progress_and_whether_it_may_hang(
    tmp_path: Path, seconds_ago: int, kept: Kept, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RankFiles(tmp_path)
    files.progress(Progress(epoch=0, epochs=0, step=10, steps=405))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds_ago)
    launch = Launch("popen", (sys.executable,), {})
    group = RankGroup("r", files, launch, 1, tmp_path / "train.log", limit_seconds=60, kept=kept)
    reason = failure_reason(group, ExitStatus(code=1, outcome="timed-out"), None)
    assert reason.startswith("stopped after 1 minute, at step 10/405. ")
    assert ("It may hang: its last progress was 50 s ago. Raise runtime_minutes" in reason) == hangs
