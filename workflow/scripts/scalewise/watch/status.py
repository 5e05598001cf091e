"""Status of a study that another process runs, or has run: only from files."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

from scalewise.plan.formatting import clock_text, duration_text
from scalewise.plan.terminal.final_message import latest_answers
from scalewise.watch.lines import table
from scalewise.watch.look import Looker
from scalewise.watch.record import RECORD, WatchRecord, WatchRecordError, read_watch_record
from scalewise.watch.standing import Standing
from scalewise.watch.terminal import Display, display_for
from scalewise.watch.watcher import ALIVE_SECONDS, MOST_SHARE, POLL_SECONDS

NOT_STARTED = (
    "No study has been started in {folder}: there is no {record}. Run this where snakemake runs, or name "
    "that folder. `snakemake plan` shows the runs of a study."
)
MAX_LINES = 10_000
SILENT_SECONDS = 3 * ALIVE_SECONDS
"""A session that is silent for so long counts as ended, even if its process may exist: process ids are used
again, and those of another host cannot be seen."""


def head_line(record: WatchRecord, now: float) -> str:
    """Facts on the process that runs the study.

    Args:
        record: The session.
        now: Seconds since the epoch.
    """
    since = clock_text(record.began, now)
    who = f"process {record.pid} on {record.host}"
    if record.ended:
        return f"Started {since}, ended {clock_text(record.told_at, now)}."
    if is_over(record, now):
        silent = duration_text(now - record.told_at)
        gone = "has ended" if record.is_alive is False else f"has reported nothing for {silent}"
        return (
            f"Started {since} by {who}, which {gone}. Below is the last known status. Jobs in Slurm's queue "
            "may still run. The same snakemake command makes the missing runs."
        )
    return f"Running since {since}: {who}."


def is_over(record: WatchRecord, now: float) -> bool:
    """Whether the study no longer runs: it has ended, or its process has ended or is silent.

    Args:
        record: The session.
        now: Seconds since the epoch.
    """
    return record.ended or record.is_alive is False or now - record.told_at > SILENT_SECONDS


class StudyStatus:
    """The latest session of the study in a folder.

    Args:
        folder: Folder in which Snakemake runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looker: Looker | None = None
        self._of: tuple[float, int] | None = None
        self._record: WatchRecord | None = None

    def look(self, now: float) -> tuple[WatchRecord, Standing] | None:
        """Status of the study; None if none has been started.

        Args:
            now: Seconds since the epoch.

        Raises:
            WatchRecordError: The first look finds a record that cannot be read; later ones go by the last.
        """
        try:
            record = read_watch_record(self._folder)
        except WatchRecordError:
            if self._record is None:
                raise
            record = self._record
        if record is None:
            return None
        self._record = record
        if self._looker is None or self._of != (record.began, record.pid):
            results = self._folder / "results"
            self._looker = Looker(record.study, results, frozenset(record.session), record.first_asked)
            self._of = record.began, record.pid
        over = is_over(record, now)
        # runs at work when the session ended have made no known progress since
        until = min(now, record.told_at) if over else now
        return record, self._looker.look(dict(record.jobs), record.queue, record.rounds, until, over)


def print_status(folder: Path, stream: TextIO = sys.stdout) -> int:
    """Print the status of the study of a folder; returns the exit code, 1 if there is none.

    Args:
        folder: Folder in which Snakemake runs.
        stream: Stream to print to: to the width of a terminal, whole elsewhere.
    """
    now = time.time()
    try:
        seen = StudyStatus(folder).look(now)
    except WatchRecordError as error:
        print(error, file=sys.stderr)
        return 1
    if seen is None:
        print(NOT_STARTED.format(folder=folder.absolute(), record=RECORD), file=sys.stderr)
        return 1
    record, standing = seen
    width = shutil.get_terminal_size().columns if stream.isatty() else MAX_LINES
    answers = latest_answers(folder / "results") if is_over(record, now) else []
    print(head_line(record, now), *table(standing, width, MAX_LINES), *answers, sep="\n", file=stream)
    return 0


def follow_status(folder: Path, environ: dict[str, str], stream: TextIO = sys.stdout) -> int:
    """Show the status until the study ends, or until Ctrl-C, which ends only the display.

    Args:
        folder: Folder in which Snakemake runs.
        environ: The environment; TERM and NO_COLOR describe the terminal.
        stream: Stream to print to.
    """
    status = StudyStatus(folder)
    try:
        seen = status.look(time.time())
    except WatchRecordError:
        seen = None
    if seen is None or seen[1].over:
        return print_status(folder, stream)
    display: Display = display_for(stream, environ)
    record, standing = seen
    shown, began = "", time.process_time()
    try:
        while not standing.over:
            if shown != (shown := head_line(record, time.time())):
                display.say(shown)
            display.show(standing)
            # the measured runs may share this machine
            time.sleep(max(POLL_SECONDS, (time.process_time() - began) / MOST_SHARE))
            began = time.process_time()
            record, standing = status.look(time.time()) or (record, standing)
    except KeyboardInterrupt:
        pass
    finally:
        display.end(standing)
    if shown != (last := head_line(record, time.time())):
        display.say(last)
    return 0
