"""Ways of training on one GPU, each for a process of its own: a tutorial's loops, and the project's."""

from __future__ import annotations

import copy
import gc
import os
import resource
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.flop_counter import FlopCounterMode
from torchvision import transforms

from scalewise.ranks.distributed.device_timers import timer_for
from scalewise.training.data import Batch, Preprocessing, ResidentImages, channel_statistics, whole_batch
from scalewise.training.models import build
from train import Training, train_epoch

from .gpu_profile import profiled_shares
from .measure import Spent, interleave, spend
from .one_rank import Dataset, epochs_of, one_rank, training_of
from .stand_in_images import PilImages, per_sample

Accelerator = Literal["cpu", "cuda"]
CLASSES, CROP_PADDING = 100, 4
CROPS = {"crop_padding": CROP_PADDING, "horizontal_flip": True}
PROFILED_STEPS = 10
PASSES_OF_A_STEP = 3
"""A backward pass computes twice what the forward pass does."""


def gpu_missing() -> str:
    """Say why no GPU can be used; empty where one can."""
    if torch.cuda.is_available():
        return ""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    return f"no GPU: torch {torch.__version__}, {built}, sees none (CUDA_VISIBLE_DEVICES={visible})"


def gpu_name(accelerator: Accelerator) -> str:
    """The name of the GPU; empty in a rehearsal."""
    return torch.cuda.get_device_name(0) if accelerator == "cuda" else ""


@dataclass(frozen=True)
class Work:
    """What is trained, and for how long.

    Args:
        model: the network's name.
        pixels: height and width of an image.
        batch: images of a step.
        steps: of a timed pass, after which the device is waited for.
        rounds: timed passes, after one that is not timed.
        workers: loader processes, where there are any.
        accelerator: ``cpu`` only rehearses.
        compile: whether what is to be fast is compiled; a rehearsal is not.
    """

    model: str
    pixels: int
    batch: int
    steps: int
    rounds: int
    workers: int = 8
    accelerator: Accelerator = "cuda"
    compile: bool = True

    @property
    def samples(self) -> int:
        """Images of a pass."""
        return self.steps * self.batch

    @property
    def fast(self) -> dict[str, Any]:
        """What ours are to be fast by."""
        return {"precision": "bf16", "channels_last": True, "compile": "default" if self.compile else "no"}

    @property
    def cpus(self) -> int:
        """Threads of the rank."""
        return min(self.workers, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Measured:
    """One training of ours.

    Args:
        rates: images/s of each timed pass.
        peak_bytes: of memory.
        memory_kind: what that counts.
        shares: of a step's time, by what the GPU does in it; empty where it was not profiled.
    """

    rates: Sequence[float]
    peak_bytes: int
    memory_kind: str
    shares: Mapping[str, float] = field(default_factory=dict)


def image_flops(model: str, pixels: int) -> float:
    """Floating-point operations of a training step for one image: products and convolutions only."""
    network = build(model, torch.Size((3, pixels, pixels)), CLASSES).to("meta").eval()
    # with gradients: without them torch runs a transformer layer as one operator, which is not counted
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, pixels, pixels, device="meta"))
    return float(PASSES_OF_A_STEP * counter.get_total_flops())


def random_images(samples: int, pixels: int) -> Dataset:
    """Random pixels; every class is there."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (samples, 3, pixels, pixels), dtype=torch.uint8, generator=generator)
    labels = torch.arange(samples) % CLASSES
    return {
        "train_images": images,
        "train_labels": labels,
        "test_images": images[:CLASSES].clone(),
        "test_labels": labels[:CLASSES].clone(),
    }


def product_rates(work: Work) -> list[float]:
    """FLOP/s of a product of two large bf16 matrices, of each round."""
    side, products = (8192, 20) if work.accelerator == "cuda" else (256, 2)
    with one_rank(work.accelerator) as device:
        one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
        timer = timer_for(device)

        def multiply() -> None:
            for _ in range(products):
                torch.mm(one, other)
            timer.synchronize()

        multiply()
        return [products * 2 * side**3 / spend(multiply).wall for _ in range(work.rounds)]


# --- the tutorial's -----------------------------------------------------------------------------------


def guide(work: Work, several_gpus: bool) -> list[float]:
    """Images/s of the guide's own loop: as on one GPU, or as on several, with all of its options."""
    dataset = random_images(work.samples, work.pixels)
    loader = host_loader(dataset, work, workers=work.workers if several_gpus else 0)
    network = build(work.model, dataset["train_images"].shape[1:], CLASSES)
    with one_rank(work.accelerator) as device:
        return train_guide(network.to(device), loader, several_gpus, work, device)


def host_loader(dataset: Dataset, work: Work, workers: int) -> DataLoader[Any]:
    """Images through torchvision's transforms, one by one, with crop and flip."""
    random = (transforms.RandomCrop(work.pixels, padding=CROP_PADDING), transforms.RandomHorizontalFlip())
    transform = per_sample(*channel_statistics(dataset["train_images"]), *random)
    return DataLoader(
        PilImages(dataset["train_images"], dataset["train_labels"], transform),
        work.batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=work.accelerator == "cuda",
        persistent_workers=workers > 0,
    )


