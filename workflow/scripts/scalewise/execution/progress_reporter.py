"""Rank 0 and its supervisor talk during the training by files, in a thread beside it.

A file system that is slow, full or away for a while then costs no step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType

from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import RankFiles

LOOK_SECONDS = 1.0
"""Time between two looks for a request to end."""

END_SECONDS = 1.0
"""Time that the last message may take."""

TELL_SECONDS = 5.0
"""Time between two messages on the progress of the training."""


class ProgressReporter:
    """Looks for requests, tells of progress and prints lines, from entry to exit, in a thread.

    Args:
        rank_files: The folder that both see; None for a rank that has nothing to say, which does nothing.
        throughput: Gives samples per second so far; asked in the thread, and only when progress is told.
    """

    def __init__(
        self, rank_files: RankFiles | None, throughput: Callable[[], float | None] = lambda: None
    ) -> None:
        self._rank_files = rank_files
        self._throughput = throughput
        self.progress: Progress | None = None
        """Set by the training, and told from time to time."""
        self.stop_request: str | None = None
        """The reason that the ranks are asked to end; None while nobody asks."""
        self._told: Progress | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ProgressReporter:
        if self._rank_files is not None:
            # a daemon: what a file system that hangs keeps must not keep the rank from its end
            self._thread = threading.Thread(
                target=self._run, args=(self._rank_files,), name="messenger", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)
            self._thread = None
            self._print()

    def say(self, text: str) -> None:
        """Print a line of train.log from the thread, in the order of the calls; here while there is none."""
        if self._thread is None:
            say(text)
        else:
            self._lines.put(text)

    def _run(self, rank_files: RankFiles) -> None:
        due = 0.0
        while True:
            last = self._ended.is_set()
            self._print()
            with suppress(OSError):
                self.stop_request = self.stop_request or rank_files.stop_request()
            if self.progress != self._told and (last or time.monotonic() >= due):
                with suppress(OSError):
                    self._tell(rank_files)
                    due = time.monotonic() + TELL_SECONDS
            if last:
                return
            self._ended.wait(LOOK_SECONDS)

    def _print(self) -> None:
        with suppress(Empty):
            while True:
                say(self._lines.get_nowait())

    def _tell(self, rank_files: RankFiles) -> None:
        progress = self.progress
        assert progress is not None, "only what was set differs from what was told"
        rank_files.progress(progress.model_copy(update={"samples_per_second": self._throughput()}))
        self._told = progress


def say(text: str) -> None:
    """Print a line of train.log, if the disk takes it."""
    with suppress(OSError):
        print(text, flush=True)
