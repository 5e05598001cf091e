"""Checkpoints after each epoch, by torch.distributed.checkpoint: whole or not at all, the last two kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

KEPT = 2

Rows = list[dict[str, Any]]
"""Rows of epochs.csv, one for each epoch of the training."""


def save(
    folder: Path, network: nn.Module, optimizer: Optimizer, others: Mapping[str, Any], rows: Rows
) -> None:
    """Write a checkpoint under another name, then rename it; all ranks must call it.

    Args:
        folder: Holds the checkpoints.
        network: The parameters.
        optimizer: The optimizer, whose state is kept.
        others: Further objects with a ``state_dict``, by name.
        rows: The epochs so far, which the checkpoint keeps.
    """
    rank, part, whole = dist.get_rank(), folder / ".part", folder / f"epoch-{len(rows):06d}"
    if rank == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    dist.barrier()
    dcp.save(_state_of(network, optimizer, others), checkpoint_id=part)  # type: ignore[attr-defined]
    sums: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(sums, {path.name: _digest(path) for path in part.glob(f"__{rank}_*")})
    if rank == 0:
        sums.append({".metadata": _digest(part / ".metadata")})
        written = {"rows": rows, "sha256": {name: value for each in sums for name, value in each.items()}}
        (part / "training.json").write_text(json.dumps(written), encoding="utf-8")
        shutil.rmtree(whole, ignore_errors=True)  # a damaged one, or the training would have resumed there
        part.rename(whole)
        for old in sorted(folder.glob("epoch-*"))[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def resume(folder: Path, network: nn.Module, optimizer: Optimizer, others: Mapping[str, Any]) -> Rows:
    """Load the newest checkpoint that is whole; return the rows of its epochs, none without a checkpoint."""
    chosen: list[Any] = [None]
    if dist.get_rank() == 0:
        chosen = [next(_whole(folder), None)]
    dist.broadcast_object_list(chosen)
    if chosen[0] is None:
        return []
    path, rows = chosen[0]
    state = _state_of(network, optimizer, others)
    dcp.load(state, checkpoint_id=path)  # type: ignore[attr-defined]
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        network.load_state_dict(state["network"])
        optimizer.optim.load_state_dict(state["optimizer"][f"rank {dist.get_rank()}"])
        for group, inner in zip(optimizer.param_groups, optimizer.optim.param_groups, strict=True):
            group["lr"] = inner["lr"]
    else:
        set_state_dict(
            network, optimizer, model_state_dict=state["network"], optim_state_dict=state["optimizer"]
        )
    for name, each in others.items():
        each.load_state_dict(state[name])
    if dist.get_rank() == 0:
        print(f"resumed from {path}, after epoch {len(rows)}", flush=True)
    return list(rows)


def save_weights(path: Path, network: nn.Module) -> None:
    """Write the weights as a safetensors file, whole or not at all; all ranks must call it."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(network, options=options)
    if dist.get_rank() == 0:
        part = path.with_name(f".{path.name}.part")
        save_file({name: value.contiguous() for name, value in state.items()}, part)
        part.replace(path)


def _state_of(network: nn.Module, optimizer: Optimizer, others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a training, which is saved, or filled in by what is loaded."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):  # each rank has its own part
        if not optimizer.optim.state:
            # of this rank's part alone: a rank may have none, and ZeRO's own step exchanges the weights
            _make_state(optimizer.optim)
        weights: Any = get_model_state_dict(network)
        optimized: Any = {f"rank {dist.get_rank()}": optimizer.optim.state_dict()}
    else:
        weights, optimized = get_state_dict(network, optimizer)
    states = {name: each.state_dict() for name, each in others.items()}
    return {"network": weights, "optimizer": optimized, **states}


def _make_state(optimizer: Optimizer) -> None:
    """Let an optimizer make its state, by a step that changes nothing."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for weight in group["params"]:
            weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _whole(folder: Path) -> Iterator[tuple[Path, Rows]]:
    """Yield the checkpoints whose files are as they were written, the newest first; name the others.

    Raises:
        OSError: A file is there and cannot be read now: with an older one more would be trained again.
    """
    for path in sorted(folder.glob("epoch-*"), reverse=True):
        try:
            written = json.loads((path / "training.json").read_text(encoding="utf-8"))
            sums = {".metadata": "", **written["sha256"]}  # torch unpickles it: never without a checksum
            damaged = [name for name, value in sums.items() if _digest(path / name) != value]
            rows: Rows = written["rows"]
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
            damaged = [f"{type(error).__name__}: {error}"]
        if damaged:
            print(f"not used: {path} is damaged ({', '.join(damaged)})", flush=True)
        else:
            yield path, rows


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
