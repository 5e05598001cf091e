"""What a study's runs say about the time of their steps, for tests."""

from __future__ import annotations

from typing import Any

import pandas as pd

from scalewise.analysis.bottlenecks.bottlenecks import Slowdown, find_slowdown
from scalewise.analysis.scaling import scaling_table
from scalewise.plan.config.experiment import Experiment


def slowdown_of(
    runs: pd.DataFrame, mode: str = "strong", chosen: int | None = None, **settings: Any
) -> tuple[Slowdown, list[str]]:
    """Return what slows the runs down, and the other sentences.

    Args:
        runs: A table of runs.
        mode: ``strong`` or ``weak`` scaling.
        chosen: Chosen device count; by default none, so that the largest is looked at.
        settings: Further keys of the experiment.
    """
    batch = {"global_batch_size": 256} if mode == "strong" else {"batch_size_per_device": 64}
    keys = {"dataset": "digits", "model": "linear", "scaling": mode, "devices": [1, 2]} | batch | settings
    found, others = find_slowdown(scaling_table(runs), runs, Experiment.model_validate(keys), chosen)
    assert found is not None
    return found, others


def sentences(runs: pd.DataFrame, mode: str = "strong") -> list[str]:
    """Return the sentence with its advice, then the others."""
    found, others = slowdown_of(runs, mode)
    return [f"{found.sentence} {found.advice}".strip(), *others]
