"""The starts of one training, kept beside its checkpoints: how often, how much was lost, when to give up.

A start that is killed leaves no word of its own; the next one fills in how far it had come.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.execution.rank_files import RankFiles
from scalewise.execution.run_lock import LockOwner
from scalewise.records import Definition, utc_now, write_json

RESTARTS = "restarts.json"

MAX_STARTS_WITHOUT_PROGRESS = 3
"""Starts in a row without progress after which the run is given up: the next one would end alike."""

SILENT = "without an error message"
"""The end of a start that could not say so: it was killed, or its node died."""


class Restart(BaseModel):
    """One start of a training.

    Args:
        from_step: Optimizer steps that the checkpoint held; 0 for a start from the beginning.
        job: Slurm's id; None outside Slurm.
        restart: The number of times that Slurm had started that job anew.
        host: The host of the supervisor.
        started_at: UTC, ISO 8601.
        ended: ``failed``, ``interrupted``, ``timed-out`` or ``SILENT``; None while it runs.
        last_step: The last step that was seen of this start; None where none was.
        no_progress: Whether this start counts against the training if the next one begins at the same step.
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
    no_progress: bool = False

    def lost(self, next_step: int) -> int:
        """The number of steps of this start that a start from that step does again."""
        return max((self.last_step or 0) - next_step, 0)


class RestartHistory(BaseModel):
    """``restarts.json``: the starts of a training that has no result yet.

    Args:
        definition: The run, with every setting written out.
        inputs: Hashes of what else defines the run, by name.
        earlier_starts: The number of starts before the user last began to train.
        earlier_lost_steps: Steps of those starts that were done again.
        restarts: The starts since then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    definition: Definition
    inputs: dict[str, str]
    earlier_starts: int = 0
    earlier_lost_steps: int = 0
    restarts: list[Restart] = []

    @property
    def starts(self) -> int:
        """The number of starts of the training, the present one included."""
        return self.earlier_starts + len(self.restarts)

    def lost_steps(self, next_step: int) -> int:
        """The number of steps that are done again, if the next start begins at a step."""
        lost = self.earlier_lost_steps
        for each in reversed(self.restarts):
            lost += each.lost(next_step)
            next_step = each.from_step
        return lost

    def starts_without_progress(self, next_step: int) -> list[Restart]:
        """The last starts in a row that failed and began where the next one would, the newest first.

        Starts that a signal ended neither count nor break the row.
        """
        found: list[Restart] = []
        for each in reversed(self.restarts):
            if each.from_step != next_step:
                break
            if each.no_progress:
                found.append(each)
        return found


def read_history(folder: Path) -> RestartHistory | None:
    """The history in a run's folder; None where there is none, or what is there cannot be read."""
    try:
        return RestartHistory.model_validate_json((folder / RESTARTS).read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


def has_history(folder: Path) -> bool:
    """True if a training was begun in the folder and has not ended.

    The folder is listed, as a network file system may remember that a file was missing. A history that is
    damaged is there, too.
    """
    return folder.exists() and any(path.name == RESTARTS for path in folder.iterdir())


def forget_history(folder: Path) -> None:
    """Delete the history of a training that has ended."""
    (folder / RESTARTS).unlink(missing_ok=True)


def load_history(
    folder: Path,
    definition: Definition,
    inputs: Mapping[str, str],
    rank_files: RankFiles,
    step: int,
    fresh: bool,
) -> RestartHistory:
    """The starts before the one that is about to be made.

    Args:
        folder: Holds the run's records.
        definition: The run; starts of another are forgotten.
        inputs: Hashes of what else defines the run, by name.
        rank_files: The folder of the last start, which may have left no more than its progress.
        step: The step at which this start begins.
        fresh: Whether the user has begun to train: earlier failures are then forgiven.
    """
    none = RestartHistory(definition=definition, inputs=dict(inputs))
    found = read_history(folder)
    if found is None or found.definition != definition or found.inputs != dict(inputs):
        return none
    if found.restarts and found.restarts[-1].ended is None:
        last = found.restarts[-1].model_copy(
            update={"ended": SILENT, "no_progress": True, "last_step": _seen(rank_files)}
        )
        found = found.model_copy(update={"restarts": [*found.restarts[:-1], last]})
    if not fresh:
        return found
    if step == 0:
        return none
    counts = {"earlier_starts": found.starts, "earlier_lost_steps": found.lost_steps(step)}
    return none.model_copy(update=counts)


def record_start(folder: Path, earlier: RestartHistory, step: int, me: LockOwner) -> RestartHistory:
    """Write down that a start is made, at a step and by a holder, after earlier ones.

    Raises:
        OSError: The file cannot be written.
    """
    new = Restart(from_step=step, job=me.job, restart=me.restart, host=me.host, started_at=utc_now())
    history = earlier.model_copy(update={"restarts": [*earlier.restarts, new]})
    write_json(folder / RESTARTS, history)
    return history


def record_end(
    folder: Path, history: RestartHistory, rank_files: RankFiles, ended: str, reason: str, no_progress: bool
) -> RestartHistory:
    """Write down how the last of the starts has ended; the fields are those of ``Restart``.

    Raises:
        OSError: The file cannot be written.
    """
    update = {"ended": ended, "reason": reason, "no_progress": no_progress, "last_step": _seen(rank_files)}
    history = history.model_copy(
        update={"restarts": [*history.restarts[:-1], history.restarts[-1].model_copy(update=update)]}
    )
    write_json(folder / RESTARTS, history)
    return history


def _seen(rank_files: RankFiles) -> int | None:
    """The last step that the ranks of an attempt told of."""
    try:
        stopped, progress = rank_files.read_stopped(), rank_files.read_progress()
    except (OSError, ValueError):
        return None  # cut off while it was written, by a machine that crashed
    if stopped is not None:
        return stopped.step
    return progress.step if progress is not None else None
