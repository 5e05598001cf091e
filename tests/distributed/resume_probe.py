"""One rank that trains definitions twice: in one go, and stopped and resumed at chosen steps.

Started as resume_probe.py DEFINITIONS DATASET FOLDER. The folder says how ranks meet; DEFINITIONS is a JSON
object of definitions by name. Rank 0 leaves FOLDER/found.json: what each training ended with, by name, as
``{"whole": ..., "resumed": ...}``.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from tests.distributed.probe_group import probe_group

from scalewise.builtin.checkpoints.state import SHARED, rank_file, rank_state, resume, shared_state
from scalewise.builtin.checkpoints.storage import load, save
from scalewise.builtin.data import datasets
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.trainer import Trainer, build_loaders, build_trainer
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.results.facts import Epoch

TIMEOUT_SECONDS = 60.0
TIMINGS = {"evaluation_seconds"}


class Probe:
    """Of one rank; a checkpoint is two files in its folder."""

    def __init__(
        self, dataset: datasets.Dataset, identity: Identity, device: torch.device, folder: Path
    ) -> None:
        self._dataset, self._identity, self._device, self._folder = dataset, identity, device, folder

    def train(self, definition: RunDefinition, stops: Sequence[int]) -> dict[str, Any]:
        """What a training ends with that is stopped after these steps, each time to go on in another task."""
        files = [self._folder / name for name in (SHARED, rank_file(self._identity.rank))]
        for index, stop in enumerate([*stops, -1]):
            trainer = self._task(definition)
            if index:
                state = resume(trainer, *(load(path, self._device) for path in files))
            else:
                state = TrainingState.start(self._device)
            ending = train(trainer, state, unheard, stop_at(stop))
            if ending == "stopped":
                save(files[1], rank_state(trainer, state))
                if self._identity.rank == 0:
                    save(files[0], shared_state(trainer, state))
                dist.barrier()
            else:
                return self._ended(trainer, state)
        raise AssertionError("stopped after its last step")

    def _task(self, definition: RunDefinition) -> Trainer:
        # the workers of one loader must not be forked into those of the next
        gc.collect()
        settings = Settings.model_validate(definition.settings)
        torch.set_num_threads(settings.cpus_per_device)
        loaders = build_loaders(settings, self._dataset, self._identity.rank, self._device, TIMEOUT_SECONDS)
        return build_trainer(
            settings, definition.global_batch_size, self._dataset, loaders, self._identity, self._device
        )

    def _ended(self, trainer: Trainer, state: TrainingState) -> dict[str, Any]:
        weights = trainer.parallel_model.state()
        kept = [
            {key: repr(value) for key, value in asdict(record).items() if key not in TIMINGS}
            for record in state.epochs
        ]
        sums = {
            name: hashlib.sha256(value.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
            for name, value in weights.items()
            if value.dim()
        }
        counts = {name: float(value) for name, value in weights.items() if not value.dim()}
        scale = trainer.precision.state().get("scale")
        return {"weights": sums, "counts": counts, "epochs": kept, "steps": state.steps, "scale": scale}


def unheard(_epoch: Epoch) -> None:
    """Records are read at the end."""


def stop_at(step: int) -> Callable[[TrainingState], bool]:
    """What ends a training at this step."""
    return lambda state: state.steps == step


def main() -> None:
    # what torch consists of need not be looked through between trainings
    gc.freeze()
    definitions, dataset_file, folder = map(Path, sys.argv[1:])
    found = {}
    with probe_group(RankFiles(folder)) as (identity, device):
        probe = Probe(datasets.load(dataset_file), identity, device, folder)
        for name, chosen in json.loads(definitions.read_text(encoding="utf-8")).items():
            definition = RunDefinition.model_validate(chosen["definition"])
            whole = probe.train(definition, [])
            resumed = probe.train(definition, chosen["stops"])
            found[name] = {"whole": whole, "resumed": resumed}
        del probe
    if identity.rank == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
