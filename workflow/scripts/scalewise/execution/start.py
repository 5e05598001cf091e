"""Start the ranks of a job: their command, how they meet, and the processes. Needs no torch."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from scalewise.config.program import ProgramSettings
from scalewise.execution.rank_files import RankFiles, RankSetup
from scalewise.plan.launch import Launch, RankLaunch, SiteLaunch, build_launch

SCRIPTS = Path(__file__).parents[2]

TASK_VARIABLES = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|TASK_PID|GTIDS|NTASKS|NPROCS|NTASKS_PER_NODE|TASKS_PER_NODE"
    r"|STEP_.*|STEPID|SRUN_.*|LAUNCH_.*)"
)
"""Variables by which srun tells a task who it is, and salloc how many there are."""

KILLED_SECONDS = 60.0
"""Longest wait for a process that was killed."""

PR_SET_PDEATHSIG = 1
"""The option, from linux/prctl.h, for the signal that this process gets when its parent ends."""


def command_for(
    ranks: RankLaunch,
    site: SiteLaunch,
    rank_files: RankFiles,
    visible: Iterable[Path],
    program: ProgramSettings,
) -> Launch:
    """Return the command that starts a rank on each device.

    A container shows the ranks the visible folders, the working folder, the scripts, and the folder that
    holds the run's files, where ranks also write. Each may be behind a link.

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


def rank_setup_for(ranks: RankLaunch, site: SiteLaunch, timeout_seconds: int) -> RankSetup:
    """Describe the rendezvous of ranks that this process starts."""
    return RankSetup(
        **ranks.model_dump(include=set(RankLaunch.model_fields)),
        network_interface=site.network_interface,
        timeout_seconds=timeout_seconds,
        supervisor_host=socket.gethostname(),
        supervisor_pid=None if site.slurm else os.getpid(),
    )


def without_task(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those of the Slurm task that this process is, such as an interactive shell.

    A program that reads them would take each of its ranks for the same one; srun sets them for each rank.
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
        environment = without_task(os.environ) | launch.environment
        try:
            for own_environment in launch.process_environments:
                self._processes.append(
                    subprocess.Popen(
                        launch.argv,
                        env=environment | own_environment,
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
        if (code := self.wait(grace_seconds)) is None:
            self.kill()
            code = self.wait(KILLED_SECONDS)
        # a process that waits for a device or a file system cannot be killed
        return -signal.SIGKILL if code is None else code

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


def exit_when_parent_dies(supervisor: int | None, supervisor_is_here: bool) -> None:
    """End this process, a rank, once its parent or its job has ended, even if that was killed.

    A job that was killed cannot end its ranks. They would continue to train during the next run, and disturb
    its figures.

    Args:
        supervisor: The process id of the job; None if another process ends its ranks.
        supervisor_is_here: Whether the job runs on this host, where its id is valid.
    """
    parent = os.getppid()
    # by the kernel: also when this process is stopped, or waits inside a collective
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    watched = Path(f"/proc/{supervisor}") if supervisor is not None and supervisor_is_here else None

    def watch() -> None:
        while os.getppid() == parent and (watched is None or watched.exists()):
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, name="orphan", daemon=True).start()
