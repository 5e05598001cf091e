"""Why ranks left no result: who raised, who was killed, who waited for whom, at what address."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from scalewise.execution.log import last_line
from scalewise.execution.rank_files import (
    BARRIER,
    GROUP,
    PROBE,
    Progress,
    RankFiles,
    RankWait,
)
from scalewise.execution.reason import (
    SILENT_SECONDS,
    explain_os_error,
    failure_reason,
    root_cause,
    would_end_alike,
)
from scalewise.execution.watchdog import Ended, RankGroup
from scalewise.plan.launch import Launch

OURS, LOCAL = "10.0.0.1:24000", "localhost:12355"
LINE = "loading shard 3"
TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
CLOSED = "[pair.cc:561] Connection closed by peer [10.0.0.1]:21927"
OWN = "label 11 is out of range"


def host(rank: int) -> str:
    """Two ranks on each node."""
    return f"node{rank // 2 + 1}"


def group_of(folder: Path, started: int = 4, resumes: bool = True) -> RankGroup:
    """Four ranks of which the first have started."""
    files = RankFiles(folder / "attempt")
    files.folder.mkdir()
    files.publish_endpoint("10.0.0.1", 24000)
    (files.folder / PROBE).mkdir()
    for rank in range(started):
        files.started(rank, host(rank), pid=100 + rank)
    launch = Launch("torchrun", ("torchrun",), {})
    return RankGroup(files, launch, 4, folder / "log", 300.0, resumes=resumes)


def fail(group: RankGroup, *messages: str | None) -> None:
    for rank, message in enumerate(messages):
        if message is not None:
            group.rank_files.failed(rank, host(rank), message)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        pytest.param((CLOSED, OWN, None, TIMED_OUT), ["rank 1 on node1", OWN], id="who raised"),
        pytest.param((None, "Broken pipe", None, "x"), ["rank 3 on node2", "x"], id="not who noticed"),
        pytest.param((CLOSED, CLOSED, None, CLOSED), ["rank 2 on node2 (pid 102)", "SIGKILL"], id="killed"),
        pytest.param((TIMED_OUT,) * 3 + (None,), ["rank 3 on node2", "did not answer"], id="hangs"),
        pytest.param((TIMED_OUT, TIMED_OUT, CLOSED, TIMED_OUT), ["rank 2", "did not answer"], id="woken up"),
        pytest.param((CLOSED,) * 4, ["rank 0 on node1", "Connection closed"], id="the network"),
    ],
)
def test_a_failure_has_its_cause_and_not_those_who_noticed(
    messages: tuple[str | None, ...], says: list[str], tmp_path: Path
) -> None:
    group = group_of(tmp_path)
    fail(group, *messages)
    text = failure_reason(group, Ended(1))
    assert all(words in text for words in says), text


@pytest.mark.parametrize(
    ("started", "says"), [(0, "no rank started"), (3, "3 of 4 ranks started; missing: 3.")]
)
def test_ranks_that_never_started_are_counted_and_named(started: int, says: str, tmp_path: Path) -> None:
    group = group_of(tmp_path, started)
    fail(group, *[TIMED_OUT] * started)
    assert says in failure_reason(group, Ended(3, "error" if started else None))


def test_ranks_that_finished_without_a_result_and_a_folder_that_is_gone_are_told_apart(
    tmp_path: Path,
) -> None:
    group = group_of(tmp_path)
    for rank in range(4):
        group.rank_files.finished(rank)
    assert "left no result" in failure_reason(group, Ended(0))
    group.rank_files.end()
    assert "attempt was removed" in failure_reason(group, Ended(0))


IN_GROUP = dict.fromkeys(range(4), (OURS, ""))


@pytest.mark.fault(9)
@pytest.mark.parametrize("cause", ["limit", "not in group"])
@pytest.mark.parametrize(
    ("waits", "started", "says"),
    [
        pytest.param(
            dict.fromkeys(range(4), (LOCAL, GROUP)),
            4,
            f"Ranks 2 and 3 on node2 look for rank 0 at {LOCAL}, which the program sets; it waits at",
            id="localhost on two nodes",
        ),
        pytest.param(
            {0: (OURS, GROUP), 1: ("node1:99", GROUP)},
            4,
            f"Rank 1 on node1 looks for rank 0 at node1:99, which the program sets; it waits at {OURS} on",
            id="a port of its own on each rank",
        ),
        pytest.param({}, 4, f"No rank reached torch.distributed.init_process_group. {{}}{LINE}", id="none"),
        pytest.param(
            dict.fromkeys((0, 1), (OURS, GROUP)), 4, "and waited for ranks 2 and 3, which", id="two missing"
        ),
        pytest.param(
            IN_GROUP | dict.fromkeys((0, 1, 3), (OURS, BARRIER)),
            4,
            "Ranks 0, 1 and 3 reached torch.distributed.barrier and waited for rank 2, which did not. ",
            id="a barrier that one rank never reaches",
        ),
        pytest.param(
            dict.fromkeys(range(4), ("node1:29500", GROUP)),
            4,
            "init_process_group at node1:29500, which the program sets.",
            id="an address of its own that leads to rank 0",
        ),
        pytest.param(IN_GROUP, 4, "All 4 ranks are in the process group.", id="all"),
        pytest.param({}, 3, "Rank 3 of 4 never started.", id="not started"),
    ],
)
def test_a_run_that_made_no_step_names_who_waited_for_whom(
    waits: dict[int, tuple[str, str]], started: int, says: str, cause: str, tmp_path: Path
) -> None:
    group = group_of(tmp_path, started)
    for rank, (address, where) in waits.items():
        wait = RankWait(rank=rank, host=host(rank), address=address, where=where)
        (group.rank_files.folder / PROBE / f"{rank}.1.wait").write_text(wait.model_dump_json())
    ended = Ended(1, cause, 300.0, last_line=LINE)  # type: ignore[arg-type]
    text = failure_reason(group, ended)

    assert says.format("The last line of its output: ") in text
    assert "5 minutes" in text
    assert "runtime_minutes" not in text
    # else the user may have fixed it
    assert would_end_alike(group, ended) == ("Remove that line" in text)


def test_an_address_of_the_program_is_the_reason_also_if_torch_gives_up_first(tmp_path: Path) -> None:
    group = group_of(tmp_path)
    for rank in range(4):
        wait = RankWait(rank=rank, host=host(rank), address=LOCAL, where=GROUP)
        (group.rank_files.folder / PROBE / f"{rank}.1.wait").write_text(wait.model_dump_json())
    fail(group, None, None, "The client socket has timed out while trying to connect to (localhost, 12355)")
    assert f"Ranks 2 and 3 on node2 look for rank 0 at {LOCAL}" in failure_reason(group, Ended(1))
    assert would_end_alike(group, Ended(1))


@pytest.mark.fault(2)
def test_ranks_without_a_step_are_named_with_their_hosts_if_they_are_behind(tmp_path: Path) -> None:
    group = group_of(tmp_path)
    group.rank_files.progress(Progress(epoch=0, epochs=0, step=10, steps=405))
    for rank in range(4):
        (group.rank_files.folder / PROBE / f"{rank}.1.steps").write_text("7" if rank == 2 else "10")
    text = failure_reason(group, Ended(1, "no step", 1800.0, last_line=LINE))
    assert "no step for 30 minutes, at step 10/405" in text
    assert "Rank 2 on node2 made the fewest steps, 7" in text
    assert LINE in text
    assert "timeout_seconds" in text
    assert not would_end_alike(group, Ended(1, "no step"))


@pytest.mark.parametrize("silent", [0.0, SILENT_SECONDS + 1])
def test_a_run_that_reached_its_limit_names_its_progress_and_whether_it_may_hang(
    silent: float, tmp_path: Path
) -> None:
    group = group_of(tmp_path)
    group.rank_files.progress(Progress(epoch=0, epochs=0, step=10, steps=405))
    ended = Ended(1, "limit", 60.0, silent_seconds=silent)
    text = failure_reason(group, ended)
    assert text.startswith("stopped after 1 minute, at step 10/405")
    assert "Raise runtime_minutes" in text
    assert ("may hang" in text) == bool(silent)
    assert would_end_alike(group, ended) != bool(silent)


def test_a_signal_is_named_with_what_the_next_start_does(tmp_path: Path) -> None:
    ended = Ended(1, "signal", stop_source="SIGTERM")
    assert failure_reason(group_of(tmp_path, resumes=False), ended) == (
        "ended by SIGTERM. The same command starts from the beginning."
    )


def test_a_rank_that_left_word_was_not_killed(tmp_path: Path) -> None:
    group = group_of(tmp_path, started=1)
    for state in ("terminated", "finished", "stopped"):
        group.rank_files.started(0, "node1")
        assert root_cause(group.rank_files.ranks(4)) is None
        getattr(group.rank_files, state)(0, *(["SIGUSR1"] if state == "stopped" else []))
        rank = group.rank_files.read_rank(0)
        assert rank is not None
        assert rank.state == state


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
    assert f"failed: /scratch/x: {os.strerror(number)}" in text
    assert says in text
