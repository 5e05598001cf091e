"""The record of a measured process as JSON values, and the writing of such files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .discovery import are_finite, compiled_frames, parameters_of

if TYPE_CHECKING:
    from .measured_process import MeasuredProcess


def process_record(process: MeasuredProcess, ended: str) -> dict[str, Any]:
    """Return all that was measured so far, once the GPU has done all steps.

    ``ranks/results/probe_record.py`` reads it, and describes the values.

    Args:
        process: The process that is measured.
        ended: ``seen`` while the training continues, ``steps`` or ``itself`` at its end.
    """

    def value_of(what: str, find: Callable[[], Any], otherwise: Any) -> Any:
        """Return a value, or ``otherwise`` if this raises: the rest of the record is written all the same."""
        try:
            return find()
        except Exception as error:  # noqa: BLE001
            process.notes.fault(what, error)
            return otherwise

    process.iterations.check_latest(process.activity)
    steps, modules = process.steps.snapshot(), process.model.modules
    parameters = parameters_of(process.training.of_training())
    process.model.count_parameters(parameters, is_over=ended == "itself")
    iteration = process.iterations.training
    workers = None if iteration is None else iteration.workers
    cpus = process.place.get("affinity")
    if workers and cpus and workers > len(cpus):
        process.notes.note(f"a DataLoader of {workers} processes has {len(cpus)} CPUs")
    local_rank = os.environ.get("LOCAL_RANK", "")
    return {
        "ended": ended,
        "rank": process.rank,
        "world_size": process.world_size,
        "local_rank": int(local_rank) if local_rank.isdigit() else None,
        "pid": process.pid,
        "backend": process.backend,
        **process.place,
        "process_started": process.started,
        "torch_imported": process.torch_imported,
        "first_step_began": steps.first_step_began,
        "first_step_ended": steps.first_step_ended,
        **steps.columns(fed=iteration is not None),
        "reads_all": iteration is not None and iteration.reads_all,
        "optimizers": process.training.names(),
        "misses_optimizer": process.spec.optimizer if process.training.misses_named else None,
        "skipped_by_scaler": process.skipped.count(),
        **process.model.figures,
        "weights_finite": value_of("weights", lambda: are_finite(parameters), None),
        "parallelism": modules.parallelism,
        "data_parallel_devices": modules.data_parallel_devices,
        "refused": modules.refused,
        "precision": {
            f"{device}:{str(dtype).removeprefix('torch.')}": number
            for (device, dtype), number in process.precision.items()
        },
        "compiled": modules.compiled or bool(compiled_frames()),
        "losses": value_of("losses", process.losses.record, {}),
        "batches": process.iterations.checksums or None,
        "forward_batches": process.forward_checksums or None,
        "communication_seconds": []
        if process.communication is None
        else process.communication.column(steps.done),
        "step_flops": {} if process.counted_step is None else process.counted_step.by_format,
        "step_flops_note": "" if process.counted_step is None else process.counted_step.reason,
        "peak_memory": process.memory.record(steps.evaluated),
        "versions": value_of("versions", process.versions, {}),
        "imported_files": value_of("imported files", process.imported_files, {}),
        "events": process.notes.events,
    }


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a record under a temporary name, then rename it; values that are not finite become None."""
    write_text(path, json.dumps(_finite(record), allow_nan=False))


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
