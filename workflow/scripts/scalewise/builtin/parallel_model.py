"""The network as one rank holds it: whole (DDP) or in parts (FSDP2), and how gradients are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from scalewise.plan.config.settings import Settings

COMPRESSION_HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


@dataclass
class ParallelModel:
    """This rank's part of the model.

    Args:
        module: The eager module, for evaluation and for its state.
        compiled: The callable that trains; compiled if the settings say so.
        data_parallel: Exchanges the gradients.
        graph_traced: False until DDP has seen the first step of a static graph.
    """

    module: nn.Module
    compiled: Callable[[torch.Tensor], torch.Tensor]
    data_parallel: DistributedDataParallel | FSDPModule
    graph_traced: bool = True

    @classmethod
    def build(
        cls, network: nn.Module, blocks: Sequence[nn.Module], settings: Settings, device: torch.device
    ) -> ParallelModel:
        """Place a network, which lies on the device, in the process group; one rank takes the same path.

        The network must be equal on all ranks. Fsdp gathers the ``blocks`` of it one after the other.
        """
        data_parallel: Any = _shard(network, blocks, device) if settings.parallelism == "fsdp" else None
        model = data_parallel
        if data_parallel is None:
            # compiled inside: of a compiled DistributedDataParallel torch leaves most of the network as it is
            model = data_parallel = DistributedDataParallel(
                _compile(network) if settings.compile else network,
                device_ids=[device.index] if device.type == "cuda" else None,
                gradient_as_bucket_view=settings.gradient_as_bucket_view,
                static_graph=settings.static_graph,
                bucket_cap_mb=settings.bucket_cap_mb,
            )
            if settings.communication_hook != "none":
                hook = COMPRESSION_HOOKS[settings.communication_hook]
                data_parallel.register_comm_hook(dist.group.WORLD, hook)
        elif settings.compile:
            model = _compile(data_parallel)
        return cls(network, model, data_parallel, not settings.static_graph)

    def train(self) -> None:
        """Switch to training."""
        self.module.train()

    def gradient_sync(self, now: bool) -> AbstractContextManager[None]:
        """Enclose a forward and backward pass, whose gradients are exchanged now or added up for later."""
        if isinstance(self.data_parallel, FSDPModule):
            self.data_parallel.set_requires_gradient_sync(now)
            return nullcontext()
        if now or not self.graph_traced:
            # DDP learns a static graph from the passes of the first step, which must all exchange; the sum
            # of the averages they leave is the average of the sums
            self.graph_traced |= now
            return nullcontext()
        return self.data_parallel.no_sync()

    def state(self) -> dict[str, torch.Tensor]:
        """The whole model's state in host memory, on rank 0; all ranks must call it."""
        # what every start would load, only a run that keeps its model needs
        from torch.distributed.checkpoint.state_dict import (  # noqa: PLC0415
            StateDictOptions,
            get_model_state_dict,
        )

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        gathered: dict[str, Any] = get_model_state_dict(self.module, options=options)
        return {name: value.contiguous() for name, value in gathered.items()}


def _compile(module: Any) -> Any:
    """Compile for each batch size by itself: code for any size is slower, and would take the place of all."""
    return torch.compile(module, dynamic=False)


def _shard(network: nn.Module, blocks: Sequence[nn.Module], device: torch.device) -> FSDPModule:
    # left to itself, FSDP takes a GPU wherever there is one, also for CPU processes
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)
