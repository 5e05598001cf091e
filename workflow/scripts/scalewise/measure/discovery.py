"""The modules that are trained and their division among the ranks, found once among all objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

SUMMED_PARAMETERS, SUMMED_VALUES = 8, 4096
"""Most parameters, and values of each, that are added up to be compared between ranks."""

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "DeepSpeedEngine")
"""Modules that divide a training, by the names of their classes."""

PLAIN = (torch.Tensor, nn.Parameter)
"""Types of parameters that lie whole on each rank."""


@dataclass
class TrainedModules:
    """The modules that are trained, at the first step of an optimizer.

    Args:
        roots: Modules with parameters of this optimizer that lie in no other such module.
        whole: Identities of the modules that hold all trained parameters of a root, the roots among them:
            what DDP or torch.compile has wrapped may be evaluated by itself.
        parallelism: Names of what divides the training, sorted.
        data_parallel: Each DistributedDataParallel with trained parameters.
        data_parallel_devices: Most devices among which a DataParallel divides a batch; 0 without one.
        compiled: True if something is compiled.
        calls_are_compiled: True if calls of a root may be a part of a compiled graph.
        refused: Parallelism in which the ranks are no replicas of each other; None without it.
    """

    roots: list[nn.Module] = field(default_factory=list)
    whole: set[int] = field(default_factory=set)
    parallelism: list[str] = field(default_factory=list)
    data_parallel: list[nn.Module] = field(default_factory=list)
    data_parallel_devices: int = 0
    compiled: bool = False
    calls_are_compiled: bool = False
    refused: str | None = None

    @property
    def sharded(self) -> bool:
        """True if a rank holds a part of the parameters."""
        return bool({"FullyShardedDataParallel", "fully_shard", "DeepSpeedEngine"} & set(self.parallelism))


def all_objects() -> tuple[list[nn.Module], list[Optimizer]]:
    """Find all modules and optimizers of the process; it takes 0.1 s, once.

    Hooks of all modules instead would take 1 us a module and pass, and torch.compile would trace them.
    """
    modules: list[nn.Module] = []
    optimizers: list[Optimizer] = []
    for each in gc.get_objects():
        kind = type(each)  # not isinstance: it asks lazy objects, which then do what they put off
        if issubclass(kind, nn.Module):
            modules.append(each)
        elif issubclass(kind, Optimizer):
            optimizers.append(each)
    return modules, optimizers


def find_trained(
    optimizer: Optimizer, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
) -> TrainedModules:
    """Find the modules that an optimizer trains.

    Args:
        optimizer: The one that counts the steps; others, as of each parameter, may make some, too.
        modules: All of the process.
        optimizers: All of the process.
    """
    own = {id(parameter) for parameter in parameters_of([optimizer])}
    parameters = parameters_of(optimizers)
    trained = {id(parameter) for parameter in parameters}
    held = {id(each): {id(parameter) for parameter in each.parameters()} & trained for each in modules}
    holders = [each for each in modules if held[id(each)]]
    inner = {id(child) for each in holders for child in each.modules() if child is not each}
    found = TrainedModules([each for each in holders if id(each) not in inner and held[id(each)] & own])
    found.whole = {
        id(each) for each in holders if any(held[id(each)] >= held[id(root)] for root in found.roots)
    }
    names = {type(each).__name__ for each in holders}
    fully_sharded = any(base.__name__ == "FSDPModule" for each in holders for base in type(each).__mro__)
    found.parallelism = sorted({*names.intersection(WRAPPERS), *(["fully_shard"] if fully_sharded else [])})
    split = [each for each in holders if isinstance(each, nn.DataParallel)]
    found.data_parallel_devices = max((len(each.device_ids) for each in split), default=0)
    found.data_parallel = [each for each in holders if type(each).__name__ == "DistributedDataParallel"]
    _find_compiled(found, holders)
    found.refused = _no_replicas(modules, parameters, fully_sharded)
    return found


def _find_compiled(found: TrainedModules, holders: list[Any]) -> None:
    """Set what is compiled: whole modules, modules in place, or functions that cannot be found."""
    in_place = [each for each in holders if getattr(each, "_compiled_call_impl", None) is not None]
    wrapped = [each._orig_mod for each in holders if type(each).__name__ == "OptimizedModule"]
    found.compiled = bool(in_place or wrapped or compiled_frames())
    inside = {type(child) for each in (*in_place, *wrapped) for child in each.modules()}
    found.calls_are_compiled = any(type(root) in inside for root in found.roots) or (
        found.compiled and not in_place and not wrapped
    )


def compiled_frames() -> int:
    """Return the number of functions that torch.compile has seen in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils.counters["frames"]["total"] if utils is not None else 0


