"""Give Snakemake the result of a run: summary.json, a link to the record.

Snakemake deletes the outputs and the log of a job before it starts the job, even complete ones: for example
if an earlier Snakemake was killed while the run trained. It does not track the record.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from scalewise.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import (
    MODEL,
    RECORD,
    RECORD_LOG,
    RUN_RECORDS,
    SUMMARY,
    RecordError,
    RunRecord,
    read_record,
    replaced_whole,
)


def publish(folder: Path, log: Path) -> None:
    """Link the log of a run to its copy, then the record to ``summary.json``, the last file of a run.

    Raises:
        OSError: The link cannot be made, nor a copy.
    """
    with suppress(OSError):
        _link(log, folder / RECORD_LOG)
    _link(folder / RECORD, folder / SUMMARY)


def publish_again(folder: Path, log: Path) -> None:
    """Link the record of an earlier job, with the present time: Snakemake compares it with that of inputs.

    Raises:
        OSError: The link cannot be made, nor a copy.
    """
    if not log.exists() and (folder / RECORD_LOG).exists():
        _link(folder / RECORD_LOG, log)
    publish(folder, log)
    os.utime(folder / SUMMARY)


def finished_result(
    folder: Path, definition: RunDefinition, inputs: Mapping[str, str], commit: str | None
) -> RunRecord | None:
    """Return the record of a run if it is complete, and has this definition, these inputs and this commit.

    Args:
        folder: The folder of the run's records.
        definition: The run, with every setting written out.
        inputs: Hashes of the input files that define the run, by name.
        commit: The workflow's version now; None outside a checkout.
    """
    try:
        record = read_record(folder / RECORD, RunRecord)
    except RecordError:
        return None
    origin = record.provenance
    is_same = (
        record.definition == definition
        and origin is not None
        and origin.inputs == dict(inputs)
        and origin.commit == commit
    )
    settings = definition.settings
    saves_model = isinstance(settings, Settings) and settings.save_model
    names = [*RUN_RECORDS, *([MODEL] if saves_model else [])]
    return record if is_same and all((folder / name).exists() for name in names) else None


def _link(source: Path, target: Path) -> None:
    """Link a file to another name, which stays when the first is deleted; copy it if links are refused."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with replaced_whole(target) as temporary:
            shutil.copyfile(source, temporary)
