"""The starts of one training, kept beside its checkpoints: how often, how much was lost, when to give up.

A start that is killed leaves no word of its own; the next one fills in how far it had come.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.execution.rank_files import Attempt
from scalewise.execution.run_lock import Holder
from scalewise.records import Definition, utc_now, write_json

TRIES = "tries.json"
MOST_IDLE = 3
"""Starts in a row without progress after which the run is given up: the next one would end alike."""

SILENT = "without a word"
"""The end of a start that could not say so: it was killed, or its node died."""


class Try(BaseModel):
    """One start of a training.

    Args:
        from_step: Optimizer steps that the checkpoint held; 0 for a start from the beginning.
        job: Slurm's id; None outside Slurm.
        restart: The number of times that Slurm had started that job anew.
        host: The host of the supervisor.
        started_at: UTC, ISO 8601.
        ended: ``failed``, ``interrupted``, ``timed-out`` or ``SILENT``; None while it runs.
        last_step: The last step that was seen of this start; None where none was.
        idle: Whether this start counts against the training if the next one begins at the same step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    from_step: int
    job: str | None
    restart: int
    host: str
    started_at: str
    ended: str | None = None
    reason: str = ""
    last_step: int | None = None
    idle: bool = False

    def lost(self, next_step: int) -> int:
        """The number of steps of this start that a start from that step does again."""
        return max((self.last_step or 0) - next_step, 0)


class Tries(BaseModel):
    """``tries.json``: the starts of a training that has no result yet.

    Args:
        definition: The run, with every setting written out.
        inputs: Hashes of what else defines the run, by name.
        earlier_starts: The number of starts before the user last began to train.
        earlier_lost_steps: Steps of those starts that were done again.
        tries: The starts since then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    definition: Definition
    inputs: dict[str, str]
    earlier_starts: int = 0
    earlier_lost_steps: int = 0
    tries: list[Try] = []

    @property
    def starts(self) -> int:
        """The number of starts of the training, the present one included."""
        return self.earlier_starts + len(self.tries)

    def lost_steps(self, next_step: int) -> int:
        """The number of steps that are done again, if the next start begins at a step."""
        lost = self.earlier_lost_steps
        for each in reversed(self.tries):
            lost += each.lost(next_step)
            next_step = each.from_step
        return lost

    def idle_tries(self, next_step: int) -> list[Try]:
        """The last starts in a row that failed and began where the next one would, the newest first.

        Starts that a signal ended neither count nor break the row.
        """
        found: list[Try] = []
        for each in reversed(self.tries):
            if each.from_step != next_step:
                break
            if each.idle:
                found.append(each)
        return found


def read_tries(folder: Path) -> Tries | None:
    """Read the starts of a run; None where there are none, or the file cannot be read."""
    try:
        return Tries.model_validate_json((folder / TRIES).read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


def earlier_tries(
    folder: Path, definition: Definition, inputs: Mapping[str, str], attempt: Attempt, step: int, fresh: bool
) -> Tries:
    """The starts before the one that is about to be made.

    Args:
        folder: Holds the run's records.
        definition: The run; starts of another are forgotten.
        inputs: Hashes of what else defines the run, by name.
        attempt: The folder of the last start, which may have left no more than its progress.
        step: The step at which this start begins.
        fresh: Whether the user has begun to train: earlier failures are then forgiven.
    """
    none = Tries(definition=definition, inputs=dict(inputs))
    found = read_tries(folder)
    if found is None or found.definition != definition or found.inputs != dict(inputs):
        return none
    if found.tries and found.tries[-1].ended is None:
        last = found.tries[-1].model_copy(update={"ended": SILENT, "idle": True, "last_step": _seen(attempt)})
        found = found.model_copy(update={"tries": [*found.tries[:-1], last]})
    if not fresh:
        return found
    if step == 0:
        return none
    counts = {"earlier_starts": found.starts, "earlier_lost_steps": found.lost_steps(step)}
    return none.model_copy(update=counts)


def begin_try(folder: Path, earlier: Tries, step: int, me: Holder) -> Tries:
    """Write down that a start is made, at a step and by a holder, after earlier ones.

    Raises:
        OSError: The file cannot be written.
    """
    new = Try(from_step=step, job=me.job, restart=me.restart, host=me.host, started_at=utc_now())
    tries = earlier.model_copy(update={"tries": [*earlier.tries, new]})
    write_json(folder / TRIES, tries)
    return tries


def end_try(folder: Path, tries: Tries, attempt: Attempt, ended: str, reason: str, idle: bool) -> Tries:
    """Write down how the last of the starts has ended; the fields are those of ``Try``.

    Raises:
        OSError: The file cannot be written.
    """
    update = {"ended": ended, "reason": reason, "idle": idle, "last_step": _seen(attempt)}
    tries = tries.model_copy(update={"tries": [*tries.tries[:-1], tries.tries[-1].model_copy(update=update)]})
    write_json(folder / TRIES, tries)
    return tries


def _seen(attempt: Attempt) -> int | None:
    """The last step that the ranks of an attempt told of."""
    try:
        stopped, progress = attempt.read_stopped(), attempt.read_progress()
    except (OSError, ValueError):
        return None  # cut off while it was written, by a machine that crashed
    if stopped is not None:
        return stopped.step
    return progress.step if progress is not None else None
