"""A run that made no step until its limit: which rank waited for which, and at what address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalewise.execution.failure_reason import failure_reason, would_end_alike
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.rank_processes import RankProcesses
from scalewise.execution.rank_waits import BARRIER, GROUP, PROBE, RankWait, last_line
from scalewise.execution.run_log import append_log
from scalewise.execution.supervisor import ExitStatus, RankGroup
from scalewise.execution.watchdog import Kept
from scalewise.plan.launch import Launch

OURS, LOCAL = "10.0.0.1:24000", "localhost:12355"
LINE = "loading shard 3"
REMOVE = "Remove that line: Scalewise sets MASTER_ADDR and MASTER_PORT."


def host(rank: int) -> str:
    """Two ranks on each node."""
    return f"node{rank // 2 + 1}"


def group_of(folder: Path, waits: dict[int, tuple[str, str]] | None, started: int = 4) -> RankGroup:
    """Return four ranks that made no step.

    Args:
        waits: Address and place of each rank in the process group; None for the built-in training.
        started: Number of ranks that started.
    """
    rank_files = RankFiles(folder / "attempt")
    rank_files.folder.mkdir()
    rank_files.publish_endpoint("10.0.0.1", 24000)
    for rank in range(started):
        rank_files.started(rank, host(rank))
    if waits is not None:
        probe = rank_files.folder / PROBE
        probe.mkdir()
        for rank, (address, where) in waits.items():
            wait = RankWait(rank=rank, host=host(rank), address=address, where=where)
            (probe / f"{rank}.1.wait").write_text(wait.model_dump_json(), encoding="utf-8")
    log = folder / "train.log"
    launch = Launch("srun", ("srun",), {})
    return RankGroup("own/d4.r1", rank_files, launch, 4, log, 300.0, kept=Kept.NOTHING)


IN_GROUP = dict.fromkeys(range(4), (OURS, ""))


@pytest.mark.parametrize(
    ("waits", "started", "says"),
    [
        pytest.param(
            dict.fromkeys(range(4), (LOCAL, GROUP)),
            4,
            f"Ranks 2 and 3 on node2 look for rank 0 at {LOCAL}, which the program sets; it is on node1. "
            f"{REMOVE}",
            id="localhost on two nodes",
        ),
        pytest.param(
            {0: (OURS, GROUP), 1: ("node1:99", GROUP)},
            4,
            "Rank 1 on node1 looks for rank 0 at node1:99, which the program sets; it waits at "
            f"{OURS}. {REMOVE}",
            id="a port of its own on each rank",
        ),
        pytest.param({}, 4, f"No rank reached torch.distributed.init_process_group. {{}}{LINE}", id="none"),
        pytest.param(
            dict.fromkeys((0, 1), (OURS, GROUP)),
            4,
            "Ranks 0 and 1 reached torch.distributed.init_process_group and waited for ranks 2 and 3, "
            f"which did not. {{}}{LINE}",
            id="two are missing",
        ),
        pytest.param(
            {0: (LOCAL, GROUP)},
            4,
            "Rank 0 reached torch.distributed.init_process_group and waited for ranks 1, 2 and 3, which did ",
            id="an address of its own does no harm on one node",
        ),
        pytest.param(
            IN_GROUP | dict.fromkeys((0, 1, 3), (OURS, BARRIER)),
            4,
            "Ranks 0, 1 and 3 reached torch.distributed.barrier and waited for rank 2, which did not. ",
            id="a barrier that one rank never reaches",
        ),
        pytest.param(
            dict.fromkeys(range(4), (OURS, GROUP)),
            4,
            f"Ranks 0, 1, 2 and 3 waited in torch.distributed.init_process_group at {OURS}. ",
            id="the network",
        ),
        pytest.param(
            dict.fromkeys(range(4), ("node1:29500", GROUP)),
            4,
            "Ranks 0, 1, 2 and 3 waited in torch.distributed.init_process_group at node1:29500, which the "
            f"program sets. {{}}{LINE}",
            id="an address of its own that leads to rank 0",
        ),
        pytest.param(IN_GROUP, 4, f"All 4 ranks are in the process group. {{}}{LINE}", id="all"),
        pytest.param({}, 3, f"Rank 3 of 4 never started. {{}}{LINE}", id="not started"),
        pytest.param(None, 4, f"{{}}{LINE}", id="the built-in training"),
    ],
)
def test_a_run_that_made_no_step_names_who_waited_for_whom_and_gets_no_advice_on_its_time(
    waits: dict[int, tuple[str, str]] | None, started: int, says: str, tmp_path: Path
) -> None:
    group, ended = group_of(tmp_path, waits, started), ExitStatus(1, "timed-out", last_line=LINE)
    text = failure_reason(group, ended, None)

    expected = says.format("The last line of its output: ")
    assert text.startswith(f"stopped after 5 minutes, before its first step. {expected}")
    assert "runtime_minutes" not in text
    assert "fewer steps" not in text
    # else the user may have fixed it
    assert would_end_alike(group, ended, None) == (REMOVE in says)


def test_an_address_of_the_program_is_the_reason_also_if_torch_gives_up_before_the_limit(
    tmp_path: Path,
) -> None:
    group = group_of(tmp_path, dict.fromkeys(range(4), (LOCAL, GROUP)))
    lost = RuntimeError("The client socket has timed out while trying to connect to (localhost, 12355)")
    group.rank_files.failed(2, host(2), lost, out_of_memory=False)
    cause = group.rank_files.root_cause(4)

    ended = ExitStatus(1, "failed")
    assert failure_reason(group, ended, cause).startswith(
        f"Ranks 2 and 3 on node2 look for rank 0 at {LOCAL}"
    )
    assert would_end_alike(group, ended, cause)


def test_the_last_line_of_output_is_none_that_scalewise_adds(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert last_line(log) == ""
    log.write_text(f"{LINE}\n\n", encoding="utf-8")
    append_log(log, "the time limit")
    assert last_line(log) == LINE


@pytest.mark.parametrize("launcher", ["popen", "srun"])
def test_ranks_on_one_machine_are_not_the_task_of_the_interactive_session(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID")
    for name in task:
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    seen, srun = tmp_path / "seen", tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\nenv > {seen}\n", encoding="utf-8")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    argv = ("srun",) if launcher == "srun" else (str(srun),)
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        assert RankProcesses(Launch(launcher, argv, {"OURS": "1"}), log).wait(60) == 0
    environment = dict(line.partition("=")[::2] for line in seen.read_text(encoding="utf-8").splitlines())
    assert environment["SLURM_JOB_ID"] == "4711"
    assert environment["OURS"] == "1"
    assert set(task) & set(environment) == (set(task) if launcher == "srun" else set())
