"""Measures a training from inside its process, unedited: standard library and torch only.

It is loaded once torch has been imported, by ``startup.py``, under a private name. Its hooks note what
happens; nothing that fails in them reaches the training.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from .hooks import install
from .measured_process import MeasuredProcess
from .probe_spec import read_spec


def start(
    spec: str,
    startup_folder: str,
    process_started: float,
    watch: Callable[[str, Callable[[ModuleType], None]], None],
) -> None:
    """Set the hooks, in a process that has just imported torch.

    Args:
        spec: Path of the file that says what to measure.
        startup_folder: The folder on PYTHONPATH that brought the probe here.
        process_started: Monotonic seconds of the interpreter's start.
        watch: Acts on a module after its import.
    """
    install(MeasuredProcess(read_spec(Path(spec)), Path(startup_folder), process_started), watch)
