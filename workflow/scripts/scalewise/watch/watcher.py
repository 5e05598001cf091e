"""Watches a study beside Snakemake: a thread that looks now and then, and shows what it sees."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from scalewise.execution.supervisor import STUDY_IS_SHOWN
from scalewise.plan.config.experiment import AnyExperiment
from scalewise.plan.runs.rounds import FOLDER
from scalewise.plan.terminal.failure_lines import failure_lines
from scalewise.records import RecordError, read_failure
from scalewise.snakemake_adapter import terminal_handlers
from scalewise.watch.jobs import JobLog, Silence, failed_run, repeats_failed_job
from scalewise.watch.look import Looker
from scalewise.watch.points import Rounds, RunKey, WatchedStudy, read_rounds
from scalewise.watch.record import WatchRecord, write_watch_record
from scalewise.watch.run_files import RunFacts, identity
from scalewise.watch.slurm_queue import QueuedJob, SlurmQueue
from scalewise.watch.standing import Standing
from scalewise.watch.terminal import Display

POLL_SECONDS = 3.0
"""Time between two looks: they share the machine with what is measured on it."""
MOST_SHARE = 0.005
"""Share of one CPU that looking may take: a study of many runs is looked at less often."""
EVENT_SECONDS = 0.3
"""Least time from an event of Snakemake to the look at what it has changed."""
END_SECONDS = 2.0
"""Time that the last look may take; a file system that hangs must not keep Snakemake from its end."""
STILL_SECONDS = 180.0
"""A job whose ranks have told nothing for so long may have been put back into the queue."""
ALIVE_SECONDS = 60.0
"""Time between two writings of the record where nothing happens."""


class Watcher:
    """Shows how a study stands from ``start`` to ``end``, in place of Snakemake's own log.

    That log goes on into its file. Warnings and errors are still shown. Whatever goes wrong while watching
    ends the showing alone: other processes still learn how the study stands.

    Args:
        study: The points to show.
        specs: Every experiment's keys, by name, for what the rounds ask for.
        folder: Folder in which Snakemake runs.
        session: Runs that this session makes, as far as is known now.
        logger: Snakemake's.
        display: Display to use; None for Snakemake's own log, beside which nothing is shown.
        slurm: Slurm's queue; None on one machine.
        now: Gives seconds since the epoch.
        train: Name of the rule that trains.
    """

    def __init__(
        self,
        study: WatchedStudy,
        specs: Mapping[str, AnyExperiment],
        folder: Path,
        session: Iterable[RunKey],
        logger: logging.Logger,
        display: Display | None,
        slurm: SlurmQueue | None = None,
        now: Callable[[], float] = time.time,
        train: str = "train",
    ) -> None:
        self._train = train
        self._study, self._specs, self._folder = study, specs, folder
        self._results = folder / "results"
        self._session = frozenset(session)
        self._logger, self._slurm, self._now = logger, slurm, now
        self._display = display
        self._silence = Silence(is_shown_better=self._show_failure)
        self._shown_reasons: dict[str, str] = {}
        self._wake, self._ended = threading.Event(), threading.Event()
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        # apart from the looks: a slow Slurm or file system must not make the session look dead
        self._recorder = threading.Thread(target=self._keep_record, name="watch-record", daemon=True)
        self._rounds = Rounds(asked={})
        self._rounds_seen: tuple[tuple[int, ...], ...] | None = None
        self._first_asked = self._read_rounds().asked
        self._looker = Looker(study, self._results, self._session, self._first_asked)
        self._log = JobLog(self._looker.files.last_start, self._wake.set, train=train)
        self._queue: dict[str, QueuedJob] = {}
        self._began = now()
        self._written: tuple[Any, ...] = (0.0,)

    @property
    def is_shown(self) -> bool:
        """Whether the terminal shows the study, and not Snakemake's own log."""
        return self._display is not None

    def start(self) -> None:
        """Begin; Snakemake's own log then goes to its file alone."""
        try:
            self._logger.addHandler(self._log)
            if self._display is not None:
                for handler in terminal_handlers(self._logger):
                    handler.addFilter(self._silence)
                # the bar of a single run would be drawn across it
                os.environ[STUDY_IS_SHOWN] = "1"
            atexit.register(self.end)
            self._thread.start()
            self._recorder.start()
        except Exception as error:  # noqa: BLE001 - whatever it is, the study goes on
            self._hide(error)

    def end(self) -> None:
        """Show the last state and give Snakemake its log back; does nothing the second time."""
        with self._guard:
            if self._ended.is_set():
                return
            self._ended.set()
        self._wake.set()
        try:
            if self._thread.ident is not None:
                self._thread.join(END_SECONDS)
        finally:
            # also where somebody does not wait for the end of this
            if self._thread.is_alive():
                # its files are late: the terminal is given back all the same, if it is still there
                self._draw(lambda display: display.end(None))
            self._give_log_back()
            self._logger.removeHandler(self._log)
        if self._recorder.ident is not None:
            self._recorder.join(END_SECONDS)

    def _give_log_back(self) -> None:
        """Let Snakemake's log onto the terminal again; the jobs are still followed through it."""
        self._silence.on = False
        os.environ.pop(STUDY_IS_SHOWN, None)
        for handler in terminal_handlers(self._logger):
            handler.removeFilter(self._silence)

    def _hide(self, error: Exception) -> None:
        """Leave the terminal to Snakemake's own log."""
        display, self._display = self._display, None
        if display is None:
            return
        self._give_log_back()
        # the terminal may be gone: then there is nobody to tell
        with suppress(Exception):
            display.end(None)
            display.say(
                f"The study is no longer shown ({type(error).__name__}: {error}); Snakemake's log follows."
            )

    def _draw(self, draw: Callable[[Display], None]) -> None:
        """Draw where the study is shown; where that fails, it is shown no longer."""
        if (display := self._display) is None:
            return
        try:
            draw(display)
        except Exception as error:  # noqa: BLE001 - whatever it is, the study goes on
            self._hide(error)

    def _show_failure(self, record: logging.LogRecord) -> bool:
        """Show why a run failed, in place of Snakemake's record with the same and its command line.

        Returns:
            Whether the record need not be shown: False if the run's job has left no reason.
        """
        if repeats_failed_job(record):
            return True
        folder = failed_run(record, self._train)
        if self._display is None or folder is None:
            return False
        try:
            run = folder.parts[-3], folder.name
            earlier_start = self._log.jobs()[run].earlier_start
            failure = read_failure(folder)
        except (RecordError, OSError, LookupError):
            return False
        if failure is None or failure.started_at == earlier_start:
            return False
        text = "\n".join(failure_lines("/".join(run), failure, folder / "train.log", self._shown_reasons))
        self._draw(lambda display: display.say(text))
        return self._display is not None

    def _watch(self) -> None:
        try:
            while not self._ended.is_set():
                began = time.thread_time()
                standing = self._look()
                if self._ended.is_set():
                    break
                self._draw(partial(_show, standing))
                pause = (time.thread_time() - began) / MOST_SHARE
                since = time.monotonic()
                if self._wake.wait(max(POLL_SECONDS, pause)):
                    # several events come together; and a run's files are written around its own
                    self._ended.wait(max(EVENT_SECONDS, since + pause - time.monotonic()))
                self._wake.clear()
            last = self._look(over=True)
            self._draw(lambda display: display.end(last))
        except Exception as error:  # noqa: BLE001 - whatever it is, the study goes on
            self._hide(error)
            self._queue = {}  # nobody asks any more

    def _look(self, over: bool = False) -> Standing:
        jobs = self._log.jobs()
        self._rounds = self._read_rounds()
        standing = self._looker.look(jobs, self._queue, self._rounds, self._now(), over)
        if self._slurm is None or over:
            return standing
        asked = {
            jobs[run].slurm_id
            for run, facts in standing.runs.items()
            if run in jobs and _may_be_queued(facts, standing.now)
        }
        before, self._queue = self._queue, self._slurm.jobs(frozenset(asked - {""}))
        if self._queue != before:
            standing = self._looker.look(jobs, self._queue, self._rounds, self._now())
        return standing

    def _read_rounds(self) -> Rounds:
        """The rounds, read again when one more has been judged."""
        judged = (name for name, spec in self._specs.items() if spec.judges_rounds)
        seen = tuple(identity(self._results / name / FOLDER) for name in judged)
        if seen != self._rounds_seen:
            self._rounds_seen, self._rounds = seen, read_rounds(self._specs, self._results)
        return self._rounds

    def _keep_record(self) -> None:
        """Write the record while the session goes on, at once at its end, and after the last look."""
        with suppress(Exception):
            pause = 0.0
            while not self._ended.wait(pause):
                began = time.thread_time()
                self._write()
                used = time.thread_time() - began
                pause = min(max(POLL_SECONDS, used / MOST_SHARE), ALIVE_SECONDS)
            self._write(ended=True)
            self._thread.join(END_SECONDS)
            self._write(ended=True)

    def _write(self, ended: bool = False) -> None:
        """Leave word for other processes, if there is news or they may wonder whether this one lives."""
        jobs, now = self._log.jobs(), self._now()
        news = (jobs, dict(self._queue), self._rounds, ended)
        if news == self._written[1:] and now - self._written[0] < ALIVE_SECONDS:
            return
        self._written = (now, *news)
        record = WatchRecord(
            study=self._study,
            rounds=self._rounds,
            first_asked=self._first_asked,
            host=socket.gethostname(),
            pid=os.getpid(),
            began=self._began,
            told_at=now,
            session=tuple(sorted(self._session)),
            jobs=tuple(jobs.items()),
            queue=self._queue,
            ended=ended,
        )
        # a disk that is full is for the runs to tell of
        with suppress(OSError):
            write_watch_record(self._folder, record)


def _show(standing: Standing, display: Display) -> None:
    display.show(standing)


def _may_be_queued(facts: RunFacts, now: float) -> bool:
    """Whether Slurm may know more of a run than its files, which tell nothing of a job put back by force."""
    if facts.state == "running":
        return facts.reported_at is not None and now - facts.reported_at > STILL_SECONDS
    return facts.state in {"queued", "starting"}
