"""Results of which Snakemake has not seen the job end: it deletes them and asks for the runs again.

That is so where it was killed, or Slurm has put the job back into the queue, after the result was there.
However whole the files are, Snakemake deletes them next. They are linked aside before it does, and taken back
by the job, which also sees whether they are what is asked for now.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from scalewise.records import (
    MODEL,
    RUN_RECORDS,
    SUMMARY,
    Definition,
    RecordError,
    Summary,
    read_record,
    read_summary,
)

ASIDE = "set-aside"
LOG = "train.log"


def set_aside(unseen: Iterable[Path], run_folders: Iterable[Path]) -> None:
    """Link the records of runs aside that Snakemake is about to delete, and forget older ones.

    Args:
        unseen: The folders of runs of which Snakemake has not seen the job end.
        run_folders: The folders of all runs that may have records aside.
    """
    unseen = set(unseen)
    for folder in run_folders:
        # where none is there, Snakemake or a job may have been cut off, and what is aside is the only one
        if not (folder / SUMMARY).exists():
            continue
        shutil.rmtree(folder / ASIDE, ignore_errors=True)
        if folder in unseen:
            with suppress(OSError):  # then it is trained again
                (folder / ASIDE).mkdir()
                for name in (*RUN_RECORDS, LOG):
                    _link(folder / name, folder / ASIDE / name)


def is_of_job(folder: Path, slurm_job_id: str) -> bool:
    """True if the run's result was left by this Slurm job, which keeps its id when Slurm starts it anew."""
    try:
        origin = read_summary(folder).provenance
    except RecordError:
        return False
    return origin is not None and origin.slurm_job_id == slurm_job_id


def forget_all(run_folders: Iterable[Path]) -> None:
    """Drop what was set aside: runs that the user asks for again are trained again."""
    for folder in run_folders:
        shutil.rmtree(folder / ASIDE, ignore_errors=True)


def take_back(folder: Path, definition: Definition, inputs: Mapping[str, str], commit: str | None) -> bool:
    """Put the records back that were set aside, if they are whole and are what is asked for.

    Args:
        folder: The folder of the run's records.
        definition: The run, resolved.
        inputs: Hashes of what else defines the run, by name.
        commit: The workflow's version now; None outside a checkout.

    Raises:
        OSError: A record cannot be put back.
    """
    aside = folder / ASIDE
    if not aside.exists():
        return False
    # another job of this run, which Snakemake knows nothing of, may have written some of them since
    places = {name: folder / name for name in RUN_RECORDS if (folder / name).exists()}
    places = {name: aside / name for name in RUN_RECORDS if (aside / name).exists()} | places
    found = len(places) == len(RUN_RECORDS) and _is_asked_for(
        places[SUMMARY].parent, folder, definition, inputs, commit
    )
    if found:
        # the summary last of all, as where it is written: with it, the result is there
        for name in (LOG, *(name for name in RUN_RECORDS if name != SUMMARY), SUMMARY):
            if not (folder / name).exists() and (aside / name).exists():
                (aside / name).replace(folder / name)
    shutil.rmtree(aside, ignore_errors=True)
    return found


def _is_asked_for(
    summary_folder: Path, folder: Path, definition: Definition, inputs: Mapping[str, str], commit: str | None
) -> bool:
    try:
        # its folder, where it is set aside, has not the run's name
        summary = read_record(summary_folder / SUMMARY, Summary)
    except RecordError:
        return False
    origin = summary.provenance
    return (
        summary.definition == definition
        and summary.outcome == "completed"
        and origin is not None
        and origin.inputs == dict(inputs)
        and origin.commit == commit
        and ((folder / MODEL).exists() or not definition.settings.get("save_model"))
    )


def _link(source: Path, target: Path) -> None:
    """Another name for a file, which stays when the first is deleted; a copy where names cannot be added."""
    if source.exists():
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)
