"""Measures a training from inside its process, unedited: standard library and torch only.

It is loaded once torch has been imported, by ``startup.py``, under a private name. Its hooks note what
happens; nothing that fails in them reaches the training.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def start(
    spec: str,
    process_started: float,
    watch: Callable[[str, Callable[[ModuleType], None]], None],
) -> None:
    """Set the hooks, in a process that has just imported torch.

    Args:
        spec: Path of the file that says what to measure.
        process_started: Monotonic seconds of the interpreter's start.
        watch: Acts on a module after its import.
    """
    # not above: the process that reads the records has no torch
    from .hooks import install  # noqa: PLC0415
    from .measured_process import MeasuredProcess  # noqa: PLC0415
    from .probe_spec import read_spec  # noqa: PLC0415

    process = MeasuredProcess(read_spec(Path(spec)), process_started)
    process.begin()
    install(process, watch)
