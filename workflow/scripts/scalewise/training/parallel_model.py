"""The network as one rank holds it: whole (DDP) or in parts (FSDP2), and how gradients are exchanged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from scalewise.plan.config.settings import Settings

SAMPLED_STEPS = {"cuda": 25, "cpu": 5}
"""DDP times the communication of one step in so many, and of the first ten. It costs a CPU process 10 us a
time; on a GPU it waits for its events."""

FIRST_SAMPLED = 10

KEPT_STEPS = 1000
"""Most sampled steps whose communication is kept by itself, the last ones: all ranks gather them."""

NANOSECONDS = 1e9

COMPRESSION_HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


@dataclass(frozen=True)
class CommTime:
    """Communication that DDP has timed.

    Args:
        steps: Number of steps that DDP has sampled.
        seconds: Communication of all these steps that the backward pass did not hide.
        step_seconds: The same of single steps, the last ``KEPT_STEPS`` of them; empty where nobody kept it.
    """

    steps: int = 0
    seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, data_parallel: DistributedDataParallel, every: int) -> CommTime:
        """Read DDP's counters, in which the last step is not yet.

        Args:
            data_parallel: The model's DDP.
            every: DDP samples one step in so many, and the first ten.
        """
        logged = data_parallel._get_ddp_logging_data()
        last = int(logged.get("iteration", 0))
        steps = min(last, FIRST_SAMPLED) + max(last // every - FIRST_SAMPLED // every, 0)
        total, hidden = (
            float(logged.get(f"avg_backward_{part}_time", 0)) for part in ("comm", "compute_comm_overlap")
        )
        return cls(steps, steps * max(total - hidden, 0.0) / NANOSECONDS)


@dataclass
class ParallelModel:
    """This rank's part of the model.

    Args:
        module: The eager module, for evaluation and for its state.
        compiled: The callable that trains; compiled where that was asked for.
        data_parallel: Exchanges the gradients.
        graph_traced: False until DDP has seen the first step of a static graph.
        warmup_steps: Number of first steps whose communication is not counted.
    """

    module: nn.Module
    compiled: Callable[[torch.Tensor], torch.Tensor]
    data_parallel: DistributedDataParallel | FSDPModule
    graph_traced: bool = True
    warmup_steps: int = 0
    _steps: int = field(default=0, init=False)
    _warm_up: CommTime = field(default=CommTime(), init=False)
    _earlier: CommTime | None = field(default=None, init=False)
    _exchanging_passes: int = field(default=0, init=False)
    _step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS), init=False)

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
            data_parallel._set_ddp_runtime_logging_sample_rate(SAMPLED_STEPS[device.type])
        elif settings.compile:
            model = _compile(data_parallel)
        return cls(network, model, data_parallel, not settings.static_graph, settings.warmup_steps)

    def train(self) -> None:
        """Switch to training."""
        self.module.train()

    def gradient_sync(self, now: bool) -> AbstractContextManager[None]:
        """Enclose a forward and backward pass, whose gradients are exchanged now or added up for later."""
        if isinstance(self.data_parallel, FSDPModule):
            self.data_parallel.set_requires_gradient_sync(now)
            return nullcontext()
        if now:
            self._begin_step()
        if now or not self.graph_traced:
            # DDP learns a static graph from the passes of the first step, which must all exchange; the sum
            # of the averages they leave is the average of the sums
            self.graph_traced |= now
            self._exchanging_passes += 1
            return nullcontext()
        return self.data_parallel.no_sync()

    def communication_seconds(self) -> float | None:
        """Communication of a step that the backward pass did not hide; None where nobody counted it.

        It is the mean of DDP's own counters over the measured steps that it sampled, those of earlier starts
        included. Where none of these was measured, it is over all that DDP sampled, warm-up included; a
        training that was resumed then says nothing. Waiting for slower ranks is in it.
        """
        if isinstance(self.data_parallel, FSDPModule):
            return None
        counted = self.measured_communication()
        if not counted.steps and self._earlier is None:
            counted = self._count()
        return counted.seconds / counted.steps if counted.steps else None

    def measured_communication(self) -> CommTime:
        """Communication of the measured steps that DDP has sampled, those of earlier starts included."""
        earlier = self._earlier or CommTime()
        if isinstance(self.data_parallel, FSDPModule) or self._steps < self._first_counted:
            return earlier
        counted = self._count()
        seconds = max(counted.seconds - self._warm_up.seconds, 0.0)
        return CommTime(
            earlier.steps + counted.steps - self._warm_up.steps,
            earlier.seconds + seconds,
            list(self._step_seconds),
        )

    def resume(self, earlier: CommTime) -> None:
        """Count from here: passes so far were no steps, and the next steps warm up as the first of all did.

        Args:
            earlier: Communication of the measured steps of earlier starts.
        """
        self._steps = 0
        self._earlier = earlier
        self._step_seconds = deque(earlier.step_seconds, maxlen=KEPT_STEPS)

    def _begin_step(self) -> None:
        self._steps += 1
        if self._steps == self._first_counted:
            self._warm_up = self._count()
        elif self._steps > self._first_counted:
            self._keep_step_seconds()

    def _keep_step_seconds(self) -> None:
        """Keep the communication of the last step that DDP has counted, if it is one that DDP sampled.

        This reads a counter of the host, a few microseconds in a sampled step: it waits for no device.
        """
        assert isinstance(self.data_parallel, DistributedDataParallel)
        # DDP counts passes that exchange; of the last one it tells as the next begins
        counted = self._exchanging_passes - 1
        if counted > FIRST_SAMPLED and counted % SAMPLED_STEPS[self.data_parallel.device.type]:
            return
        logged = self.data_parallel._get_ddp_logging_data()
        if int(logged.get("iteration", 0)) == counted:
            total, hidden = (
                float(logged.get(f"backward_{part}_time", 0)) for part in ("comm", "compute_comm_overlap")
            )
            self._step_seconds.append(max(total - hidden, 0.0) / NANOSECONDS)

    @property
    def _first_counted(self) -> int:
        """The step, from 1, at whose beginning DDP has counted the warm-up and no other step."""
        # it adds a step to its counts as the next one begins
        return self.warmup_steps + 2

    def _count(self) -> CommTime:
        assert isinstance(self.data_parallel, DistributedDataParallel)
        return CommTime.of(self.data_parallel, SAMPLED_STEPS[self.data_parallel.device.type])

    @property
    def parameters(self) -> int:
        """Number of trainable parameters of the whole model."""
        return sum(parameter.numel() for parameter in self.module.parameters() if parameter.requires_grad)

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
