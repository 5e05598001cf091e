"""What keeps a training from scaling is planted in real runs of two ranks, and named, it alone.

A rank that is slower than the others is in test_training_faults.py, up to the report that names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from tests.cores import needs_two_cores
from tests.distributed.whole_runs import SETTINGS, Start, finish
from tests.slowdowns import sentences

from scalewise.analysis.bottlenecks.bottlenecks import find_bottlenecks
from scalewise.analysis.bottlenecks.disturbances import OTHERS_CPU
from scalewise.analysis.scaling import scaling_table
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import Experiment

pytestmark = needs_two_cores

MODELS = """
import os
import time
from torch import nn

class Working(nn.Module):
    def __init__(self, image, classes, seconds):
        super().__init__()
        self.layer = nn.Linear(image.numel(), classes)
        self.seconds = seconds

    def forward(self, images):
        if self.training:
            time.sleep(self.seconds)
        return self.layer(images.flatten(1))

class Alternating(Working):
    steps = 0

    def forward(self, images):
        if self.training:
            self.steps += 1
            late = self.steps % 2 == int(os.environ["RANK"])
            time.sleep(self.seconds if late else 0.0)
        return self.layer(images.flatten(1))

def balanced(image, classes):
    return Working(image, classes, 1.0)

def alternating(image, classes):
    return Alternating(image, classes, 0.2)
"""
"""Work that takes its time whatever else the machine does: ranks that compute would slow each other."""

STARVED = {"loader": "workers", "crop_padding": 2, "horizontal_flip": True, "image_size": 64}
"""Two ranks and their two processes on two CPUs: transforms of 125 samples take far longer than a step."""


def causes_of(
    start: Start, folder: Path, name: str, changed: dict[str, Any]
) -> tuple[list[str], list[str], pd.Series]:
    """The causes of a study with one run, on two devices, what is said of them, and the run's row."""
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    settings = SETTINGS | {"devices": [2], "epochs": 2} | changed
    if "model" in changed:
        settings["model"] = f"{folder}/models.py:{changed['model']}"
    run = finish(start(name, 2, settings))
    runs = collect(name, Experiment.model_validate(settings), run.folder.parent).runs
    scaling = scaling_table(runs, "strong")
    causes = [limit.cause for _, limit in find_bottlenecks(scaling, runs) if limit]
    return causes, sentences(runs), runs.iloc[0]


def test_batches_that_come_late_are_named_as_the_loaders(start: Start, tmp_path: Path) -> None:
    causes, said, _ = causes_of(start, tmp_path, "starved", STARVED)
    assert causes == ["loader"]
    assert "waiting for data takes" in said[0]
    assert "Load data with more CPUs, or use the resident loader" in said[0]


def test_ranks_that_are_late_by_turns_are_not_blamed_on_the_exchange(start: Start, tmp_path: Path) -> None:
    changed = {"model": "alternating", "epochs": 4}
    # on a machine that is busy with other work the exchange itself takes long
    runs = [causes_of(start, tmp_path, f"alternating{attempt}", changed) for attempt in range(3)]
    right = [(said, run) for causes, said, run in runs if causes == ["jitter"]]
    assert len(right) >= 2, [causes for causes, _, _ in runs]
    for said, run in right:
        assert "waiting for uneven ranks takes" in said[0]
        assert "communication_hook" not in said[0]
        # half of the ranks' time, less where other work on the machine lengthens the step
        assert run["jitter_seconds"] > 0.15 * run["step_seconds"]


def test_a_balanced_training_that_computes_is_blamed_on_nothing(start: Start, tmp_path: Path) -> None:
    clean: list[list[str]] = []
    others: list[object] = []
    for attempt in range(8):
        causes, said, run = causes_of(start, tmp_path, f"balanced{attempt}", {"model": "balanced"})
        if not causes:
            clean.append(said)
        elif run["other_cpu_fraction"] < OTHERS_CPU:
            # what another program on this machine does to a run is named too, and rightly
            others.append(causes)
        if len(clean) == 4 or len(others) == 3:
            break
    assert clean
    assert len(others) < 3, others
    assert not any("waiting" in each or "communication takes" in each for said in clean for each in said)
