"""Start the processes of a job's ranks, and end all of them; run the command that a program needs before."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from scalewise.config.program import command_for_folder
from scalewise.config.site import Site
from scalewise.plan.launch import Launch, interpreter, site_command

SCRIPTS = Path(__file__).parents[2]

TASK_VARIABLES = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|TASK_PID|GTIDS|NTASKS|NPROCS|NTASKS_PER_NODE|TASKS_PER_NODE"
    r"|STEP_.*|STEPID|SRUN_.*|LAUNCH_.*)|TORCHELASTIC_.*"
)
"""Variables of the Slurm task that this process is, such as an interactive shell, or of torchrun around it: a
program that reads them would take each of its ranks for the same one. srun and torchrun set them for each."""

KILLED_SECONDS = 60.0
"""Longest wait for a process that was killed."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Options from linux/prctl.h: a signal when the parent ends, and this process as parent of orphans."""

KILL_ROUNDS = 5
"""Times that remaining processes are listed and killed; one in uninterruptible sleep cannot be killed."""


def adopt_orphans() -> None:
    """Become the parent of what the descendants of this process leave when they end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants() -> None:
    """Kill all that this process and its descendants have started, also in other sessions."""
    with suppress(ChildProcessError):  # there is none
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        import psutil  # noqa: PLC0415 - takes its time

        for _ in range(KILL_ROUNDS):
            for process in (remaining := psutil.Process().children(recursive=True)):
                with suppress(psutil.Error):
                    process.kill()
            if not remaining:
                break
            psutil.wait_procs(remaining, timeout=5)


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
        inherited = {name: value for name, value in os.environ.items() if not TASK_VARIABLES.fullmatch(name)}
        try:
            for environment in launch.environments:
                process = subprocess.Popen(
                    launch.argv,
                    env=inherited | environment,
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
        """Kill all processes; ranks of torchrun end with their parent (``exit_when_parent_dies``)."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def prepare_program(preparation: Mapping[str, Any], site: Site) -> int:
    """Run the command of a preparation, once, on a machine with internet access; returns its exit code.

    Args:
        preparation: The values of ``preparation`` in plan/runs.
        site: The commands and the container by which programs start on the site.
    """
    runs_in: str | None = preparation.get("working_directory")
    python = command_for_folder(preparation["python"] or interpreter(site), runs_in)
    command, *arguments = preparation["words"]
    command = command_for_folder(command, runs_in)
    argv = [*([python] if command.endswith(".py") or command == "-m" else []), command, *arguments]
    visible = []
    if runs_in is not None:
        visible = [Path(runs_in).absolute()]
        # by the shell, not by subprocess: paths in prelude and container are relative to this folder
        argv = ["sh", "-c", 'cd -- "$0" && exec "$@"', runs_in, *argv]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCALEWISE_")}
    environment |= preparation["environment"]
    try:
        code = subprocess.run(
            site_command(site, visible, argv), env=environment, stdin=subprocess.DEVNULL, check=False
        ).returncode
        problem = f"{command} ended with code {code}; its output is above"
    except OSError as error:
        code, problem = 1, f"{argv[0]} cannot be started ({error.strerror})"
    if code:
        print(f"scalewise: prepare: {problem}", file=sys.stderr)
    return int(code != 0)
