"""Watch a study in a thread of Snakemake's process: read its files, show its status, write its session."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from scalewise.config.experiment import AnyExperiment
from scalewise.plan.terminal.failure_lines import failure_lines
from scalewise.records import RecordError, read_failure
from scalewise.snakemake_adapter import is_command_error, is_for_user, job_event, terminal_handlers
from scalewise.watch.hidden_jobs import PluginQueue
from scalewise.watch.jobs import JobLog, SlurmQueue
from scalewise.watch.status import StatusReader, StudyStatus
from scalewise.watch.study import QueuedJob, RunKey, StudySession, WatchedStudy, read_rounds
from scalewise.watch.terminal import Display

POLL_SECONDS = 3.0
"""Time between two looks: they share the machine with what is measured on it."""
MOST_SHARE = 0.005
"""Most of one CPU, as a share, that looks may take: a study of many runs is looked at less often."""
EVENT_SECONDS = 0.3
"""Least time from an event of Snakemake to the next look."""
END_SECONDS = 2.0
"""Time that the last look may take: a file system that hangs must not keep Snakemake from ending."""
STILL_SECONDS = 180.0
"""Time without a report after which a job may be back in Slurm's queue."""
ALIVE_SECONDS = 60.0
"""Time between two writings of the session when nothing happens."""


