"""From the notes that ranks leave to the sentence that explains how a run ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import pytest
import torch
from tests.paths import SCRIPTS

from scalewise.execution.failure_reason import failure_reason
from scalewise.execution.messages import Progress, is_out_of_memory
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.supervisor import ExitStatus, RankGroup
from scalewise.execution.watchdog import Kept
from scalewise.plan.jobs.launch import Launch

HOST = "node-a"
TIMED_OUT = "timed out: no rank waited at a rendezvous within 120 s"
CLOSED = "[pair.cc:561] Connection closed by peer [10.0.0.1]:21927"
GLOO = ["[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer", "Broken pipe"]
OWN = "label 11 is out of range"
FINISHED = dict.fromkeys(range(4), "finished")


def group_of(files: RankFiles, world_size: int, kept: Kept = Kept.CHECKPOINT) -> RankGroup:
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
        (50, Kept.CHECKPOINT, "at step 10/405. "),
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
