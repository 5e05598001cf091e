"""Show the status of a study that another process runs, or has run: only from files."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

from scalewise.plan.formatting import clock_text, duration_text
from scalewise.plan.terminal.final_message import latest_answers
from scalewise.watch.status import StatusReader, StudyStatus
from scalewise.watch.study import SESSION, SessionError, StudySession
from scalewise.watch.terminal import Display, display_for
from scalewise.watch.texts import table
from scalewise.watch.watcher import ALIVE_SECONDS, MOST_SHARE, POLL_SECONDS

NOT_STARTED = (
    "No study has been started in {folder}: there is no {session}. Run this where snakemake runs, or name "
    "that folder. `snakemake plan` shows the runs of a study."
)
MAX_LINES = 10_000
SILENT_SECONDS = 3 * ALIVE_SECONDS
"""A session that is silent for so long counts as ended, even if its process may exist: process ids are used
again, and those of another host cannot be seen."""


def head_line(session: StudySession, now: float) -> str:
    """Return the line on the process that runs the study, or that ran it.

    Args:
        session: Session of the study.
        now: Seconds since the epoch.
    """
    since = clock_text(session.began, now)
    who = f"process {session.pid} on {session.host}"
    if session.ended:
        return f"Started {since}, ended {clock_text(session.written_at, now)}."
    if is_over(session, now):
        silent = duration_text(now - session.written_at)
        gone = "has ended" if session.is_alive is False else f"has reported nothing for {silent}"
        return (
            f"Started {since} by {who}, which {gone}. Below is the last known status. Jobs in Slurm's queue "
            "may still run. The same snakemake command makes the missing runs."
        )
    return f"Running since {since}: {who}."


def is_over(session: StudySession, now: float) -> bool:
    """Whether the study no longer runs: it has ended, or its process has ended or is silent.

    Args:
        session: Session of the study.
        now: Seconds since the epoch.
    """
    return session.ended or session.is_alive is False or now - session.written_at > SILENT_SECONDS


class OtherStudy:
    """The latest session of the study in a folder, which another process runs.

    Args:
        folder: Folder in which Snakemake runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session: StudySession | None = None
        self._reader = StatusReader(folder / "results")

    def look(self, now: float) -> tuple[StudySession, StudyStatus] | None:
        """Return the session and the status of the study; None if none has been started.

        Args:
            now: Seconds since the epoch.

        Raises:
            SessionError: The first look finds a file that cannot be read; later ones use the last session.
        """
        earlier = self._session
        try:
            session = StudySession.read(self._folder)
        except SessionError:
            if earlier is None:
                raise
            session = earlier
        if session is None:
            return None
        self._session = session
        if earlier is not None and (earlier.began, earlier.pid) != (session.began, session.pid):
            self._reader = StatusReader(self._folder / "results")
        over = is_over(session, now)
        # runs at work when the session ended have made no known progress since
        until = min(now, session.written_at) if over else now
        return session, self._reader.read(session, until, over)


def print_status(folder: Path, stream: TextIO = sys.stdout) -> int:
    """Print the status of the study of a folder; returns the exit code, 1 if there is none.

    Args:
        folder: Folder in which Snakemake runs.
        stream: Stream to print to: to the width of a terminal, whole elsewhere.
    """
    now = time.time()
    try:
        seen = OtherStudy(folder).look(now)
    except SessionError as error:
        print(error, file=sys.stderr)
        return 1
    if seen is None:
        print(NOT_STARTED.format(folder=folder.absolute(), session=SESSION), file=sys.stderr)
        return 1
    session, status = seen
    width = shutil.get_terminal_size().columns if stream.isatty() else MAX_LINES
    answers = latest_answers(folder / "results") if is_over(session, now) else []
    print(head_line(session, now), *table(status, width, MAX_LINES), *answers, sep="\n", file=stream)
    return 0


def follow_status(folder: Path, environ: dict[str, str], stream: TextIO = sys.stdout) -> int:
    """Show the status until the study ends, or until Ctrl-C, which ends only the display.

    Args:
        folder: Folder in which Snakemake runs.
        environ: The environment; TERM and NO_COLOR describe the terminal.
        stream: Stream to print to.
    """
    study = OtherStudy(folder)
    try:
        seen = study.look(time.time())
    except SessionError:
        seen = None
    if seen is None or seen[1].over:
        return print_status(folder, stream)
    display: Display = display_for(stream, environ)
    session, status = seen
    shown, began = "", time.process_time()
    try:
        while not status.over:
            if shown != (shown := head_line(session, time.time())):
                display.say(shown)
            display.show(status)
            # the measured runs may share this machine
            time.sleep(max(POLL_SECONDS, (time.process_time() - began) / MOST_SHARE))
            began = time.process_time()
            session, status = study.look(time.time()) or (session, status)
    except KeyboardInterrupt:
        pass
    finally:
        display.end(status)
    if shown != (last := head_line(session, time.time())):
        display.say(last)
    return 0
