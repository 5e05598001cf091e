"""Train an image classifier on one device or many, with PyTorch alone.

The pipeline runs this script as it runs any program. You can start it by hand, and copy it:

    python workflow/scripts/train.py --dataset digits --model digits_cnn
    torchrun --nproc-per-node=2 workflow/scripts/train.py --dataset digits --model digits_cnn
    python workflow/scripts/train.py --spawn 2 --dataset digits --model digits_cnn
    srun --ntasks=8 python workflow/scripts/train.py ...      # with MASTER_ADDR and MASTER_PORT

The pipeline's `prepare_dataset` makes the file of a dataset. --folder receives epochs.csv, a checkpoint after
each epoch, from which the same command resumes, and the weights if --save-model is given.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import math
import os
import socket
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from scalewise.training.checkpoints import Rows, resume, save, save_weights
from scalewise.training.data import Loaders, open_data
from scalewise.training.models import blocks, build
from scalewise.training.options import build_optimizer, build_schedule, make_parser

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
DDP_ARGUMENTS = inspect.signature(DistributedDataParallel.__init__).parameters
# renamed in torch 2.15
SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in DDP_ARGUMENTS else "broadcast_buffers"


def main() -> None:
    """Start the ranks of this node, or take part as one rank."""
    args = make_parser().parse_args()
    environ = os.environ
    if args.spawn:
        environ.setdefault("MASTER_ADDR", "127.0.0.1")
        environ.setdefault("MASTER_PORT", str(free_port()))
        spawn(spawned, (args,), nprocs=args.spawn)
    elif "RANK" in environ:  # torchrun and the pipeline
        train(args, *(int(environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
    elif "SLURM_STEP_ID" in environ:  # srun
        train(args, *(int(environ[name]) for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")))
    else:
        train(args, 0, 0, 1)


def spawned(local_rank: int, args: argparse.Namespace) -> None:
    """Train as one of the ranks that torch.multiprocessing.spawn starts."""
    rank = int(os.environ.get("NODE_RANK", "0")) * args.spawn + local_rank
    train(args, rank, local_rank, args.nodes * args.spawn)


def free_port() -> int:
    """Return a port of this host that no process has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Training:
    """All that one rank trains with.

    Args:
        network: The parameters; evaluates, and is saved.
        model: The module that trains: the network, compiled, in DistributedDataParallel or divided by FSDP.
        rows: One for each epoch of the training, those of earlier starts too.
        steps: Optimizer steps of this start.
    """

    args: argparse.Namespace
    rank: int
    world_size: int
    device: torch.device
    data: Loaders
    network: nn.Module
    model: Any
    optimizer: Optimizer
    schedule: LRScheduler
    scaler: torch.amp.GradScaler
    rows: Rows
    steps: int = 0

    def autocast(self) -> AbstractContextManager[Any]:
        """Enclose a forward pass; FSDP casts by its own policy."""
        dtype = None if isinstance(self.model, FSDPModule) else HALF.get(self.args.precision)
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.rank == 0:
            print(text, flush=True)


def train(args: argparse.Namespace, rank: int, local_rank: int, world_size: int) -> None:
    """Train one rank's share, from the newest checkpoint if there is one."""
    device = torch.device(args.device, local_rank) if args.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    choose_algorithms(args, device)
    join(args, rank, world_size, device)
    training = set_up(args, rank, world_size, device)
    if args.steps is not None:
        for epoch in range(args.steps):
            loss = train_epoch(training, epoch)
            training.say(f"step {training.steps}/{args.steps}  train loss {loss:.4f}")
            if training.steps == args.steps:
                break
    else:
        while len(training.rows) < args.epochs and not target_reached(training):
            if not finish_epoch(training, len(training.rows)):
                break
    if args.save_model:
        save_weights(args.folder / "model.safetensors", training.network)
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    dist.destroy_process_group()


def join(args: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> None:
    """Join the ranks' process group, by NCCL on GPUs and gloo on CPUs; a single rank has one, too."""
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if world_size == 1:
        options["store"] = dist.HashStore()  # type: ignore[attr-defined]
    else:
        options["init_method"] = args.init_method
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=args.timeout_seconds),
        **options,
    )


