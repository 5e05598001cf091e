"""What the page shows of an experiment: its answer and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from scalewise.analysis.answer import Answer
from scalewise.plan.config.shape import count_devices


@dataclass(frozen=True)
class Section:
    """An experiment of the page, or the comparison of its partitions.

    Args:
        name: Name of the experiment; the id of its part of the page.
        title: Name for readers.
        description: Text below the answer.
        noun: Name of a device: ``GPU``, ``CPU process``.
        figures: Folder of its figures.
        points: Contents of scaling.csv.
        runs: Contents of runs.csv.
        epochs: Contents of epochs.csv.
        options: Contents of options.csv.
        costs: Time and cost for the same work of each candidate: ``series``, ``devices``, ``seconds``,
            ``cost``, their bounds with ``_low`` and ``_high``, and ``recommended``.
        cost_unit: Unit of ``cost``.
        fitted: Speedups by the fitted law: ``series``, ``devices``, ``speedup``.
        law: The fitted law in a line.
        required_efficiency: Least efficiency that is required, a fraction.
        target_accuracy: Accuracy that counts as trained, a fraction.
        left_out: Runs that were set apart, each with the reason.
    """

    name: str
    title: str
    description: str
    noun: str
    answer: Answer
    figures: Path
    points: pd.DataFrame = field(default_factory=pd.DataFrame)
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    epochs: pd.DataFrame = field(default_factory=pd.DataFrame)
    options: pd.DataFrame = field(default_factory=pd.DataFrame)
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)
    cost_unit: str = "device-hours"
    fitted: pd.DataFrame = field(default_factory=pd.DataFrame)
    law: str = ""
    required_efficiency: float | None = None
    target_accuracy: float | None = None
    left_out: Sequence[tuple[str, str]] = ()

    @property
    def plural(self) -> str:
        """Return the name of several devices: ``GPUs``."""
        return count_devices(2, self.noun).removeprefix("2 ")
