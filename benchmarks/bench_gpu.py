"""One GPU, part by part: trainings of tutorials against ours, what keeps ours from the GPU's peak.

- ``gpu-wide-resnet``: the network of Sigma2's Olivia guide, in CIFAR-100's shape. The guide on one GPU: fp32,
  batch 32, a per-sample loader in the process itself; its way on several, here on one: fp16 with a scaler,
  batch 256, 8 loader processes; ours: bf16, channels_last, compiled, the images on the GPU, batch 256. All
  with crop and flip. Then the share of the GPU's peak, and where the time of a step goes.
- ``gpu-loop``: our training loop against a bare one, the same network.
- ``gpu-loader``: the resident loader against torchvision's, nothing trained.
- ``gpu-resnet18``: at 224 pixels, ours with all options against ours with none.
- ``gpu-transformer``: transformer-100M, likewise.

Images are random, so no figure is of accuracy. "fp32" of the guide is torch's default, which convolves in
TF32; ours without options use TF32 for all products. ``--small`` rehearses all, on a CPU
if there is no GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeVar

import torch
from torch import optim
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from scalewise.training.models import build
from train import train_epoch

from .gpu_profile import profiled_shares
from .measure import Pair, Row, compare, each, interleave, show
from .one_rank import (
    CROPS,
    Dataset,
    bare_loop,
    epochs_of,
    host_epoch,
    host_loader,
    loader_epochs,
    one_rank,
    random_images,
    training_of,
    wait_for,
)

T = TypeVar("T")

PEAKS = {
    "B200": 2250e12,
    "H200": 989.4e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989.4e12,
    "A100": 312e12,
}
"""Dense bf16 FLOP/s by NVIDIA's data sheets; the first whose name is a part of the GPU's."""

TARGETS = {"H200": 27_000, "H100": 23_000}
"""Images/s of the WideResNet to reach, likewise."""

LEAST_RESIDENT = 10.0
MOST_OVERHEAD = 1.01
CLASSES = 100
PROFILED_STEPS = 10
PASSES_OF_A_STEP = 3
"""A backward pass computes twice what the forward pass does."""

REHEARSED = False
SMALL = {"REHEARSED": True}
FAST: Mapping[str, Any] = {"precision": "bf16", "channels_last": True, "compile": "default"}
"""Options that make ours fast."""


@dataclass(frozen=True)
class Work:
    """What is trained, and for how long.

    Args:
        model: The network's name.
        pixels: Height and width of an image.
        batch: Images of a step.
        steps: Of a timed pass, after which the device is waited for.
        rounds: Timed passes, after one that is not timed.
        fast: Options that make ours fast.
        workers: Loader processes of the guide's way on several GPUs, and threads of ours.
        accelerator: Trains.
    """

    model: str
    pixels: int
    batch: int
    steps: int
    rounds: int
    fast: Mapping[str, Any]
    workers: int = 8
    accelerator: str = "cuda"

    @property
    def samples(self) -> int:
        """Images of a pass."""
        return self.steps * self.batch

    @property
    def cpus(self) -> int:
        """Threads of the rank."""
        return min(self.workers, len(os.sched_getaffinity(0)))

    def images(self) -> Dataset:
        """Return the images of a pass."""
        return random_images(self.samples, pixels=self.pixels, classes=CLASSES, test_samples=CLASSES)

    def rates(self, epoch: Callable[[], object]) -> list[float]:
        """Return images/s of each pass, after one in which libraries load and choose."""
        epoch()
        return [self.samples / seconds_of(epoch) for _ in range(self.rounds)]


def seconds_of(work: Callable[[], object]) -> float:
    """Return the wall time of a piece of work, which waits for the device."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rows(part: str) -> list[Row]:
    """Return the table of a part; without a GPU one line that says so."""
    if not torch.cuda.is_available() and not REHEARSED:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        return [Row(part, f"no GPU: torch {torch.__version__} sees none (CUDA_VISIBLE_DEVICES={visible})")]
    return list(PARTS[part]())


def work_of(model: str, pixels: int, batch: int, steps: int, rounds: int) -> Work:
    """Return what is trained; in a rehearsal two steps of small images."""
    if not REHEARSED:
        return Work(model, pixels, batch, steps, rounds, FAST)
    small = "transformer-1M" if model.startswith("transformer") else "digits_cnn"
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    return Work(small, 8, 8, 2, 2, {**FAST, "compile": "no"}, workers=1, accelerator=accelerator)


