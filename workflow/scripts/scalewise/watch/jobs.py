"""The jobs of the runs, as Snakemake's log tells of them."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from scalewise.snakemake_adapter import event_of
from scalewise.watch.points import RunKey

_SUBMITTED = re.compile(r"Job (\d+) has been submitted with SLURM jobid (\d+)")


class Job(BaseModel):
    """The last job of a run in this session.

    Args:
        handed_over: Seconds since the epoch.
        earlier_start: Time at which the last start before it began; empty if there was none.
        slurm_id: Empty on one machine, and until Slurm has taken it.
    """

    model_config = ConfigDict(frozen=True)

    state: Literal["handed over", "finished", "failed"]
    handed_over: float
    earlier_start: str = ""
    slurm_id: str = ""


class JobLog(logging.Handler):
    """Follows the trainings through Snakemake's log; safe to be read by another thread.

    Args:
        last_start: Returns when the last start of a run began, which has just been handed over.
        changed: Called after each event that may change what is shown.
        now: Gives seconds since the epoch.
        train: Name of the rule that trains.
    """

    def __init__(
        self,
        last_start: Callable[[RunKey], str],
        changed: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.time,
        train: str = "train",
    ) -> None:
        super().__init__(logging.INFO)
        self._train = train
        self._last_start, self._changed, self._now = last_start, changed, now
        self._runs: dict[int, RunKey] = {}
        self._jobs: dict[RunKey, Job] = {}
        self._guard = threading.Lock()

    def jobs(self) -> dict[RunKey, Job]:
        """The last job of each run that has had one."""
        with self._guard:
            return dict(self._jobs)

    def emit(self, record: logging.LogRecord) -> None:
        """Take in an event; one that is not understood is left out, and never an error of the study."""
        try:
            if self._take(record):
                self._changed()
        except Exception:  # noqa: BLE001, S110 - whatever it is, the study goes on
            pass

    def _take(self, record: logging.LogRecord) -> bool:
        told: dict[str, Any] = record.__dict__
        event = event_of(record)
        if event == "job_info" and told.get("rule_name") == self._train:
            run = (str(told["wildcards"]["experiment"]), str(told["wildcards"]["run"]))
            earlier = self._last_start(run)
            with self._guard:
                self._runs[int(told["jobid"])] = run
                self._jobs[run] = Job(state="handed over", handed_over=self._now(), earlier_start=earlier)
            return True
        if event == "job_finished":
            return self._end(told.get("job_id", told.get("jobid")), "finished")
        if event == "job_error":
            return self._end(told.get("jobid"), "failed")
        if event is None and (found := _SUBMITTED.search(str(record.msg))):
            return self._update(int(found[1]), slurm_id=found[2])
        return False

    def _end(self, job: Any, state: str) -> bool:
        return job is not None and self._update(int(job), state=state)

    def _update(self, job: int, **changes: str) -> bool:
        with self._guard:
            run = self._runs.get(job)
            if run is None:
                return False
            self._jobs[run] = self._jobs[run].model_copy(update=changes)
        return True


_OWN_COMMAND = '"$SCALEWISE_SCRIPTS/'

_PASSES = ("Will exit", "Terminating", "Shutting down", "Nothing to be done")
"""Beginnings of messages that Snakemake logs as information, and that a user waits for."""


class Silence(logging.Filter):
    """Keeps Snakemake's information from the terminal.

    Warnings and errors pass, and messages that a user waits for.

    Args:
        condition: Whether anything is kept from the terminal while it is on.
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
        if record.levelno >= logging.WARNING:
            return not self._is_shown_better(record)
        return str(record.msg).startswith(_PASSES)


def failed_run(record: logging.LogRecord, train: str) -> Path | None:
    """Return the folder of the run whose failure a record reports; None for any other record."""
    fields: dict[str, Any] = record.__dict__
    if event_of(record) != "job_error" or fields.get("rule_name") != train or not fields.get("log"):
        return None
    return Path(fields["log"][0]).parent


def repeats_failed_job(record: logging.LogRecord) -> bool:
    """Return whether a record has only the command line of a failed job: its next record has that, too."""
    fields: dict[str, Any] = record.__dict__
    return fields.get("exception") == "RuleException" and _OWN_COMMAND in str(record.msg)
