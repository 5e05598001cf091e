"""One GPU, part by part: trainings of tutorials against ours, what keeps ours from the GPU's peak.

- ``wide-resnet``: the network of Sigma2's Olivia guide, in CIFAR-100's shape. The guide on one GPU: fp32,
  batch 32, a per-sample loader in the process itself; its way on several, here on one: fp16 with a scaler,
  batch 256, 8 loader processes; ours: bf16, channels_last, compiled, the images on the GPU, batch 256. All
  with crop and flip. Then the share of the GPU's peak, and where the time of a step goes.
- ``loop``: our training loop against a bare one, the same network.
- ``loader``: the resident loader against torchvision's, nothing trained.
- ``resnet18``: at 224 pixels, with ours of all options against ours of none.
- ``transformer``: transformer-100M, likewise.

Images are random, so nothing is said of accuracy. "fp32" of the guide is torch's default, which convolves in
TF32; without options ours are told TF32 for all products.

    python benchmarks/run.py gpu                       all parts
    python benchmarks/run.py gpu --only loop           one of them
    python benchmarks/run.py gpu --accelerator cpu     a rehearsal of the same code, made small
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from .gpu_training import (
    CROPS,
    Accelerator,
    Work,
    batches_alone,
    gpu_missing,
    gpu_name,
    guide,
    image_flops,
    loop_and_bare_loop,
    ours,
    product_rates,
)
from .measure import Row, rate_row, spread, step_row

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


@dataclass(frozen=True)
class Bench:
    """What all parts share.

    Args:
        accelerator: ``cpu`` rehearses.
        deadline: monotonic seconds at which whatever is still measured is cut off.
        gpu: its name.
    """

    accelerator: Accelerator
    deadline: float
    gpu: str

    def work(self, model: str, pixels: int, batch: int, steps: int, rounds: int) -> Work:
        """What is trained; two steps of small images on a CPU."""
        work = Work(model, pixels, batch, steps, rounds, accelerator=self.accelerator)
        if self.accelerator == "cuda":
            return work
        small = "transformer-1M" if model.startswith("transformer") else "digits_cnn"
        return replace(work, model=small, pixels=8, batch=8, steps=2, rounds=2, workers=1, compile=False)

    def measure(self, way: Callable[..., T], *arguments: object) -> T:
        """Measure in a process of its own: neither its memory nor its choice of algorithms is another's.

        Raises:
            TimeoutError: it was cut off at the deadline.
            RuntimeError: it failed; the message is the first line of why.
        """
        # of a process that has imported torch (ten seconds on a slow CPU) and asked for no GPU
        context = get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.gpu_training"])
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(sender, way, arguments))
        process.start()
        sender.close()
        try:
            left = max(self.deadline - time.monotonic(), 0.0)
            if not receiver.poll(left):
                raise TimeoutError("cut off: no time was left")
            value, problem = receiver.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"its process ended with {process.exitcode}") from None
        finally:
            process.kill()
            process.join()
        if problem:
            raise RuntimeError(problem)
        found: T = value
        return found

    def named(self, table: Mapping[str, float]) -> float | None:
        """The table's value for this GPU, if it has one."""
        return next((value for name, value in table.items() if name in self.gpu), None)


def _answer(sender: Connection, way: Callable[..., object], arguments: Sequence[object]) -> None:
    try:
        sender.send((way(*arguments), ""))
    except Exception as error:  # noqa: BLE001  told by the process that asked
        traceback.print_exc()
        sender.send((None, f"{type(error).__name__}: {error}".splitlines()[0]))


def rows(part: str, accelerator: Accelerator, deadline: float) -> list[Row]:
    """The table of a part; one line that says so if there is no GPU.

    Args:
        part: Key of ``PARTS``.
        accelerator: ``cpu`` rehearses, made small.
        deadline: monotonic seconds; what has not ended then is named.
    """
    if accelerator == "cuda" and (why := gpu_missing()):
        return [Row(what="gpu", ours=why, n=0)]
    bench = Bench(accelerator, deadline, "")
    table = []
    try:
        # in a process of its own, too: this one holds nothing of the GPU
        bench = replace(bench, gpu=bench.measure(gpu_name, accelerator))
        for row in PARTS[part](bench):
            table.append(row)
    except (TimeoutError, RuntimeError) as error:
        table.append(Row(what=f"gpu: {part}", ours=f"{error}", n=0, target="measured", met=False))
    return table


# --- parts --------------------------------------------------------------------------------------------