class Silence(logging.Filter):
    """Keeps Snakemake's information from the terminal; records for the user pass.

    Args:
        condition: Whether the filter has an effect while it is on.
        is_shown_better: Whether an error was shown in another form, which is enough.
    """

    def __init__(
        self,
        condition: Callable[[], bool] = lambda: True,
        is_shown_better: Callable[[logging.LogRecord], bool] = lambda _: False,
    ) -> None:
        super().__init__()
        self._condition, self._is_shown_better, self.on = condition, is_shown_better, True

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is shown."""
        if not self.on or not self._condition():
            return True
        return is_for_user(record) and not self._is_shown_better(record)


class Watcher:
    """Shows the status of a study from ``start`` to ``end``, instead of Snakemake's log.

    That log continues in its file. Warnings and errors are still shown. An error while watching only ends the
    display: other processes can still read the status of the study.

    Args:
        study: The points to show.
        specs: Every experiment's keys by name: the rounds depend on them.
        folder: Folder in which Snakemake runs.
        runs: Runs that this session makes, as far as is known now.
        logger: Snakemake's.
        display: Display to use; None for Snakemake's log.
        slurm: Slurm's queue; None on one machine.
        plugin: The executor plugin's view of that queue; None on one machine.
        now: Gives seconds since the epoch.
        train: Name of the rule that trains.
        refused: Runs that this session does not start, as they would fail as before.
    """

    def __init__(
        self,
        study: WatchedStudy,
        specs: Mapping[str, AnyExperiment],
        folder: Path,
        runs: Iterable[RunKey],
        logger: logging.Logger,
        display: Display | None,
        slurm: SlurmQueue | None = None,
        now: Callable[[], float] = time.time,
        train: str = "train",
        plugin: PluginQueue | None = None,
        refused: Iterable[RunKey] = (),
    ) -> None:
        self._specs, self._folder, self._results = specs, folder, folder / "results"
        self._logger, self._display, self._slurm, self._now = logger, display, slurm, now
        self._plugin = plugin
        self._silence = Silence(is_shown_better=self._show_failure)
        self._shown_reasons: dict[str, str] = {}
        self._wake, self._ended, self._guard = threading.Event(), threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._train = train
        self._log = JobLog(self._wake.set, now, train)
        self._reader = StatusReader(self._results)
        self._queue: dict[str, QueuedJob] = {}
        self._in_doubt: frozenset[str] = frozenset()
        rounds = read_rounds(specs, self._results)
        self._session = StudySession(
            study=study,
            rounds=rounds,
            first_requested=rounds.requested,
            host=socket.gethostname(),
            pid=os.getpid(),
            began=now(),
            written_at=0.0,
            runs=tuple(sorted(runs)),
            refused=tuple(sorted(refused)),
        )
        self._written = self._session

    @property
    def is_shown(self) -> bool:
        """Whether the terminal shows the study, and not Snakemake's log."""
        return self._display is not None

    def start(self) -> None:
        """Begin; Snakemake's log then only goes to its file."""
        try:
            self._logger.addHandler(self._log)
            if self._display is not None:
                for handler in terminal_handlers(self._logger):
                    handler.addFilter(self._silence)
                # the bar of a single run would be drawn across it
            atexit.register(self.end)
            self._thread.start()
        except Exception as error:  # noqa: BLE001 - no error of the display may end the study
            self._hide(error)

    def end(self) -> None:
        """Show the last status and give Snakemake its log back; do nothing the second time."""
        with self._guard:
            if self._ended.is_set():
                return
            self._ended.set()
        self._wake.set()
        try:
            if self._thread.ident is not None:
                self._thread.join(END_SECONDS)
        finally:
            # after Ctrl-C during the wait, too
            if self._thread.is_alive():
                # the file system hangs: release the terminal, if it is still there
                self._draw(lambda display: display.end(None))
            self._give_log_back()
            self._logger.removeHandler(self._log)
            self._write(self._session.model_copy(update={"jobs": tuple(self._log.jobs().items())}))

    def _give_log_back(self) -> None:
        """Let Snakemake's log onto the terminal again; the jobs are still followed through it."""
        self._silence.on = False
        for handler in terminal_handlers(self._logger):
            handler.removeFilter(self._silence)

    def _hide(self, error: Exception) -> None:
        """Leave the terminal to Snakemake's own log."""
        display, self._display = self._display, None
        if display is None:
            return
        self._give_log_back()
        # the terminal may be gone
        with suppress(Exception):
            display.end(None)
            display.say(
                f"The study is no longer shown ({type(error).__name__}: {error}); Snakemake's log follows."
            )

    def _draw(self, draw: Callable[[Display], None]) -> None:
        """Draw on the display if there is one; end it if that fails."""
        if (display := self._display) is None:
            return
        try:
            draw(display)
        except Exception as error:  # noqa: BLE001 - no error of the display may end the study
            self._hide(error)

    def _show_failure(self, record: logging.LogRecord) -> bool:
        """Show why a run failed, instead of Snakemake's record of the same error.

        Returns:
            Whether the record need not be shown: False if the run's history has no reason.
        """
        if is_command_error(record):
            return True
        try:
            event = job_event(record)
            if self._display is None or event is None or event.rule != self._train or event.log is None:
                return False
            folder = event.log.parent
            run = folder.parts[-3], folder.name
            if run in self._session.refused and run not in self._log.jobs():
                return True  # the plan states it
            failure = read_failure(folder)
            if failure is None or not self._log.jobs()[run].has_made(failure):
                return False
        except (RecordError, OSError, LookupError, ValueError, TypeError):
            return False
        text = "\n".join(failure_lines("/".join(run), failure, folder / "train.log", self._shown_reasons))
        self._draw(lambda display: display.say(text))
        return self._display is not None

    def _watch(self) -> None:
        while not self._ended.is_set():
            began = time.thread_time()
            self._look_and_draw()
            if self._ended.is_set():
                break
            self._write(self._session)
            pause = (time.thread_time() - began) / MOST_SHARE
            since = time.monotonic()
            if self._wake.wait(max(POLL_SECONDS, pause)):
                # several events come together, and a run's files may be written after its event
                self._ended.wait(max(EVENT_SECONDS, since + pause - time.monotonic()))
            self._wake.clear()
        self._look_and_draw(over=True)

    def _look_and_draw(self, over: bool = False) -> None:
        try:
            status = self._look(over)
        except Exception as error:  # noqa: BLE001 - no error of the display may end the study
            self._hide(error)
            return
        if over:
            self._draw(lambda display: display.end(status))
        elif not self._ended.is_set():
            self._draw(lambda display: display.show(status))

    def _look(self, over: bool = False) -> StudyStatus:
        if self._slurm is not None and not over:
            self._queue = self._slurm.jobs(self._in_doubt)
        news = {
            "rounds": read_rounds(self._specs, self._results),
            "jobs": tuple(self._log.jobs().items()),
            "queue": self._queue,
        }
        self._session = self._session.model_copy(update=news)
        status = self._reader.read(self._session, self._now(), over)
        self._in_doubt = self._unsettled_jobs(status)
        if self._plugin is not None and not over:
            # the plugin's query is not ours, and the display does not depend on it
            with suppress(Exception):
                self._report_hidden(self._plugin, status)
        return status

    def _report_hidden(self, plugin: PluginQueue, status: StudyStatus) -> None:
        """Warn of a run that has ended while Slurm does not show its job to the executor plugin."""
        ended = {
            job.slurm_id: "/".join(run)
            for run, job in self._session.jobs
            if job.slurm_id
            and job.state == "handed over"
            and run in status.runs
            and status.runs[run].state in ("done", "failed")
        }
        for job in plugin.hidden(ended):
            self._logger.warning(
                f"{ended[job]} has ended, but Slurm does not show its job {job}: {plugin.cause}. "
                f"{plugin.fix} Then end snakemake by Ctrl-C, and give the same command again."
            )

    def _unsettled_jobs(self, status: StudyStatus) -> frozenset[str]:
        """Return Slurm's ids of the jobs that have not ended and whose ranks report nothing."""
        reported = {
            run: each.progress.reported_at for run, each in status.runs.items() if each.progress is not None
        }
        return frozenset(
            job.slurm_id
            for run, job in self._session.jobs
            if job.slurm_id
            and job.state == "handed over"
            and status.now - reported.get(run, 0.0) > STILL_SECONDS
        )

    def _write(self, session: StudySession) -> None:
        """Write the session if it has changed, or if readers may soon take this process for ended."""
        now = self._now()
        session = session.model_copy(
            update={"written_at": self._written.written_at, "ended": self._ended.is_set()}
        )
        if session == self._written and now - session.written_at < ALIVE_SECONDS:
            return
        self._written = session.model_copy(update={"written_at": now})
        # a full disk fails the runs, which report it
        with suppress(Exception):
            self._written.write(self._folder)
