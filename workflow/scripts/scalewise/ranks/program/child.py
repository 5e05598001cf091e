"""The process of a user's program: started as it is, its output passed on, and none of it left at the end."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Options, from linux/prctl.h: the signal at the parent's end, and who gets orphaned descendants."""

TAIL_LINES = 60
"""Last lines that are kept for the reason of a failure."""

LONGEST_LINE = 2000
"""Characters of a line that are kept; bars of progress are lines without end."""

DRAIN_SECONDS = 2.0
"""Longest wait for the end of the output: a process that was left behind may hold it open."""

MOST_ROUNDS = 5
"""Looks for processes that one that was ended has left; what the kernel holds longer cannot be ended."""

_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)$")


class Child:
    """A program at work.

    Args:
        argv: Program and arguments; no shell is between.
        environment: All of its variables.
        line_read: Called with each line that it prints and the monotonic seconds of this host, which its
            processes share, in a thread of its own.
        working_directory: The folder that it runs in; None for that of this process.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        line_read: Callable[[str, float], None] | None = None,
        working_directory: str | None = None,
    ) -> None:
        self._line_read = line_read
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)

        def begin() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            # what this process ignores or handles is no matter of the program, whose own handlers may count
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())

        # output in one pipe, so that its lines stay in their order
        self._process = subprocess.Popen(
            list(argv),
            cwd=working_directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=begin,  # noqa: PLW1509  # no other thread is at work yet
        )
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None while it is at work."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def handles(self, number: int) -> bool:
        """Whether it has a handler for a signal."""
        with suppress(OSError):
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
            if caught := re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE):
                return bool(int(caught[1], 16) >> (number - 1) & 1)
        return False

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, so that it does nothing until another one wakes it."""
        with suppress(psutil.Error):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    def end(self, grace_seconds: float = 0.0) -> None:
        """Leave nothing of it: ask it to end where there is time for that, then end what is left."""
        if grace_seconds and self._process.poll() is None:
            self.send(signal.SIGTERM)
            self.wait(grace_seconds)
        # what it started has become this process's own by the end of its parent
        for _ in range(MOST_ROUNDS):
            left = psutil.Process().children(recursive=True)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            if not left:
                break
            psutil.wait_procs(left, timeout=5)
            self._process.poll()
        self._reader.join(DRAIN_SECONDS)

    @property
    def tail(self) -> list[str]:
        """The last lines that it has printed."""
        return list(self._tail)

    def last_error(self) -> str:
        """The last line that names an exception; else the last line at all, empty where there is none."""
        lines = self.tail
        for line in reversed(lines):
            if found := _ERROR.match(line):
                return found[1]
        return next((line for line in reversed(lines) if line.strip()), "")

    def traceback(self) -> str:
        """The last lines from the last traceback on; all of them where there is none."""
        lines = self.tail
        begins = [index for index, line in enumerate(lines) if "Traceback (most recent call last)" in line]
        return "\n".join(lines[begins[-1] :] if begins else lines)

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        # as they come: a bar of progress is drawn without an end of line
        left = b""
        with output:
            while chunk := os.read(output.fileno(), 65536):
                now = time.perf_counter()
                with suppress(OSError):
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()
                *lines, left = (left + chunk).replace(b"\r", b"\n").split(b"\n")
                left = left[:LONGEST_LINE]  # an error begins with its name
                for line in lines:
                    self._take(line, now)
        if left:
            self._take(left, time.perf_counter())

    def _take(self, line: bytes, now: float) -> None:
        text = line[:LONGEST_LINE].decode("utf-8", errors="replace")
        self._tail.append(text)
        if self._line_read is not None:
            self._line_read(text, now)
