"""Collect the state with which a training resumes as if it had not been interrupted, and restore it.

Rank 0 writes the state that is the same on all ranks. The file of a rank has its random states, its part of
the loss, and its parts of model and optimizer if those are divided.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from scalewise.builtin.loop import TrainingState, summed_loss
from scalewise.builtin.optim import STATES_OF_A_WEIGHT
from scalewise.builtin.trainer import Trainer
from scalewise.execution.checkpoint_files import CheckpointError
from scalewise.ranks.results.facts import Epoch

SHARED = "shared.pt"

SMALL_BYTES = 4_000_000
"""Upper bound of random states and progress."""


def rank_file(rank: int) -> str:
    """Return the name of the file with the state of one rank."""
    return f"rank{rank}.pt"


def expected_bytes(trainer: Trainer) -> tuple[int, int]:
    """Return upper bounds of the bytes of the largest file and of a whole checkpoint."""
    network = trainer.parallel_model.module
    model = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    tensors = 1 + STATES_OF_A_WEIGHT[trainer.settings.optimizer]
    files = trainer.identity.world_size + 1
    return model * tensors + SMALL_BYTES, model * tensors + SMALL_BYTES * files


# --- collect ------------------------------------------------------------------------------------------


def shared_state(trainer: Trainer, state: TrainingState) -> dict[str, Any]:
    """Collect the state that is the same on all ranks."""
    shared: dict[str, Any] = {
        "progress": {
            "epoch": state.epoch,
            "step": state.step,
            "steps": state.steps,
            "learning_rate": state.learning_rate,
            "epochs": [asdict(epoch) for epoch in state.epochs],
        },
        "schedule": trainer.schedule.state_dict(),
        "scaler": trainer.precision.state(),
    }
    if trainer.settings.parallelism != "fsdp":
        shared["model"] = trainer.parallel_model.module.state_dict()
    if trainer.settings.parallelism == "ddp":
        shared["optimizer"] = trainer.optimizer.state_dict()
    return shared


def rank_state(trainer: Trainer, state: TrainingState) -> dict[str, Any]:
    """Collect the state of this rank only."""
    numpy_state: Any = np.random.get_state()
    found: dict[str, Any] = {
        "loss_sum": state.loss_sum,
        "random": {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": _plain_numpy_state(numpy_state),
        },
    }
    if trainer.device.type == "cuda":
        found["random"]["cuda"] = torch.cuda.get_rng_state(trainer.device)
    if trainer.settings.parallelism == "fsdp":
        found["model"] = {
            name: _local(value) for name, value in trainer.parallel_model.module.state_dict().items()
        }
        found["optimizer"] = _map_tensors(trainer.optimizer.state_dict(), _local)
    elif isinstance(trainer.optimizer, ZeroRedundancyOptimizer):
        found["optimizer"] = trainer.optimizer.optim.state_dict()
        found["groups"] = [_without_weights(group) for group in trainer.optimizer.param_groups]
    return found


def is_finite(trainer: Trainer, state: TrainingState) -> bool:
    """True if this rank's loss and weights are finite, so that a training can resume from them."""
    weights = (_local(weight) for weight in trainer.parallel_model.module.parameters())
    return all(bool(torch.isfinite(tensor).all()) for tensor in (state.loss_sum, *weights))


# --- restore -----------------------------------------------------------------------------------------


def resume(trainer: Trainer, shared: Mapping[str, Any], rank_state: Mapping[str, Any]) -> TrainingState:
    """Restore all parts of a trainer from a checkpoint; all ranks must call it.

    Raises:
        CheckpointError: The weights are those of another network.
    """
    _settle_buckets(trainer, shared["progress"]["steps"])
    network = trainer.parallel_model.module
    if trainer.settings.parallelism == "fsdp":
        _copy_parts(network.state_dict(), rank_state["model"])
        trainer.optimizer.load_state_dict(_with_parts(trainer, rank_state["optimizer"]))
    else:
        try:
            network.load_state_dict(shared["model"])
        except RuntimeError as error:
            # the code that builds it may have changed since
            raise CheckpointError(f"is of another network than the model builds now ({error})") from error
        if isinstance(trainer.optimizer, ZeroRedundancyOptimizer):
            trainer.optimizer.optim.load_state_dict(rank_state["optimizer"])
            for group, kept in zip(trainer.optimizer.param_groups, rank_state["groups"], strict=True):
                group.update(kept)
        else:
            trainer.optimizer.load_state_dict(shared["optimizer"])
    trainer.schedule.load_state_dict(shared["schedule"])
    trainer.precision.resume(shared["scaler"])
    progress = dict(shared["progress"])
    epochs = [Epoch(**epoch) for epoch in progress.pop("epochs")]
    # last: all of the above may have drawn
    _resume_random(rank_state["random"], trainer.device)
    return TrainingState(loss_sum=rank_state["loss_sum"].to(trainer.device), epochs=epochs, **progress)


def _settle_buckets(trainer: Trainer, steps: int) -> None:
    """Make a pass whose gradients are thrown away.

    DDP chooses its buckets again after its first pass, and sums over more than two ranks depend on them in
    their last bits: the first step after a resume must have the buckets of the steps before it. The
    checkpoint then restores all that the pass has changed.
    """
    size = len(next(iter(trainer.sampler)).micro_batches[0])
    images, labels = trainer.test.load(torch.arange(size) % len(trainer.test))
    trainer.parallel_model.train()
    # with a static graph after its second: the first only learns which parameters take part
    done = steps - 1 + trainer.settings.accumulation_steps
    for _ in range(min(2, done) if trainer.settings.static_graph else 1):
        with trainer.parallel_model.gradient_sync(now=True):
            (summed_loss(trainer, images, labels) * 0.0).backward()
    trainer.optimizer.zero_grad()


def _resume_random(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
    random.setstate(_tuples(state["python"]))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))


def _plain_numpy_state(state: Any) -> list[Any]:
    name, keys, *rest = state
    return [name, torch.from_numpy(keys.astype(np.int64)), *rest]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value


def _without_weights(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


# --- models in parts ----------------------------------------------------------------------------------


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _map_tensors(node: Any, change: Any) -> Any:
    if isinstance(node, dict):
        return {key: _map_tensors(value, change) for key, value in node.items()}
    if isinstance(node, list):
        return [_map_tensors(value, change) for value in node]
    return change(node)


@torch.no_grad()
def _copy_parts(target: Mapping[str, Any], source: Mapping[str, torch.Tensor]) -> None:
    for name, value in target.items():
        _local(value).copy_(source[name])


def _with_parts(trainer: Trainer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of local tensors as the optimizer of a model in parts expects it."""
    weights = [weight for group in trainer.optimizer.param_groups for weight in group["params"]]

    def part(weight: Any, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or not isinstance(weight, DTensor):
            return value
        return DTensor.from_local(
            value.to(trainer.device),
            weight.device_mesh,
            weight.placements,
            run_check=False,
            shape=weight.shape,
            stride=weight.stride(),
        )

    states = {
        index: {name: part(weights[int(index)], value) for name, value in kept.items()}
        for index, kept in state["state"].items()
    }
    return {"state": states, "param_groups": state["param_groups"]}