def set_up(args: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> Training:
    """Open the data, build model, optimizer and schedule, and load the newest checkpoint."""
    data = open_data(args, device, rank, world_size)
    torch.manual_seed(args.seed)  # the same weights on all ranks
    network = build(args.model, data.image, data.classes)
    layout: Any = torch.channels_last if args.channels_last else torch.preserve_format
    if args.parallelism != "fsdp" or world_size == 1:  # which moves it block by block, as it divides it
        network = network.to(device).to(memory_format=layout)
    model = parallelize(args, network, device, world_size)
    optimizer = build_optimizer(args, network.parameters(), world_size)
    schedule = build_schedule(args, optimizer, len(data.train) // args.accumulation_steps)
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")
    if rank == 0:
        args.folder.mkdir(parents=True, exist_ok=True)
    others = {"schedule": schedule, "scaler": scaler}
    rows = [] if args.steps is not None else resume(args.folder / "checkpoints", network, optimizer, others)
    return Training(args, rank, world_size, device, data, network, model, optimizer, schedule, scaler, rows)


def train_epoch(training: Training, epoch: int) -> float:
    """Train for an epoch, or to the last of ``--steps``; return the mean loss per sample over all ranks."""
    args, device, model = training.args, training.device, training.model
    training.data.sampler.set_epoch(epoch)
    # dropout and augmentation: of each rank and epoch its own, also after a resume. Worker processes augment
    # by other seeds, which a resume changes
    torch.manual_seed((args.seed * 10_007 + training.rank) * 10_007 + epoch)
    model.train()
    loss_sum = torch.zeros((), device=device)
    steps: int = len(training.data.train) // args.accumulation_steps
    if args.steps is not None:
        steps = min(args.steps - training.steps, steps)
    batches = islice(training.data.train, steps * args.accumulation_steps)
    for number, batch in enumerate(batches, 1):
        images, labels = (part.to(device, non_blocking=True) for part in batch)
        updates = number % args.accumulation_steps == 0
        with exchange(model, now=updates):
            with training.autocast():
                logits = model(images).float()  # FSDP's are in its format, and a scaled loss exceeds fp16
                loss = cross_entropy(logits, labels)
            training.scaler.scale(loss / args.accumulation_steps).backward()
        loss_sum += loss.detach()
        if updates:
            training.scaler.step(training.optimizer)
            training.scaler.update()
            training.optimizer.zero_grad()
            training.schedule.step()
            training.steps += 1
    (total,) = summed([float(loss_sum.item())], device)
    return total / float(steps * args.accumulation_steps * training.world_size)


def target_reached(training: Training) -> bool:
    """Return whether the last epochs have the accuracy at which the training ends early."""
    args = training.args
    latest = [row["test_accuracy"] for row in training.rows[-args.stop_patience_epochs :]]
    if args.stop_at_accuracy is None or len(latest) < args.stop_patience_epochs:
        return False
    return bool(min(latest) >= args.stop_at_accuracy)


def finish_epoch(training: Training, epoch: int) -> bool:
    """Train for an epoch, evaluate and save; return whether the loss is still finite."""
    args, rows, began = training.args, training.rows, time.perf_counter()
    learning_rate = training.schedule.get_last_lr()[0]
    train_loss = train_epoch(training, epoch)
    trained = time.perf_counter()
    test_loss, accuracy = evaluate(training)
    per_step = args.batch_size_per_device * args.accumulation_steps * training.world_size
    rate = len(training.data.train) // args.accumulation_steps * per_step / (trained - began)
    rows.append(
        {
            "epoch": epoch + 1,
            "train_seconds": trained - began,
            "evaluation_seconds": time.perf_counter() - trained,
            "samples_per_second": rate,
            "train_loss": train_loss,
            "test_loss": test_loss,
            "test_accuracy": accuracy,
            "learning_rate": learning_rate,
        }
    )
    training.say(
        f"epoch {epoch + 1}/{args.epochs}  train loss {train_loss:.4f}  test loss {test_loss:.4f}  "
        f"accuracy {100 * accuracy:.2f} %  {rate:,.0f} samples/s"
    )
    if training.rank == 0:
        write_rows(args.folder / "epochs.csv", rows)
    if not math.isfinite(train_loss + test_loss):
        training.say("the loss is no longer finite")
        return False
    others = {"schedule": training.schedule, "scaler": training.scaler}
    save(args.folder / "checkpoints", training.network, training.optimizer, others, rows)
    if target_reached(training):
        training.say(f"Target accuracy reached. Early stopping after epoch {epoch + 1}.")
    return True


@torch.no_grad()
def evaluate(training: Training) -> tuple[float, float]:
    """Return mean loss and accuracy over the test split, each sample counted once, over all ranks."""
    network, device, data = training.network, training.device, training.data
    network.eval()
    for buffer in network.buffers():  # all ranks evaluate and save rank 0's
        dist.broadcast(buffer, src=0)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    correct = torch.zeros((), dtype=torch.float64, device=device)
    seen = 0
    for batch in data.test:
        images, labels = (part.to(device) for part in batch)
        counted = min(len(labels), data.test_samples - seen)  # the sampler repeats some, for equal numbers
        with training.autocast():
            logits = network(images)[:counted].float()
        loss_sum += cross_entropy(logits, labels[:counted], reduction="sum")
        correct += (logits.argmax(1) == labels[:counted]).sum()
        seen += counted
    loss, right, count = summed([loss_sum.item(), correct.item(), seen], device)
    return loss / count, right / count


def summed(values: list[float], device: torch.device) -> list[float]:
    """Return element-wise sums over all ranks, in double precision."""
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def write_rows(path: Path, rows: Rows) -> None:
    """Write a CSV file, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


def choose_algorithms(args: argparse.Namespace, device: torch.device) -> None:
    """Choose the fastest algorithms, and the format in which fp32 tensors are multiplied."""
    torch.backends.cudnn.benchmark = device.type == "cuda"
    # by default cuDNN uses TF32 for convolutions. The older of torch's two sets of switches first: reading it
    # raises if they disagree
    tf32 = args.precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    backends: Any = torch.backends
    for operator in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        operator.fp32_precision = "tf32" if tf32 else "ieee"


def parallelize(args: argparse.Namespace, network: nn.Module, device: torch.device, world_size: int) -> Any:
    """Return the module that trains: compiled if asked for, and copied to several ranks or divided over them.

    A single device trains the network itself, as a user of one device does: a speedup is over that.
    """
    options: dict[str, Any] = {"dynamic": False}  # code for any batch size is slower
    if args.compile == "reduce-overhead":
        options["mode"] = args.compile
    if args.parallelism == "fsdp" and world_size > 1:
        return divide(args, network, init_device_mesh(device.type, (world_size,)), options)
    trained: Any = torch.compile(network, **options) if args.compile != "no" else network
    if world_size == 1:
        return trained
    buffers: dict[str, Any] = {SYNC_BUFFERS: False}
    # compiled inside, so that the graph is split at the buckets. Buffers, the statistics of batch
    # normalisation, are broadcast before an evaluation, not in each step
    model = DistributedDataParallel(
        trained,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=args.gradient_as_bucket_view,
        bucket_cap_mb=args.bucket_cap_mb,
        **buffers,
    )
    if args.communication_hook != "none":
        model.register_comm_hook(dist.group.WORLD, HOOKS[args.communication_hook])
    return model


def divide(args: argparse.Namespace, network: nn.Module, mesh: Any, compile_options: dict[str, Any]) -> Any:
    """Divide parameters, gradients and states over all ranks, block by block, by FSDP2."""
    half = HALF.get(args.precision)
    policy = MixedPrecisionPolicy(half, torch.float32 if half else None)
    # a normalization takes and gives 16 bits, its weights and statistics are fp32
    full = MixedPrecisionPolicy(cast_forward_inputs=False)
    parts = blocks(network)
    for part in [*parts, network] if half else []:  # a block's in one group, for one exchange
        norms: list[nn.Module] = [each for each in part.modules() if isinstance(each, _BatchNorm)]
        if norms := [norm for norm in norms if not isinstance(norm, FSDPModule)]:
            fully_shard(norms, mesh=mesh, mp_policy=full)
    for block in parts:
        if not isinstance(block, FSDPModule):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        if args.compile != "no":
            block.compile(**compile_options)
    return fully_shard(network, mesh=mesh, mp_policy=policy)


def exchange(model: Any, *, now: bool) -> AbstractContextManager[Any]:
    """Enclose forward and backward passes, whose gradients are exchanged now or added up for later."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
    elif isinstance(model, DistributedDataParallel) and not now:
        return model.no_sync()
    return nullcontext()


if __name__ == "__main__":
    main()