def train_guide(
    network: nn.Module, loader: DataLoader[Any], several_gpus: bool, work: Work, device: torch.device
) -> list[float]:
    """Passes over the loader: plain SGD in one process, or DDP, momentum and fp16 with a scaler."""
    model = DistributedDataParallel(network) if several_gpus else network
    optimizer = optim.SGD(network.parameters(), lr=0.01, momentum=0.9 if several_gpus else 0.0)
    scaler = torch.amp.GradScaler(device.type, enabled=several_gpus)

    def epoch() -> None:
        model.train()
        for data, target in loader:
            images, labels = (part.to(device, non_blocking=True) for part in (data, target))
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16, enabled=several_gpus):
                loss = cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        loss.item()  # waits for the device

    epoch()
    return rates_of(epoch, work)


# --- ours ---------------------------------------------------------------------------------------------


def ours(work: Work, options: Sequence[Mapping[str, Any]], profiled: bool = False) -> list[Measured]:
    """Our training by each of these options, in one process: what one has compiled the next need not.

    Args:
        work: what is trained.
        options: settings, one for each training.
        profiled: whether some steps of the first are looked into.
    """
    dataset = random_images(work.samples, work.pixels)
    found: list[Measured] = []
    with one_rank(work.accelerator, work.cpus) as device:
        for chosen in options:
            settings = {"model": work.model, "batch_size_per_device": work.batch} | dict(chosen)
            training = training_of(settings, dataset, device)
            found.append(train_ours(training, work, profiled and not found))
            del training
            gc.collect()
    return found


def train_ours(training: Training, work: Work, profiled: bool) -> Measured:
    """Epochs of the project's own loop."""
    epoch, on_gpu = epochs_of(training), training.device.type == "cuda"
    # cuDNN tries its algorithms in the process's first training alone, and these take memory, too
    epoch()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(training.device)
    rates = rates_of(epoch, work)
    if on_gpu:
        peak, kind = torch.cuda.max_memory_allocated(training.device), "CUDA allocator"
    else:
        peak, kind = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "process peak RSS"
    measured = Measured(rates, peak, kind)
    if not profiled:
        return measured
    steps = steps_of(training, PROFILED_STEPS)
    return replace(measured, shares=profiled_shares(steps, training.device))


def steps_of(training: Training, steps: int) -> Callable[[], object]:
    """So many steps of an epoch."""
    part = copy.copy(training)
    part.steps, part.args = 0, Namespace(**vars(training.args) | {"steps": steps})
    return lambda: train_epoch(part, 1000)


def rates_of(epoch: Callable[[], object], work: Work) -> list[float]:
    """Samples per second of wall time, of each pass after one in which libraries load and choose."""
    return [work.samples / spend(epoch).wall for _ in range(work.rounds)]


def loop_and_bare_loop(work: Work) -> list[tuple[Spent, Spent]]:
    """Passes of our loop and of a bare one in turn: the same compiled network, optimizer and batches."""
    dataset = random_images(work.samples, work.pixels)
    with one_rank(work.accelerator, work.cpus) as device:
        settings = {"model": work.model, "batch_size_per_device": work.batch} | work.fast
        # in a function of its own: with it goes DDP, which must be gone before its process group
        return loops_in_turn(training_of(settings, dataset, device), dataset, work)


def loops_in_turn(training: Training, dataset: Dataset, work: Work) -> list[tuple[Spent, Spent]]:
    """Passes of both loops over one training."""
    device = training.device
    timer = timer_for(device)
    mean, std = (part.view(1, -1, 1, 1) for part in channel_statistics(dataset["train_images"]))
    images = ((dataset["train_images"] - mean) / std).to(device)
    labels = dataset["train_labels"].to(device)
    model, optimizer = training.model, training.optimizer

    def bare() -> None:
        training.model.train()
        order = torch.randperm(len(images), device=device)
        for chosen in order.split(work.batch):
            batch = images[chosen].contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16):
                loss = cross_entropy(model(batch), labels[chosen])
            loss.backward()
            optimizer.step()
        timer.synchronize()

    epoch = epochs_of(training)
    interleave(epoch, bare, rounds=1)
    return interleave(epoch, bare, work.rounds)


def batches_alone(work: Work) -> list[tuple[Spent, Spent]]:
    """Passes of the resident loader and of torchvision's in turn, nothing trained: crop and flip."""
    dataset = random_images(work.samples, work.pixels)
    with one_rank(work.accelerator, work.cpus) as device:
        timer = timer_for(device)
        preprocessing = Preprocessing(
            *channel_statistics(dataset["train_images"]), CROP_PADDING, horizontal_flip=True
        )
        resident = ResidentImages(dataset["train_images"], dataset["train_labels"], preprocessing, device)
        sampler: DistributedSampler[Batch] = DistributedSampler(resident, 1, 0, drop_last=True)
        loader = DataLoader(resident, work.batch, sampler=sampler, collate_fn=whole_batch)
        from_host = host_loader(dataset, work, work.workers)

        def of_the_device() -> None:
            for _batch in loader:
                pass
            timer.synchronize()

        def of_the_host() -> None:
            for images, labels in from_host:
                images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            timer.synchronize()

        interleave(of_the_device, of_the_host, rounds=1)
        return interleave(of_the_device, of_the_host, work.rounds)
