"""One rank that trains many definitions in one process group, with the project's own parts.

Started as probe.py VARIANTS DATASET FOLDER. The folder says how ranks meet; VARIANTS is a JSON list of
{name, definition, weights, train, stops}.

A variant without ``stops`` is watched. It leaves in the folder {name}.rank{rank}.json, what was seen, and
{name}.rank{rank}.safetensors: the whole weights at the start (``start/``) and at the end (``end/``), on rank
0; what of them this rank holds at the end (``here/``); the images of the first epoch as the network got them
(``images``).

One with ``stops`` is trained twice: in one go, and stopped and resumed at these steps. Rank 0 leaves
{name}.json with what each ended with, as ``{"whole": ..., "resumed": ...}``.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from scalewise.builtin.checkpoints.state import SHARED, rank_file, rank_state, resume, shared_state
from scalewise.builtin.checkpoints.storage import load, save
from scalewise.builtin.data import datasets
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.step_flops import count_step_flops
from scalewise.builtin.trainer import Trainer, build_loaders, build_trainer
from scalewise.ranks.results.facts import Epoch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from scalewise.execution.rank_files import RankFiles
from scalewise.measure.hooks import hooked
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.ranks.distributed.devices import claim_cpus, claim_device
from scalewise.ranks.distributed.identity import Identity, identify
from scalewise.ranks.distributed.process_group import process_group

TIMEOUT_SECONDS = 60.0


def share_one_gpu(accelerator: str, ranks: int) -> bool:
    """Whether so many ranks have to share a GPU. They then meet by gloo: NCCL takes one rank a GPU."""
    return accelerator == "cuda" and torch.cuda.device_count() < ranks


@contextmanager
def probe_group(rank_files: RankFiles) -> Iterator[tuple[Identity, torch.device]]:
    """Join the ranks that the folder tells of; torchrun has started this one."""
    rank_setup = rank_files.rank_setup()
    accelerator = rank_setup.accelerator
    identity = identify(os.environ, rank_setup.launcher)
    claim_cpus(accelerator, identity, rank_setup.cpus_per_device)
    if not share_one_gpu(accelerator, identity.local_world_size):
        device = claim_device(accelerator, identity.local_rank)
        with process_group(rank_files, rank_setup, identity, device):
            yield identity, device
        return
    device = claim_device(accelerator, 0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", timeout=timedelta(seconds=rank_setup.timeout_seconds))
    yield identity, device
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


@dataclass
class Seen:
    """What a rank saw of one training; a pass is one forward call while training.

    Args:
        dtypes: of what the layers put out.
        channels_last: of the images of the first pass, and of the convolutions' weights.
        gradients_at_pass: digest of this rank's gradients as each pass begins; None where there are none.
        gradients_at_step: the same as each update begins.
        rates: learning rate of each update.
        gradient_storages: stretches of memory that the gradients lie in, at the last update.
        deterministic: the setting of torch in the last pass.
        parameters_here: elements of parameters on this rank.
        states_here: elements of the optimizer's states on this rank.
        ddp: DistributedDataParallel's own account; empty without it.
        compiled_frames: by dynamo.
        epochs: as the training leaves them.
        step_flops: counted after the training, by number format.
        step_flops_note: the reason where they are unknown.
    """

    dtypes: list[str] = field(default_factory=list)
    channels_last: dict[str, bool] = field(default_factory=dict)
    gradients_at_pass: list[float | None] = field(default_factory=list)
    gradients_at_step: list[float | None] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    gradient_storages: int = 0
    deterministic: bool = False
    parameters_here: int = 0
    states_here: int = 0
    ddp: dict[str, Any] = field(default_factory=dict)
    compiled_frames: int = 0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    step_flops: dict[str, float] = field(default_factory=dict)
    step_flops_note: str = ""


class Watcher:
    """Hooks into a task; compiled code is left alone, for a hook would be compiled with it."""

    def __init__(self, trainer: Trainer) -> None:
        self.seen = Seen()
        self.images: list[torch.Tensor] = []
        self._task = trainer
        self._first_epoch = True
        network = trainer.parallel_model.module
        if not trainer.settings.compile:
            network.register_forward_pre_hook(self._before_pass)
            for layer in network.modules():
                if not list(layer.children()):
                    layer.register_forward_hook(self._after_layer)
        trainer.optimizer.register_step_pre_hook(self._before_update)

    def report(self, epoch: Epoch) -> None:
        self._first_epoch = False
        self.seen.epochs.append(asdict(epoch))

    def close(self) -> None:
        """Look at what training has left."""
        trainer, seen = self._task, self.seen
        optimizer = getattr(trainer.optimizer, "optim", trainer.optimizer)
        seen.parameters_here = sum(
            _local(weight).numel() for weight in trainer.parallel_model.module.parameters()
        )
        values = [value for state in optimizer.state.values() for value in state.values()]
        seen.states_here = sum(_local(value).numel() for value in values if torch.is_tensor(value))
        wrapper = trainer.parallel_model.data_parallel
        if isinstance(wrapper, DistributedDataParallel):
            seen.ddp = {name: str(value) for name, value in wrapper._get_ddp_logging_data().items()}
        seen.compiled_frames = counters["frames"]["ok"]

    def _gradients(self) -> list[torch.Tensor]:
        found = [weight.grad for weight in self._task.parallel_model.module.parameters()]
        return [_local(gradient) for gradient in found if gradient is not None]

    def _digest(self) -> float | None:
        gradients = self._gradients()
        return float(sum(gradient.double().abs().sum() for gradient in gradients)) if gradients else None

    def _before_pass(self, network: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if not network.training:
            return
        seen = self.seen
        if self._first_epoch:
            self.images.append(inputs[0].detach().clone())
        if not seen.channels_last:
            looked_at = {"images": inputs[0]} | dict(network.named_parameters())
            seen.channels_last = {
                name: tensor.is_contiguous(memory_format=torch.channels_last)
                for name, tensor in looked_at.items()
                if tensor.dim() == 4
            }
        seen.gradients_at_pass.append(self._digest())
        seen.deterministic = torch.are_deterministic_algorithms_enabled()

    def _after_layer(self, layer: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        name = f"{type(layer).__name__} {output.dtype}".replace("torch.", "")
        if layer.training and name not in self.seen.dtypes:
            self.seen.dtypes.append(name)

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = self._gradients()
        seen = self.seen
        seen.gradients_at_step.append(self._digest())
        seen.rates.append(float(optimizer.param_groups[0]["lr"]))
        seen.gradient_storages = len({gradient.untyped_storage().data_ptr() for gradient in gradients})


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole_state(trainer: Trainer, when: str) -> dict[str, torch.Tensor]:
    return {
        f"{when}/{name}": value.detach().clone() for name, value in trainer.parallel_model.state().items()
    }


@dataclass
class Probe:
    """The trainings of one rank."""

    dataset: datasets.Dataset
    identity: Identity
    device: torch.device
    folder: Path

    def trainer(self, variant: dict[str, Any]) -> Trainer:
        # the workers of one loader must not be forked into those of the next
        gc.collect()
        definition = RunDefinition.model_validate(variant["definition"])
        settings = Settings.model_validate(definition.settings)
        torch.set_num_threads(settings.cpus_per_device)
        weights = Path(variant["weights"]) if variant.get("weights") else None
        loaders = build_loaders(settings, self.dataset, self.identity.rank, self.device, TIMEOUT_SECONDS)
        batch = definition.global_batch_size
        return build_trainer(settings, batch, self.dataset, loaders, self.identity, self.device, weights)

    def watch(self, variant: dict[str, Any]) -> None:
        """Train one variant and leave what was seen."""
        counters.clear()
        torch._dynamo.reset()
        trainer = self.trainer(variant)
        tensors = _whole_state(trainer, "start")
        watcher = Watcher(trainer)
        if variant["train"]:
            with hooked(trainer.measured):
                train(trainer, TrainingState.start(trainer.device), watcher.report)
        watcher.close()
        tensors |= _whole_state(trainer, "end")
        held = trainer.parallel_model.module.state_dict()
        tensors |= {
            f"here/{name}": _local(value).detach().clone().contiguous() for name, value in held.items()
        }
        if watcher.images:
            tensors["images"] = torch.cat(watcher.images).contiguous()
        name = f"{variant['name']}.rank{self.identity.rank}"
        save_file(tensors, self.folder / f"{name}.safetensors")
        # the hooks see the counted pass, too
        seen = asdict(watcher.seen)
        if variant["train"]:
            batch = variant["definition"]["global_batch_size"]
            seen["step_flops"], seen["step_flops_note"] = count_step_flops(trainer, batch)
        (self.folder / f"{name}.json").write_text(json.dumps(seen), encoding="utf-8")

    def compare(self, variant: dict[str, Any]) -> None:
        """Train one variant in one go, and stopped and resumed."""
        found = {"whole": self.end(variant, []), "resumed": self.end(variant, variant["stops"])}
        if self.identity.rank == 0:
            (self.folder / f"{variant['name']}.json").write_text(json.dumps(found), encoding="utf-8")

    def end(self, variant: dict[str, Any], stops: Sequence[int]) -> dict[str, Any]:
        """What a training ends with that is stopped after these steps, each time to go on in another task."""
        files = [self.folder / name for name in (SHARED, rank_file(self.identity.rank))]
        for index, stop in enumerate([*stops, -1]):
            trainer = self.trainer(variant)
            if index:
                state = resume(trainer, *(load(path, self.device) for path in files))
            else:
                state = TrainingState.start(self.device)
            if train(trainer, state, lambda _epoch: None, partial(_is_at, stop)) != "stopped":
                return _ended(trainer, state)
            save(files[1], rank_state(trainer, state))
            if self.identity.rank == 0:
                save(files[0], shared_state(trainer, state))
            dist.barrier()
        raise AssertionError("stopped after its last step")


def _is_at(step: int, state: TrainingState) -> bool:
    return state.steps == step


def _ended(trainer: Trainer, state: TrainingState) -> dict[str, Any]:
    weights = trainer.parallel_model.state()
    kept = [
        {key: repr(value) for key, value in asdict(record).items() if key != "evaluation_seconds"}
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


def main() -> None:
    # what torch consists of need not be looked through between trainings
    gc.freeze()
    variants, dataset_file, folder = map(Path, sys.argv[1:])
    with probe_group(RankFiles(folder)) as (identity, device):
        probe = Probe(datasets.load(dataset_file), identity, device, folder)
        for variant in json.loads(variants.read_text(encoding="utf-8")):
            (probe.compare if "stops" in variant else probe.watch)(variant)
        del probe


if __name__ == "__main__":
    main()
