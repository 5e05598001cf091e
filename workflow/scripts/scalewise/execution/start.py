"""Start the processes of a job's ranks, and end all of them. Needs no torch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from scalewise.plan.launch import Launch

SCRIPTS = Path(__file__).parents[2]

TASK_VARIABLES = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|TASK_PID|GTIDS|NTASKS|NPROCS|NTASKS_PER_NODE|TASKS_PER_NODE"
    r"|STEP_.*|STEPID|SRUN_.*|LAUNCH_.*)"
)
"""Variables by which srun tells a task who it is, and salloc how many there are."""

KILLED_SECONDS = 60.0
"""Longest wait for a process that was killed."""


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
        self.failure = 0
        """Exit code of the first process that failed; 0 without one."""
        environment = without_task(os.environ) | launch.environment
        try:
            for further in launch.process_environments:
                process = subprocess.Popen(
                    launch.argv,
                    env=environment | further,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._processes.append(process)
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
        self.failure = self.failure or next(filter(None, codes), 0)
        return None if None in codes else self.failure

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