def apart(way: Callable[..., T], *arguments: object) -> T:
    """Measure in a process of its own: neither its memory nor its choice of algorithms is another's."""
    # of a process that has imported torch (ten seconds on a slow CPU) and holds nothing of the GPU
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.bench_gpu"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(way, *arguments).result()


# --- parts --------------------------------------------------------------------------------------------


def wide_resnet() -> Iterator[Row]:
    """Compare ours with the guide's ways, then give its share of the peak, and where the rest goes."""
    work = work_of("wide_resnet", 32, batch=256, steps=100, rounds=5)
    what = "gpu: WideResNet, images/s"
    rates, shares = apart(ours, work, {**work.fast, **CROPS}, True)
    least = of_this_gpu(work, TARGETS)
    yield Row(
        f"{what}, ours: bf16, channels_last, compile, resident, batch {work.batch}",
        show(rates, digits=0),
        n=len(rates),
        target=f"at least {least:,.0f}" if least else "",
        met=median(rates) >= (least or 0.0),
    )
    for kind, share in shares.items():
        yield Row(f"gpu: WideResNet, a step of ours: {kind}", f"{share:.1%}", n=1)
    what += ", ours against the guide's way on"
    several = f"{what} several GPUs: fp16, batch {work.batch}, {work.workers} workers"
    yield apart_row(several, rates, apart(guide, work, True))
    slow = replace(work, batch=min(32, work.batch))
    yield apart_row(f"{what} one GPU: fp32, batch 32, no workers", rates, apart(guide, slow, False))
    yield from share_rows("WideResNet", work, rates, apart(product_rates, work))


def loop() -> Iterator[Row]:
    """Compare wall times: the host runs ahead of the GPU, and what does not fit behind its work shows."""
    work = work_of("wide_resnet", 32, batch=256, steps=100, rounds=10)
    milliseconds = each(apart(loops_in_turn, work), lambda seconds: 1e3 * seconds / work.steps)
    what = f"gpu: a step of our loop, against a bare loop: WideResNet, bf16, compile, batch {work.batch}"
    most = None if REHEARSED else MOST_OVERHEAD
    yield compare(what, milliseconds, "ms", digits=3, ratio_digits=4, most=most)


def loader() -> Iterator[Row]:
    """Compare loaders, in CIFAR's shape with crop and flip."""
    work = work_of("wide_resnet", 32, batch=256, steps=200, rounds=5)
    rates = each(apart(loaders_in_turn, work), lambda seconds: work.samples / seconds)
    what = f"gpu: resident loader, against torchvision with {work.workers} workers, images/s"
    yield compare(what, rates, digits=0, ratio_digits=1, least=None if REHEARSED else LEAST_RESIDENT)


def with_and_without_options(
    what: str, model: str, pixels: int, steps: int, changed: Mapping[str, Any]
) -> Iterator[Row]:
    """Compare ours with all that makes it fast and ours in TF32 with no other option."""
    work = work_of(model, pixels, batch=256, steps=steps, rounds=7)
    plain = {"precision": "tf32" if work.accelerator == "cuda" else "fp32"}
    (rates, _), (slow, _) = (apart(ours, work, options) for options in ({**work.fast, **changed}, plain))
    title = f"gpu: {what}, images/s, ours with all options against TF32 alone, batch {work.batch}"
    yield apart_row(title, rates, slow)
    yield from share_rows(what, work, rates)


PARTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "gpu-wide-resnet": wide_resnet,
    "gpu-loop": loop,
    "gpu-loader": loader,
    "gpu-resnet18": partial(with_and_without_options, "ResNet-18, 224 pixels", "resnet18", 224, 10, {}),
    "gpu-transformer": partial(
        with_and_without_options,
        "transformer-100M, 32 pixels",
        "transformer-100M",
        32,
        20,
        {"channels_last": False},
    ),
}


# --- ways, each for a process of its own ---------------------------------------------------------------


def ours(
    work: Work, options: Mapping[str, Any], profiled: bool = False
) -> tuple[list[float], dict[str, float]]:
    """Return images/s of train.py's loop with these options and, if profiled, shares of a step's time."""
    settings = {"model": work.model, "batch_size_per_device": work.batch, **options}
    with one_rank(work.accelerator, work.cpus) as device:
        training = training_of(settings, work.images(), device)
        rates = work.rates(epochs_of(training))

        def some_steps() -> None:
            training.steps, training.args.steps = 0, PROFILED_STEPS
            train_epoch(training, 0)

        return rates, profiled_shares(some_steps) if profiled and device.type == "cuda" else {}


