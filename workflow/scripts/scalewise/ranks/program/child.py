"""The process of a user's program: start it unchanged, pass on its output and signals, and end all of it."""

from __future__ import annotations

import ctypes
import math
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
from types import FrameType

import psutil

from scalewise.execution.rank_files import RankFiles
from scalewise.execution.start import PR_SET_PDEATHSIG, adopt_orphans, kill_descendants

TAIL_LINES = 60
"""Last lines that are kept for the reason of a failure."""

LONGEST_LINE = 2000
"""Characters of a line that are kept; bars of progress are lines without end."""

DRAIN_SECONDS = 2.0
"""Longest wait for the end of the output, which a remaining process may hold open."""

GRACE_SECONDS = 8.0
"""Time that the program has after a SIGTERM, for its own handlers; the supervisor gives little more."""

NOTE_SECONDS = 2.0
"""Time between two reads of the supervisor's note, on a file system that many ranks may share."""

_TRACEBACK, _IGNORED = "Traceback (most recent call last)", "Exception ignored in"

_MARGIN = re.compile(r"^(?:\[rank\d+\]: ?)?(?: *[|+] ?)*")
"""The rank that torch puts before each line of a traceback, and the bars of an exception group."""


def say(text: str) -> None:
    """Print a line of train.log, in any encoding, unless the disk is full."""
    with suppress(OSError):
        sys.stdout.buffer.write(f"{text}\n".encode(errors="backslashreplace"))
        sys.stdout.buffer.flush()


def exit_when_parent_dies(child: Child, supervisor: int | None, supervisor_is_here: bool) -> None:
    """End this process, a rank, and all of its program once its parent or its job has ended, or was killed.

    A job that was killed cannot end its ranks. They would continue to train during the next run, and disturb
    its figures.

    Args:
        child: The program.
        supervisor: The process id of the job; None if another process ends its ranks.
        supervisor_is_here: Whether the job runs on this host, where its id is valid.
    """
    parent = os.getppid()
    watched = Path(f"/proc/{supervisor}") if supervisor is not None and supervisor_is_here else None

    def look(*_: object) -> None:
        if os.getppid() != parent or (watched is not None and not watched.exists()):
            try:
                child.end()
            finally:
                os._exit(1)

    def watch() -> None:
        while True:
            look()
            time.sleep(1.0)

    # at once, by the kernel: also if this process is stopped
    signal.signal(signal.SIGCONT, look)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    threading.Thread(target=watch, name="orphan", daemon=True).start()


class Child:
    """A running program.

    Args:
        argv: Program and arguments, without a shell.
        environment: All of its variables.
        line_read: Called in a thread with each line that it prints and the monotonic seconds of this host.
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
        adopt_orphans()

        def begin() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            # programs that save at a signal need the defaults, not what this process ignores or blocks
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
            preexec_fn=begin,  # noqa: PLW1509  # no other thread runs yet
        )
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def handles(self, number: int) -> bool:
        """Return whether it has a handler for a signal."""
        with suppress(OSError):
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
            if caught := re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE):
                return bool(int(caught[1], 16) >> (number - 1) & 1)
        return False

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped it; it does nothing until SIGCONT."""
        with suppress(psutil.Error):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    def end(self, grace_seconds: float = 0.0) -> None:
        """Send SIGTERM and wait if there is time for that; then kill it and all that it has started."""
        if grace_seconds and self._process.poll() is None:
            self.send(signal.SIGTERM)
            self.wait(grace_seconds)
        kill_descendants()
        self._process.poll()
        self._reader.join(DRAIN_SECONDS)

    @property
    def tail(self) -> list[str]:
        """Return the last lines that it has printed."""
        return list(self._tail)

    def last_error(self) -> str:
        """Return the error of the last traceback, else the last line; empty if there is none."""
        lines = (_MARGIN.sub("", line) for line in self._traceback()[1:])
        # those of the stack are indented, and a message may begin with empty lines
        texts = [line for line in lines if not line.startswith(" ")]
        if error := next(filter(None, texts), ""):
            return error if error.rstrip()[-1:] != ":" else " ".join(filter(None, texts[:3]))
        return next((line for line in reversed(self.tail) if line.strip()), "")

    def traceback(self) -> str:
        """Return the last lines from the last traceback on; all of them if there is none."""
        return "\n".join(self._traceback() or self.tail)

    def _traceback(self) -> list[str]:
        """Return the last lines from the last traceback on that may have ended the program."""
        # Python ignores an error of a destructor, at the exit too
        lines, before = self.tail, ["", *self.tail]
        begins = [n for n, line in enumerate(lines) if _TRACEBACK in line and _IGNORED not in before[n]]
        return lines[begins[-1] :] if begins else []

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        # in pieces: a bar of progress has no end of line
        rest = b""
        with output:
            while chunk := os.read(output.fileno(), 65536):
                now = time.perf_counter()
                with suppress(OSError):
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                rest = rest[:LONGEST_LINE]  # an error begins with its name
                for line in lines:
                    self._keep(line, now)
        if rest:
            self._keep(rest, time.perf_counter())

    def _keep(self, line: bytes, now: float) -> None:
        text = line[:LONGEST_LINE].decode("utf-8", errors="replace")
        self._tail.append(text)
        if self._line_read is not None:
            self._line_read(text, now)


class EndRequest:
    """A request to end before the program is done: a signal to this process, or the supervisor's note.

    A program that resumes may save its state. It gets SIGUSR1 if it handles that signal, else SIGTERM,
    and all the time that the supervisor has. Any other gets SIGTERM and ``GRACE_SECONDS``.

    Args:
        rank_files: The folder of the supervisor's note.
        ranks: The ranks of this process.
        resumes: Whether the program resumes by itself.
    """

    def __init__(self, rank_files: RankFiles, ranks: range, resumes: bool) -> None:
        self._rank_files, self._ranks, self._resumes = rank_files, ranks, resumes
        self._terminated = False
        self._sent: set[int] = set()
        self._read_at, self._deadline = 0.0, math.inf
        self.source = ""
        """The signal's name, or the text of the note; empty without a request."""
        self.by_launcher = False
        """Whether a SIGTERM came first: launchers send one to the peers of a rank that has failed."""

    def __enter__(self) -> EndRequest:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def is_over(self, child: Child, now: float) -> bool:
        """Pass a request on to the program; return whether the program's time is over.

        Args:
            child: The program.
            now: Monotonic seconds.
        """
        if not self.source and now >= self._read_at:
            self._read_at = now + NOTE_SECONDS
            self.read_note()
        if not self.source:
            return False
        if not self._sent:
            with suppress(OSError):
                for rank in self._ranks:
                    self._rank_files.mark(rank, "terminated")
        must_end = self._terminated or not self._resumes
        number = signal.SIGTERM if must_end or not child.handles(signal.SIGUSR1) else signal.SIGUSR1
        if number not in self._sent and signal.SIGTERM not in self._sent:
            self._sent.add(number)
            child.send(number)
        if must_end and self._deadline == math.inf:
            self._deadline = now + GRACE_SECONDS
        return now >= self._deadline

    def read_note(self) -> None:
        """Read the supervisor's note, if there is one."""
        self.source = self.source or self._rank_files.stop_request()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._terminated = self._terminated or number == signal.SIGTERM
        if not self.source:
            self.source, self.by_launcher = signal.Signals(number).name, number == signal.SIGTERM
