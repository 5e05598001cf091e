"""Start the ranks of a job: their command, how they meet, and the processes. Needs no torch."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from scalewise.config.program import ProgramSettings
from scalewise.execution.messages import RankSetup, Work
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.jobs.launch import Launch, RankLaunch, SiteLaunch, build_launch

SCRIPTS = Path(__file__).parents[2]


def command_for(
    ranks: RankLaunch,
    site: SiteLaunch,
    rank_files: RankFiles,
    visible: Iterable[Path],
    program: ProgramSettings,
) -> Launch:
    """Return the command that starts a rank on each device.

    A container shows the ranks the visible folders, the working folder, the scripts, and the folder that
    holds the attempt, where ranks also write. Each may be behind a link.

    Raises:
        ValueError: The launcher cannot start these ranks on this site.
    """
    return build_launch(
        ranks,
        site,
        (str(SCRIPTS / "program_rank.py"), str(rank_files.folder)),
        sys.executable,
        visible=[SCRIPTS, rank_files.folder.parent.resolve(), *visible],
        once_a_node=program.starts == "itself",
    )


def rank_setup_for(
    ranks: RankLaunch, site: SiteLaunch, timeout_seconds: int, work: Work = "train"
) -> RankSetup:
    """Describe the rendezvous and the work of ranks that this process starts."""
    return RankSetup(
        **ranks.model_dump(include=set(RankLaunch.model_fields)),
        network_interface=site.network_interface,
        timeout_seconds=timeout_seconds,
        supervisor_host=socket.gethostname(),
        supervisor_pid=None if site.slurm else os.getpid(),
        work=work,
    )


TASK_VARIABLES = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|TASK_PID|GTIDS|NTASKS|NPROCS|NTASKS_PER_NODE|TASKS_PER_NODE"
    r"|STEP_.*|STEPID|SRUN_.*|LAUNCH_.*)"
)
"""Variables by which srun tells a task who it is, and salloc how many there are."""


def without_task(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those of the Slurm task that this process is, such as an interactive shell.

    A program that reads them would take each of its ranks for the same one.
    """
    return {name: value for name, value in environ.items() if not TASK_VARIABLES.fullmatch(name)}


class RankProcesses:
    """Starts the processes of a launch, a launcher or the ranks, and ends all of its processes.

    Each process has a new session, so that a Ctrl-C reaches the ranks only through ``end``.

    Args:
        log: Receives the output of the processes.

    Raises:
        OSError: One cannot be started; the others are killed.
    """

    def __init__(self, launch: Launch, log: IO[str]) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failure: tuple[int, float] | None = None
        inherited = dict(os.environ) if launch.argv[0] == "srun" else without_task(os.environ)
        try:
            for own_environment in launch.process_environments:
                self._processes.append(
                    subprocess.Popen(
                        launch.argv,
                        env=inherited | launch.environment | own_environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        except BaseException:
            self.kill()
            raise

    def wait(self, timeout_seconds: float) -> int | None:
        """Wait; returns the exit code of the first that failed, else 0, and None while any runs."""
        deadline = time.monotonic() + timeout_seconds
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(deadline - time.monotonic(), 0))
        codes = [process.poll() for process in self._processes]
        if self._failure is None and (failed := next(filter(None, codes), None)) is not None:
            self._failure = failed, time.monotonic()
        if None in codes:
            return None
        return self._failure[0] if self._failure is not None else 0

    def failed_for(self, seconds: float) -> bool:
        """Whether ``wait`` noticed at least so many seconds ago that a process has failed."""
        return self._failure is not None and time.monotonic() - self._failure[1] >= seconds

    def end(self, grace_seconds: float) -> int:
        """Request the processes to end, then kill the rest; returns the exit code as ``wait`` does."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        if (code := self.wait(grace_seconds)) is not None:
            return code
        self.kill()
        while (code := self.wait(grace_seconds)) is None:
            pass
        return code

    def kill(self) -> None:
        """Kill all processes and their children.

        torchrun starts each rank in a new session. A rank ends with its parent (``exit_when_parent_dies``),
        but only once it has begun to watch the parent.
        """
        for process in self._processes:
            children: list[psutil.Process] = []
            if process.poll() is None:
                with suppress(psutil.Error):
                    children = psutil.Process(process.pid).children(recursive=True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for child in children:
                with suppress(psutil.Error):
                    child.kill()
