"""One rank that trains the given runs with the project's own parts and saves what it has learned.

Started as weights_probe.py DEFINITIONS DATASET FOLDER; the folder says how ranks meet. Writes
{model}.rank{rank}.safetensors.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from safetensors.torch import save_file

from scalewise.builtin.data import datasets
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.trainer import build_loaders, build_trainer
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.ranks.distributed.devices import claim_cpus, claim_device
from scalewise.ranks.distributed.identity import identify
from scalewise.ranks.distributed.process_group import process_group


def main() -> None:
    definitions, dataset_file, folder = map(Path, sys.argv[1:])
    rank_files = RankFiles(folder)
    rank_setup = rank_files.rank_setup()
    identity = identify(os.environ, rank_setup.launcher)
    claim_cpus("cpu", identity, 1)
    device = claim_device("cpu", identity.local_rank)
    with process_group(rank_files, rank_setup, identity, device):
        dataset = datasets.load(dataset_file)
        for values in json.loads(definitions.read_text(encoding="utf-8")):
            definition = RunDefinition.model_validate(values)
            settings = Settings.model_validate(definition.settings)
            loaders = build_loaders(settings, dataset, identity.rank, device, rank_setup.timeout_seconds)
            task = build_trainer(settings, definition.global_batch_size, dataset, loaders, identity, device)
            train(task, TrainingState.start(task.device), lambda _record: None)
            state = {
                name: tensor.contiguous() for name, tensor in task.parallel_model.module.state_dict().items()
            }
            save_file(state, folder / f"{settings.model}.rank{identity.rank}.safetensors")
            del task


if __name__ == "__main__":
    main()
