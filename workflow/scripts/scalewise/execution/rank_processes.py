"""The processes that a launch starts: one that starts the ranks, or the ranks themselves. Needs no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO

import psutil

from scalewise.plan.jobs.launch import Launch


class RankProcesses:
    """Starts the processes of a launch, each in a session of its own, and ends them all.

    A session of their own keeps a Ctrl-C from them: it reaches the ranks through ``end`` alone.

    Args:
        log: receives what they print.

    Raises:
        OSError: one cannot be started; none of the others is left.
    """

    def __init__(self, launch: Launch, log: IO[str]) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failure: tuple[int, float] | None = None
        try:
            for own_environment in launch.own_environments:
                self._processes.append(
                    subprocess.Popen(
                        launch.argv,
                        env=os.environ | launch.environment | own_environment,
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
        """The exit code of the first that failed, else 0, once all have ended; None while any is at work."""
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
        """Whether one has failed at least so long ago, by what ``wait`` has seen."""
        return self._failure is not None and time.monotonic() - self._failure[1] >= seconds

    def end(self, grace_seconds: float) -> int:
        """Ask all to end, then make them."""
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
        """Leave nothing of them.

        torchrun's ranks have sessions of their own. They end with their parent (see parent_death.py), but
        not before they have begun to look for it.
        """
        for process in self._processes:
            left: list[psutil.Process] = []
            if process.poll() is None:
                with suppress(psutil.Error):
                    left = psutil.Process(process.pid).children(recursive=True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for rank in left:
                with suppress(psutil.Error):
                    rank.kill()