def guide(work: Work, several_gpus: bool) -> list[float]:
    """Return images/s of the guide's own loop: as on one GPU, or as on several, with all of its options."""
    workers = work.workers if several_gpus else 0
    loader = host_loader(work.images(), work.batch, workers=workers, pinned=work.accelerator == "cuda")
    with one_rank(work.accelerator) as device:
        # nothing here holds DDP, which must be gone before its process group
        return work.rates(guides_loop(work, loader, several_gpus, device))


def guides_loop(
    work: Work, loader: DataLoader[Any], several_gpus: bool, device: torch.device
) -> Callable[[], None]:
    """Return an epoch: plain SGD in one process, or DDP, momentum and fp16 with a scaler."""
    network = build(work.model, torch.Size((3, work.pixels, work.pixels)), CLASSES).to(device)
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

    return epoch


def loops_in_turn(work: Work) -> Pair:
    """Time passes of our loop and of a bare one: the same compiled network, optimizer and batches."""
    settings = {"model": work.model, "batch_size_per_device": work.batch, **work.fast}
    with one_rank(work.accelerator, work.cpus) as device:
        training = training_of(settings, work.images(), device)
        epoch, bare = epochs_of(training), bare_loop(training)
        interleave(epoch, bare, rounds=1)
        return interleave(epoch, bare, work.rounds, time.perf_counter)


def loaders_in_turn(work: Work) -> Pair:
    """Time passes of the resident loader and of torchvision's, nothing trained: crop and flip."""
    settings = {"model": "linear", "batch_size_per_device": work.batch, **CROPS}
    images = work.images()
    with one_rank(work.accelerator, work.cpus) as device:
        resident = loader_epochs(training_of(settings, images, device))
        pinned = device.type == "cuda"
        host = host_epoch(host_loader(images, work.batch, workers=work.workers, pinned=pinned), device)
        interleave(resident, host, rounds=1)
        return interleave(resident, host, work.rounds, time.perf_counter)


def product_rates(work: Work) -> list[float]:
    """Return FLOP/s of a product of two large bf16 matrices, of each round."""
    side, products = (8192, 20) if work.accelerator == "cuda" else (256, 2)
    with one_rank(work.accelerator) as device:
        one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))

        def multiply() -> None:
            for _ in range(products):
                torch.mm(one, other)
            wait_for(device)

        multiply()
        return [products * 2 * side**3 / seconds_of(multiply) for _ in range(work.rounds)]


# --- rows ---------------------------------------------------------------------------------------------


def apart_row(what: str, rates: Sequence[float], reference: Sequence[float]) -> Row:
    """Return a line with the ratio of the medians: each was measured in a process of its own, not in turn."""
    ratio = f"{median(rates) / median(reference):.2f}"
    return Row(what, show(rates, digits=0), show(reference, digits=0), ratio, len(rates))


def share_rows(what: str, work: Work, rates: Sequence[float], product: Sequence[float] = ()) -> Iterator[Row]:
    """Give the share of the bf16 peak that a training's products reach: the data sheet's, and a product's."""
    flops = image_flops(work.model, work.pixels)
    rate = median(rates) * flops
    reached = f"{rate / 1e12:,.0f} TFLOP/s ({flops / 1e9:.2f} GFLOP an image)"
    if peak := of_this_gpu(work, PEAKS):
        sheet, share = f"{peak / 1e12:,.0f} TFLOP/s", f"{rate / peak:.3f}"
        yield Row(f"gpu: {what}, share of the data sheet's bf16 peak", reached, sheet, share, len(rates))
    if product:
        large, share = show([each / 1e12 for each in product], "TFLOP/s", 0), f"{rate / median(product):.3f}"
        yield Row(
            f"gpu: {what}, share of what a large bf16 product reaches", reached, large, share, len(product)
        )


def image_flops(model: str, pixels: int) -> float:
    """Return the FLOP of a training step for one image: products and convolutions only."""
    network = build(model, torch.Size((3, pixels, pixels)), CLASSES).to("meta").eval()
    # with gradients: without them torch runs a transformer layer as one operator, which is not counted
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, pixels, pixels, device="meta"))
    return float(PASSES_OF_A_STEP * counter.get_total_flops())


def of_this_gpu(work: Work, table: Mapping[str, float]) -> float | None:
    """Return the table's value for this GPU, if it has one."""
    # in a process of its own, too: this one holds nothing of the GPU
    gpu = apart(torch.cuda.get_device_name, 0) if work.accelerator == "cuda" else ""
    return next((value for name, value in table.items() if name in gpu), None)
