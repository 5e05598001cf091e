"""The command that starts the ranks of a job, and what they read of how they meet."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from scalewise.execution.messages import RankSetup, Work
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.jobs.launch import Launch, Programs, RankLaunch, SiteLaunch, build_launch

SCRIPTS = Path(__file__).parents[2]


def command_for(
    ranks: RankLaunch,
    start: SiteLaunch,
    rank_files: RankFiles,
    visible: Iterable[Path] = (),
    program: ProgramSettings | None = None,
) -> Launch:
    """The command that starts ``rank.py`` once for each device; for a user's program ``program_rank.py``.

    A container shows the ranks the visible folders, beside the working folder, the scripts and the folder
    that the attempt's lies in, where ranks also write: each may be behind a link.

    Raises:
        ValueError: The launcher cannot start these ranks on this site.
    """
    return build_launch(
        ranks.launcher,
        ranks.shape,
        ranks.cpus_per_device,
        start,
        Programs.for_rank_script(
            SCRIPTS, "rank.py" if program is None else "program_rank.py", rank_files.folder
        ),
        sys.executable,
        visible=[SCRIPTS, rank_files.folder.parent.resolve(), *visible],
        once_a_node=program is not None and program.starts == "itself",
    )


def rank_setup_for(
    ranks: RankLaunch, start: SiteLaunch, timeout_seconds: int, work: Work = "train"
) -> RankSetup:
    """The meeting and the work of ranks that this process starts."""
    return RankSetup(
        **ranks.model_dump(include=set(RankLaunch.model_fields)),
        network_interface=start.network_interface,
        timeout_seconds=timeout_seconds,
        supervisor_host=socket.gethostname(),
        supervisor_pid=None if start.slurm else os.getpid(),
        work=work,
    )
