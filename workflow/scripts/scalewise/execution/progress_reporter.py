"""Report rank 0's progress and look for requests to stop, in a thread.

So a file system that is slow, full or unavailable delays no step of the training.
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
"""Time that the last report may take."""

REPORT_SECONDS = 5.0
"""Time between two reports of the progress."""


class ProgressReporter:
    """Reports progress, looks for requests to stop and prints lines in a thread, from entry to exit.

    Args:
        rank_files: The files that the supervisor reads; None for a rank that reports nothing.
        throughput: Returns samples per second so far; called in the thread, before each report.
    """

    def __init__(
        self, rank_files: RankFiles | None, throughput: Callable[[], float | None] = lambda: None
    ) -> None:
        self._rank_files = rank_files
        self._throughput = throughput
        self.progress: Progress | None = None
        """Set by the training, and reported every few seconds."""
        self.stop_request: str | None = None
        """The reason of a request to stop; None without a request."""
        self._reported: Progress | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ProgressReporter:
        if self._rank_files is not None:
            # a daemon: a file system that hangs must not keep the rank from ending
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
        """Print a line of train.log, in the order of the calls: in the thread while it runs."""
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
            if self.progress != self._reported and (last or time.monotonic() >= due):
                with suppress(OSError):
                    self._report(rank_files)
                    due = time.monotonic() + REPORT_SECONDS
            if last:
                return
            self._ended.wait(LOOK_SECONDS)

    def _print(self) -> None:
        with suppress(Empty):
            while True:
                say(self._lines.get_nowait())

    def _report(self, rank_files: RankFiles) -> None:
        progress = self.progress
        assert progress is not None, "only progress that was set differs from the last report"
        rank_files.progress(progress.model_copy(update={"samples_per_second": self._throughput()}))
        self._reported = progress


def say(text: str) -> None:
    """Print a line of train.log, unless the disk is full."""
    with suppress(OSError):
        print(text, flush=True)