def wide_resnet(bench: Bench) -> Iterator[Row]:
    """The guide's ways, ours, their memory, the share of the peak, and where the rest goes."""
    work = bench.work("wide_resnet", 32, batch=256, steps=100, rounds=5)
    fast = work.fast | CROPS
    what = "gpu: WideResNet, images/s"
    # ours first: where the time ends, its figures are there
    plain, viewed = bench.measure(ours, work, [fast, fast | {"gradient_as_bucket_view": True}], True)
    yield training_row(
        f"{what}, ours: bf16, channels_last, compile, resident, batch {work.batch}",
        plain.rates,
        least=bench.named(TARGETS),
    )
    yield training_row(
        f"{what}, ours with gradient_as_bucket_view, against ours without", viewed.rates, plain.rates
    )
    yield Row(
        what=f"gpu: WideResNet, peak of ours, {plain.memory_kind}, gradient_as_bucket_view on, off",
        ours=f"{viewed.peak_bytes / 1e6:,.0f} MB",
        reference=f"{plain.peak_bytes / 1e6:,.0f} MB",
        ratio=f"{viewed.peak_bytes / plain.peak_bytes:.3f}",
        n=1,
    )
    for kind, share in plain.shares.items():
        yield Row(what=f"gpu: WideResNet, a step of ours: {kind}", ours=f"{share:.1%}", n=1)
    several = bench.measure(guide, work, True)
    yield training_row(
        f"{what}, ours against the guide's way on several GPUs: fp16, batch {work.batch}, "
        f"{work.workers} workers",
        *(plain.rates, several),
    )
    single = bench.measure(guide, replace(work, batch=min(32, work.batch)), False)
    yield training_row(
        f"{what}, ours against the guide's way on one GPU: fp32, batch 32, no workers", plain.rates, single
    )
    yield from share_rows(bench, "WideResNet", work, plain.rates, bench.measure(product_rates, work))


def loop(bench: Bench) -> Iterator[Row]:
    """Wall time: the host runs ahead of the GPU, and what of it does not fit behind the GPU's work shows."""
    work = bench.work("wide_resnet", 32, batch=256, steps=100, rounds=10)
    pairs = bench.measure(loop_and_bare_loop, work)
    yield step_row(
        f"gpu: a step of our loop, against a bare loop: WideResNet, bf16, compile, batch {work.batch}",
        *(pairs, "wall", work.steps),
        MOST_OVERHEAD if bench.accelerator == "cuda" else None,
        digits=3,
    )


def loader(bench: Bench) -> Iterator[Row]:
    """CIFAR's shape, crop and flip."""
    work = bench.work("wide_resnet", 32, batch=256, steps=200, rounds=5)
    pairs = bench.measure(batches_alone, work)
    yield rate_row(
        f"gpu: resident loader, against torchvision with {work.workers} workers, images/s",
        *(pairs, "wall", work.samples, work.samples),
        LEAST_RESIDENT if bench.accelerator == "cuda" else None,
    )


def resnet18(bench: Bench) -> Iterator[Row]:
    """ResNet-18 at ImageNet's size."""
    work = bench.work("resnet18", 224, batch=256, steps=10, rounds=7)
    yield from with_and_without_options(bench, "ResNet-18, 224 pixels", work, work.fast)


def transformer(bench: Bench) -> Iterator[Row]:
    """A vision transformer of 100 million parameters on 64 patches."""
    work = bench.work("transformer-100M", 32, batch=256, steps=20, rounds=7)
    fast = work.fast | {"channels_last": False}
    yield from with_and_without_options(bench, "transformer-100M, 32 pixels", work, fast)


def with_and_without_options(bench: Bench, what: str, work: Work, fast: Mapping[str, Any]) -> Iterator[Row]:
    """Ours with all that makes it fast, against ours in TF32 and no other option."""
    plain: dict[str, Any] = {"precision": "tf32" if bench.accelerator == "cuda" else "fp32"}
    quick, slow = bench.measure(ours, work, [dict(fast), plain])
    yield training_row(
        f"gpu: {what}, images/s, ours with all options against TF32 alone, batch {work.batch}",
        *(quick.rates, slow.rates),
    )
    yield from share_rows(bench, what, work, quick.rates)


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "wide-resnet": wide_resnet,
    "loop": loop,
    "loader": loader,
    "resnet18": resnet18,
    "transformer": transformer,
}


# --- rows ---------------------------------------------------------------------------------------------


def training_row(
    what: str, rates: Sequence[float], reference: Sequence[float] = (), least: float | None = None
) -> Row:
    """Images/s, and how many times the reference's median: each in a process of its own, not in turn.

    Args:
        what: was measured.
        rates: images/s of each pass.
        reference: the same of what it is held against; empty where the line stands by itself.
        least: median to reach; None only informs.
    """
    own, other = spread(rates), spread(reference) if reference else None
    return Row(
        what=what,
        ours=own.show(digits=0),
        reference="" if other is None else other.show(digits=0),
        ratio="" if other is None else f"{own.median / other.median:.2f}",
        n=len(rates),
        target="" if least is None else f"at least {least:,.0f}",
        met=least is None or own.median >= least,
    )


def share_rows(
    bench: Bench, what: str, work: Work, rates: Sequence[float], product: Sequence[float] = ()
) -> Iterator[Row]:
    """Share of the bf16 peak that the products of a training reach: the data sheet's, and a product's."""
    flops = image_flops(work.model, work.pixels)
    rate = spread(rates).median * flops
    made = f"{rate / 1e12:,.0f} TFLOP/s ({flops / 1e9:.2f} GFLOP an image)"
    if (peak := bench.named(PEAKS)) is not None:
        yield Row(
            what=f"gpu: {what}, share of the data sheet's bf16 peak",
            ours=made,
            reference=f"{peak / 1e12:,.0f} TFLOP/s",
            ratio=f"{rate / peak:.3f}",
            n=len(rates),
        )
    if product:
        reached = spread([each / 1e12 for each in product])
        yield Row(
            what=f"gpu: {what}, share of what a large bf16 product reaches",
            ours=made,
            reference=reached.show("TFLOP/s", 0),
            ratio=f"{rate / 1e12 / reached.median:.3f}",
            n=len(product),
        )