def parameters_of(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    """Return all different parameters with gradients that some optimizers update."""
    found = {
        id(parameter): parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    }
    return list(found.values())


def device_of(optimizer: Optimizer) -> torch.device | None:
    """The GPU of the parameters that an optimizer updates; None where they are trained by the CPU.

    Parameters on the host, if CUDA is in use, are those of a model whose optimizer is kept there:
    the GPU is then the current one.
    """
    on_gpus = (parameter.device for parameter in parameters_of([optimizer]) if parameter.is_cuda)
    found = next(on_gpus, None)
    if found is None and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return found


def no_figures() -> dict[str, Any]:
    """Return the figures below if no optimizer was seen."""
    return {
        "parameters": None,
        "gradient_bytes": None,
        "parameter_dtypes": [],
        "sharded": False,
        "sharded_over": None,
        "weights": [],
    }


def parameter_figures(parameters: list[torch.Tensor], trained: TrainedModules) -> dict[str, Any]:
    """Return numbers, types and sums of the parameters, as JSON values."""
    sharded = trained.sharded or any(hasattr(parameter, "placements") for parameter in parameters)
    number: int | None = sum(parameter.numel() for parameter in parameters)
    number_of_bytes: int | None = sum(
        parameter.numel() * parameter.element_size() for parameter in parameters
    )
    if {"FullyShardedDataParallel", "DeepSpeedEngine"} & set(trained.parallelism):
        number, number_of_bytes = _number_of_flat(trained)  # a parameter is this rank's part
    return {
        "parameters": number,
        "gradient_bytes": number_of_bytes,
        "parameter_dtypes": sorted({str(parameter.dtype) for parameter in parameters}),
        "sharded": sharded,
        "sharded_over": _ranks_of_shards(parameters, trained) if sharded else None,
        # a rank's part of a sharded one cannot be compared
        "weights": [] if sharded else _sums(parameters),
    }


def _ranks_of_shards(parameters: list[Any], trained: TrainedModules) -> int | None:
    """Return the ranks that share a sharded model, with those of its replicas in HSDP; None if unknown."""
    # elements by the size of their mesh: a layer may have another one, as experts have
    held: dict[int, int] = {}
    for each in parameters:
        if hasattr(each, "device_mesh"):
            size = each.device_mesh.size()
            held[size] = held.get(size, 0) + each.numel()
    modules: list[Any] = [module for root in trained.roots for module in root.modules()]
    for module in modules:
        if type(module).__name__ == "FullyShardedDataParallel":
            replicas = getattr(module, "_inter_node_pg", None)
            size = module.process_group.size() * (1 if replicas is None else replicas.size())
            held[size] = held.get(size, 0) + sum(each.numel() for each in module.parameters(recurse=False))
    return max(held, key=lambda size: held[size], default=None)


def _number_of_flat(trained: TrainedModules) -> tuple[int | None, int | None]:
    """Return parameters and their bytes over all ranks, from FSDP's flat ones; None if unknown."""
    number = number_of_bytes = 0
    for root in trained.roots:
        for each in root.modules():
            flat = getattr(getattr(each, "_handle", None), "flat_param", None)
            size = getattr(flat, "_unpadded_unsharded_size", None)
            if flat is not None and size is not None:
                number += size.numel()
                number_of_bytes += size.numel() * flat.element_size()
    return number or None, number_of_bytes or None


@torch.no_grad()
def _sums(parameters: list[torch.Tensor]) -> list[float | None]:
    plain = [parameter for parameter in parameters if type(parameter) in PLAIN][:SUMMED_PARAMETERS]
    sums = [float(parameter.detach().flatten()[:SUMMED_VALUES].double().sum()) for parameter in plain]
    return [value if isfinite(value) else None for value in sums]


@torch.no_grad()
def are_finite(parameters: Iterable[Any]) -> bool | None:
    """Return whether values of some parameters, or of this rank's shards, are finite; None without any."""
    local = [each.to_local() if hasattr(each, "to_local") else each for each in parameters]
    values = [each.detach().flatten()[:SUMMED_VALUES] for each in local][:SUMMED_PARAMETERS]
    return all(bool(each.isfinite().all()) for each in values) if values else None


def _no_replicas(modules: Sequence[nn.Module], parameters: list[Any], fully_sharded: bool) -> str | None:
    """Return the parallelism whose ranks see other samples than replicas would; None without it."""
    if any(type(each).__name__ == "DeepSpeedEngine" for each in modules):
        return "DeepSpeed"
    if any(type(each).__module__.startswith("megatron.") for each in modules):
        return "Megatron"
    stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "_PipelineStageBase", None)
    if stage is not None and any(issubclass(type(each), stage) for each in gc.get_objects()):
        return "pipeline parallel"
    if any(_is_tensor_parallel(parameter, fully_sharded) for parameter in parameters):
        return "tensor parallel"
    return None


def _is_tensor_parallel(parameter: Any, fully_sharded: bool) -> bool:
    """Return whether a DTensor is sharded by more than FSDP, which uses one dimension of the mesh."""
    placements = getattr(parameter, "placements", None)
    if placements is None:
        return False
    divided = sum("Shard" in type(placement).__name__ for placement in placements)
    names = getattr(parameter.device_mesh, "mesh_dim_names", None) or ()
    named = any(name in ("tp", "tensor", "tensor_parallel", "model") for name in names)
    return divided > 1 or named or (divided > 0 and not fully_sharded)
