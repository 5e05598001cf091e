"""What keeps a training from scaling is planted in real runs of two ranks, and named, it alone.

A rank that is slower than the others is in test_ended_runs.py, up to the report that names it.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from tests.cores import needs_two_cores
from tests.distributed.runs import SETTINGS, Runs
from tests.slowdowns import sentences

from scalewise.analysis.bottlenecks.bottlenecks import find_bottlenecks
from scalewise.analysis.bottlenecks.disturbances import OTHERS_CPU
from scalewise.analysis.scaling import scaling_table
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import Experiment

pytestmark = needs_two_cores

STARVED = {"loader": "workers", "crop_padding": 2, "horizontal_flip": True, "image_size": 64}
"""Two ranks and their two processes on two CPUs: transforms of 125 samples take far longer than a step."""


def causes_of(runs: Runs, name: str, changed: dict[str, Any]) -> tuple[list[str], list[str], pd.Series]:
    """The causes of a study with one run, on two devices, what is said of them, and the run's row."""
    settings = SETTINGS | {"devices": [2], "epochs": 2} | changed
    run = runs.complete(name, 2, settings=settings)
    table = collect(name, Experiment.model_validate(settings), run.folder.parent).runs
    scaling = scaling_table(table, "strong")
    causes = [limit.cause for _, limit in find_bottlenecks(scaling, table) if limit]
    return causes, sentences(table), table.iloc[0]


def test_batches_that_come_late_are_named_as_the_loaders(runs: Runs) -> None:
    causes, said, _ = causes_of(runs, "starved", STARVED)
    assert causes == ["loader"]
    assert "waiting for data takes" in said[0]
    assert "Load data with more CPUs, or use the resident loader" in said[0]


def test_ranks_that_are_late_by_turns_are_not_blamed_on_the_exchange(runs: Runs) -> None:
    changed = {"model": "planted_alternating", "epochs": 3}
    # on a machine that is busy with other work the exchange itself takes long
    found = [causes_of(runs, f"alternating{attempt}", changed) for attempt in range(3)]
    right = [(said, run) for causes, said, run in found if causes == ["jitter"]]
    assert len(right) >= 2, [causes for causes, _, _ in found]
    for said, run in right:
        assert "waiting for uneven ranks takes" in said[0]
        assert "communication_hook" not in said[0]
        # half of the ranks' time, less where other work on the machine lengthens the step
        assert run["jitter_seconds"] > 0.15 * run["step_seconds"]


def test_a_balanced_training_that_computes_is_blamed_on_nothing(runs: Runs) -> None:
    clean: list[list[str]] = []
    others: list[object] = []
    for attempt in range(8):
        causes, said, run = causes_of(runs, f"balanced{attempt}", {"model": "planted_balanced"})
        if not causes:
            clean.append(said)
        elif run["other_cpu_fraction"] < OTHERS_CPU:
            # what another program on this machine does to a run is named too, and rightly
            others.append(causes)
        if len(clean) == 3 or len(others) == 3:
            break
    assert clean
    assert len(others) < 3, others
    assert not any("waiting" in each or "communication takes" in each for said in clean for each in said)
