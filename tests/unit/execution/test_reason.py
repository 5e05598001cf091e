"""Why ranks left no result: who raised, who was killed, who waited for whom, at what address."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import definition, rank_setup

from scalewise.config.program import ProgramSettings
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.reason import SILENT_SECONDS, explain_os_error, failure_of
from scalewise.execution.run_folder import last_line
from scalewise.execution.watchdog import Ended

GROUP = "init_process_group"
OURS, LOCAL = "10.0.0.1:24000", "localhost:12355"
LINE = "loading shard 3"
TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
CLOSED = "[pair.cc:561] Connection closed by peer [10.0.0.1]:21927"
OWN = "label 11 is out of range"
SLOW = "train.py ended with code 1: TimeoutError: host not reached: timed out"


def host(rank: int) -> str:
    """Two ranks on each node."""
    return f"node{rank // 2 + 1}"


@pytest.fixture
def files(tmp_path: Path) -> RankFiles:
    """Those of four ranks that have started."""
    files = RankFiles(tmp_path / "attempt")
    program = ProgramSettings(program="train.py", resumes=False, steps=400, warmup_steps=5)
    run = definition(4).model_copy(update={"settings": program})
    files.begin(rank_setup(tmp_path, run, limit_seconds=300.0))
    files.probe.mkdir()
    files.publish_endpoint("10.0.0.1", 24000)
    for rank in range(4):
        files.mark(rank, "running", host=host(rank), pid=100 + rank)
    return files


def reason(files: RankFiles, *ended: Any, **facts: Any) -> tuple[str, bool]:
    """Why there is no result, and whether another try would end the same way."""
    failure = failure_of(files, Ended(*ended, **facts), 300.0)
    return failure.reason, failure.permanent


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        pytest.param((CLOSED, OWN, None, TIMED_OUT), ["rank 1 on node1", OWN], id="who raised"),
        pytest.param((None, "Broken pipe", None, "x"), ["rank 3 on node2", "x"], id="not who noticed"),
        pytest.param((CLOSED, CLOSED, None, CLOSED), ["rank 2 on node2 (pid 102)", "SIGKILL"], id="killed"),
        pytest.param((TIMED_OUT,) * 3 + (None,), ["rank 3 on node2", "the rank hung"], id="hangs"),
        pytest.param(
            (None, SLOW, None, None), ["rank 1 on node1", "host not reached"], id="a time-out of its own"
        ),
        pytest.param((CLOSED,) * 4, ["rank 0 on node1", "Connection closed"], id="the network"),
    ],
)
def test_a_failure_has_its_cause_and_not_those_who_noticed(
    messages: tuple[str | None, ...], says: list[str], files: RankFiles
) -> None:
    for rank, message in enumerate(messages):
        if message is not None:
            files.mark(rank, "failed", error=message)
    text, is_permanent = reason(files, 1)
    assert all(words in text for words in says), text
    assert not is_permanent


@pytest.mark.parametrize(
    ("started", "says"), [(0, "no rank started"), (3, "3 of 4 ranks started; missing: 3.")]
)
def test_ranks_that_never_started_are_counted_and_named(started: int, says: str, files: RankFiles) -> None:
    for rank in range(started, 4):
        (files.folder / f"rank{rank}.json").unlink()
    for rank in range(started):
        files.mark(rank, "failed", error=TIMED_OUT)
    assert says in reason(files, 3, "error" if started else None)[0]


@pytest.mark.parametrize("cause", [None, "error", "no step", "limit"])
def test_a_folder_that_was_removed_is_named_and_not_the_ranks(cause: str | None, files: RankFiles) -> None:
    shutil.rmtree(files.folder)
    assert f"{files.folder} was removed while ranks were at work" in reason(files, 1, cause)[0]


@pytest.mark.parametrize("state", ["terminated", "finished", "stopped"])
def test_ranks_that_have_left_a_note_were_not_killed(state: Any, files: RankFiles) -> None:
    for rank in range(4):
        files.mark(rank, state)
    assert "left no result" in reason(files, 0)[0]


@pytest.mark.fault(1)
@pytest.mark.parametrize("terminated", [0, 2])
def test_a_rank_that_got_sigterm_before_the_others_lost_it_is_named(
    terminated: int, files: RankFiles
) -> None:
    marks: dict[int, dict[str, Any]] = {1: {"state": "terminated"}, 2: {"state": "failed", "error": CLOSED}}
    for rank in (0, 3):
        files.mark(rank, "finished")
    for rank in (1, 2) if terminated == 1 else (2, 1):
        files.mark(rank, **marks[rank])
    text, _ = reason(files, 1)
    assert ("rank 1 on node1 (pid 101) was ended by SIGTERM" in text) == (terminated == 1), text


GROUPED = dict.fromkeys(range(4), (OURS, ""))
SETS = "Remove that line: Scalewise sets MASTER_ADDR and MASTER_PORT."


@pytest.mark.fault(9)
@pytest.mark.parametrize("cause", ["limit", "no step"])
@pytest.mark.parametrize(
    ("waits", "says"),
    [
        pytest.param(
            {rank: (OURS if rank < 2 else LOCAL, GROUP) for rank in range(4)},
            f"Ranks 0 and 1 on node1 waited in torch.distributed.{GROUP} at {OURS}. Ranks 2 and 3 on node2 "
            f"waited in torch.distributed.{GROUP} at {LOCAL}. The program sets {LOCAL}. {SETS}",
            id="an address of the program",
        ),
        pytest.param({}, f"did not reach torch.distributed.init_process_group. {{}}{LINE}", id="none"),
        pytest.param(
            dict.fromkeys((0, 1), (OURS, GROUP)),
            "Ranks 2 and 3 on node2 did not reach torch.distributed.init_process_group.",
            id="two missing",
        ),
        pytest.param(
            GROUPED | dict.fromkeys((0, 1, 3), (OURS, "barrier")),
            "Ranks 0, 1 and 3 on node1 and node2 waited in torch.distributed.barrier. Rank 2 on node2 passed",
            id="a barrier that one rank never reaches",
        ),
        pytest.param({3: None}, "Rank 3 never started.", id="not started"),
    ],
)
def test_a_run_that_made_no_step_names_who_waited_for_whom(
    waits: dict[int, tuple[str, str] | None], says: str, cause: str, files: RankFiles
) -> None:
    for rank, wait in waits.items():
        if wait is None:
            (files.folder / f"rank{rank}.json").unlink()
            continue
        note = {"rank": rank, "address": wait[0] if wait[1] == GROUP else None, "where": wait[1]}
        (files.probe / f"{rank}.1.wait").write_text(json.dumps(note))
    text, is_permanent = reason(files, 1, cause, silent_seconds=300.0, last_line=LINE)

    assert says.format("The last line of its output: ") in text
    assert "5 min, before its first step." in text
    assert "runtime_minutes" not in text
    assert not is_permanent
    if SETS in text:
        files.mark(2, "failed", error="The client socket has timed out while trying to connect")
        assert reason(files, 1)[0] in text, "torch gives up first"


@pytest.mark.fault(2)
@pytest.mark.parametrize(
    ("cause", "silent", "says", "is_permanent"),
    [
        ("limit", 0.0, ["stopped after 5 min, at step 10/405. Raise runtime_minutes"], True),
        ("limit", SILENT_SECONDS + 1, ["may hang", LINE, "Rank 2 on node2 made the fewest steps, 7"], False),
        ("no step", 1800.0, ["no step for 30 min, at", "Rank 2 on", LINE, "timeout_seconds"], False),
    ],
)
def test_a_run_that_made_steps_names_its_progress_and_who_is_behind(
    cause: str, silent: float, says: list[str], is_permanent: bool, files: RankFiles
) -> None:
    for rank in range(4):
        (files.probe / f"{rank}.1.steps").write_text("7" if rank == 2 else "10")
    text, found = reason(files, 1, cause, silent_seconds=silent, last_line=LINE)
    assert all(words in text for words in says), text
    assert found == is_permanent


def test_a_signal_is_named_with_what_the_next_start_does(files: RankFiles) -> None:
    text, _ = reason(files, 1, "signal", stop_source="SIGTERM")
    assert text == "ended by SIGTERM. The same command starts from the beginning."


def test_the_last_line_of_output_is_one_of_the_ranks(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert last_line(log) == ""
    log.write_text("2026-11-29T13:11:16.123+00:00 srun train.py\n", encoding="utf-8")
    assert last_line(log) == ""
    log.write_text(f"{log.read_text()}{LINE}\n\n", encoding="utf-8")
    assert last_line(log) == LINE


@pytest.mark.fault(19, 29)
@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "bytes free). Free space"), (errno.EACCES, "Make it writable"), (errno.EIO, "Check the")],
)
def test_an_error_of_the_file_system_has_path_reason_and_fix(number: int, says: str, tmp_path: Path) -> None:
    text = explain_os_error(tmp_path, OSError(number, os.strerror(number), "/scratch/x"))
    assert text.startswith(f"/scratch/x: {os.strerror(number)}")
    assert says in text
