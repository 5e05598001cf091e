"""Small trainings of all kinds that users write. None of them knows that it is measured.

The probe is asked to end each after 12 steps; those that run on to their own end make fewer.
"""

import atexit
import copy
import itertools
import multiprocessing
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

ENOUGH_STEPS = 16
"""More than the probe lets happen."""


CASES: dict[str, tuple[Callable[[], None], int]] = {}
"""Trainings, and their numbers of ranks."""


def case(ranks: int = 1) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(train: Callable[[], None]) -> Callable[[], None]:
        CASES[train.__name__] = train, ranks
        return train

    return add


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def samples(number: int = 80) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(number, 6, generator=generator), torch.randint(0, 3, (number,), generator=generator)
    )


def batch(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 6), torch.randint(0, 3, (size,))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: Any, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    print(repr(loss.item()), flush=True)


def folder() -> Path:
    return Path(os.environ["CASE_FOLDER"])


@case()
def plain_loop() -> None:
    """Ten batches of 8 an epoch, then an evaluation of known length with a second loader."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(samples(), batch_size=8, shuffle=True)
    tested = DataLoader(samples(16), batch_size=16)
    for _ in range(ENOUGH_STEPS):
        model.train()
        for inputs, labels in loader:
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(repr(loss.item()), flush=True)
        model.eval()
        with torch.no_grad():
            for inputs, _labels in tested:
                model(inputs)
                time.sleep(0.05)


def scaled(optimizer_of: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """Train with a scaler that refuses every third step, the first one too."""
    model = network()
    optimizer = optimizer_of(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(ENOUGH_STEPS):
        inputs, labels = batch()
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels) * (float("inf") if number % 3 == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(repr(loss.item()), flush=True)


@case()
def skipped_steps() -> None:
    scaled(sgd)


@case()
def skipped_steps_of_a_fused_optimizer() -> None:
    """A scaler always calls it, and it skips the update by itself."""
    scaled(lambda model: torch.optim.SGD(model.parameters(), lr=0.1, fused=True))


@case()
def lost_weights() -> None:
    """A step that is far too long makes weights and losses NaN; the program adds its losses up in place."""
    model = network()
    optimizer = sgd(model)
    for number in range(ENOUGH_STEPS):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = float("inf") if number == 5 else 0.1
        inputs, labels = batch()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        total += 1000.0


def report_compilation() -> None:
    found = {name: dict(counters[name]) for name in ("stats", "recompiles", "recompile_limit")}
    print("graphs", found["stats"].get("unique_graphs"), found["recompiles"], found["recompile_limit"])


@case()
def compiled_step() -> None:
    model = network()
    optimizer = sgd(model)

    @torch.compile(backend="eager")
    def whole(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    atexit.register(report_compilation)
    for inputs, labels in DataLoader(samples(96), batch_size=8):
        print(repr(whole(inputs, labels).item()), flush=True)


def ahead(loader: Any) -> Iterator[Any]:
    """Fetch a batch before the one in front of it is trained on, as accelerate's loader."""
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


@case()
def batches_of_a_step_at_once() -> None:
    """As Hugging Face's Trainer: all micro-batches of a step are fetched before the first is trained on."""
    model = network()
    optimizer = sgd(model)
    for _ in range(ENOUGH_STEPS):
        batches = ahead(DataLoader(samples(96), batch_size=8))
        while micro_batches := list(itertools.islice(batches, 3)):
            for inputs, labels in micro_batches:
                cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.inference_mode():
            for inputs, _labels in ahead(DataLoader(samples(16), batch_size=8)):
                model(inputs)


@case()
def an_optimizer_for_each_parameter() -> None:
    """Updates within the backward pass, so that gradients need not be kept."""
    model = network()
    optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {
        parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()
    }

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for inputs, labels in DataLoader(samples(320), batch_size=8):
        cross_entropy(model(inputs), labels).backward()


@case()
def without_a_loader() -> None:
    """As nanoGPT: batches from a function, three passes a step, an evaluation after every fourth step."""
    model = network()
    optimizer = sgd(model)
    for number in range(ENOUGH_STEPS):
        if number and number % 4 == 0:
            model.eval()
            with torch.no_grad():
                model(batch()[0])
            time.sleep(0.05)
            torch.save({"model": model, "optimizer": optimizer.state_dict()}, folder() / "checkpoint.pt")
            model.train()
        for _ in range(3):
            inputs, labels = batch(5)
            (cross_entropy(model(inputs), labels) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


@case()
def batches_from_a_thread() -> None:
    """A thread fetches them, ahead of the training."""
    batches: queue.Queue[Any] = queue.Queue(4)

    def fill() -> None:
        for batch in DataLoader(samples(8 * ENOUGH_STEPS), batch_size=8):
            batches.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    model = network()
    optimizer = sgd(model)
    for _ in range(ENOUGH_STEPS):
        step(model, optimizer, *batches.get())


@case()
def gradients_by_hand() -> None:
    """Added up over two batches, without a backward pass."""
    model = network()
    optimizer = sgd(model)
    parameters = list(model.parameters())
    for number, (inputs, labels) in enumerate(DataLoader(samples(8 * ENOUGH_STEPS), batch_size=4), 1):
        found = torch.autograd.grad(cross_entropy(model(inputs), labels), parameters)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


@case()
def evaluation_without_eval() -> None:
    model = network()
    smoothed = copy.deepcopy(model)
    optimizer = sgd(model)
    for number in range(ENOUGH_STEPS):
        step(model, optimizer, *batch())
        with torch.no_grad():
            smoothed(batch()[0])
            if number == 5:
                model(batch()[0])
                time.sleep(0.05)


class Endless(DataLoader[Any]):
    """As YOLOv5's InfiniteDataLoader and timm's MultiEpochsDataLoader: one iterator for all passes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for _ in range(len(self)):
            yield next(self.iterator)


class Repeated:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


@case()
def endless_loaders() -> None:
    """Three batches an epoch, then a validation that takes its two batches outside of no_grad."""
    model = network()
    optimizer = sgd(model)
    loader = Endless(samples(24), batch_size=8)
    validated = Endless(samples(8), batch_size=4)
    for _ in range(ENOUGH_STEPS):
        for inputs, labels in loader:
            step(model, optimizer, inputs, labels)
        for inputs, _labels in validated:
            with torch.no_grad():
                model(inputs)
                time.sleep(0.02)


def some_steps(number: int = 6) -> None:
    """Train on objects that are gone at the end; there is a handler for that."""
    atexit.register(lambda: (folder() / "handler").write_text("ran"))
    model = network()
    optimizer = sgd(model)
    for inputs, labels in DataLoader(samples(8 * number), batch_size=8):
        step(model, optimizer, inputs, labels)


@case()
def its_own_end() -> None:
    """After fewer steps than are compared with the plan."""
    some_steps(2)


@case()
def a_process_of_its_own() -> None:
    """A training in a process that multiprocessing forks, which runs no handlers of atexit."""
    process = multiprocessing.get_context("fork").Process(target=some_steps)
    process.start()
    process.join()
    print(process.pid, process.exitcode, flush=True)


@case()
def its_own_error() -> None:
    def own_hook(kind: type[BaseException], error: BaseException, _traceback: object) -> None:
        print("own hook:", kind.__name__, error, flush=True)

    sys.excepthook = own_hook
    model = network()
    optimizer = sgd(model)
    for number in range(ENOUGH_STEPS):
        if number == 4:
            raise ValueError("of the program")
        step(model, optimizer, *batch())


@case()
def no_torch_optimizer() -> None:
    model = network()
    for _ in range(60):
        inputs, labels = batch()
        cross_entropy(model(inputs), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None


class Stubborn:
    """A batch that raises where anybody but its program looks at it."""

    def __init__(self, entries: list[Any]) -> None:
        self.of_the_program = torch.stack([inputs for inputs, _label in entries])

    @property
    def dtype(self) -> Any:
        raise RuntimeError("do not look")


@case()
def a_batch_that_raises() -> None:
    model = network()
    optimizer = sgd(model)
    for found in DataLoader(samples(48), batch_size=8, collate_fn=Stubborn):
        model(found.of_the_program).sum().backward()
        optimizer.step()


def join() -> int:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder()}/meeting",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    return dist.get_rank()


@case(ranks=2)
def data_parallel() -> None:
    """Rank 0 alone evaluates; the end is one that needs all ranks."""
    rank = join()
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    torch.manual_seed(rank)
    try:
        for number in range(ENOUGH_STEPS):
            step(model, optimizer, *batch(4))
            if rank == 0 and number == 6:
                model.module.eval()
                time.sleep(0.05)
                model.module.train()
    finally:
        dist.barrier()
        if rank == 0:
            torch.save(model.module.state_dict(), folder() / "model.pt")
        dist.destroy_process_group()
        print("cleaned up", flush=True)


@case(ranks=2)
def exchange_by_hand() -> None:
    """Gradients are added up without any wrapper, and no rank leaves the group at the end.

    Each rank shuffles all samples; without data of its own a rank would read a half.
    """
    rank = join()
    model = network()
    optimizer = sgd(model)
    torch.manual_seed(rank)
    for inputs, labels in DataLoader(samples(8 * ENOUGH_STEPS), batch_size=8, shuffle=True):
        cross_entropy(model(inputs), labels).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


@case(ranks=2)
def copies() -> None:
    """Two processes that know nothing of each other."""
    model = network()
    optimizer = sgd(model)
    for inputs, labels in DataLoader(samples(), batch_size=8):
        step(model, optimizer, inputs, labels)


def train_shards(rank: int, divide: Callable[[nn.Module], Any]) -> None:
    model = divide(network())
    optimizer = sgd(model)
    torch.manual_seed(rank)
    for _ in range(ENOUGH_STEPS):
        step(model, optimizer, *batch(4))


@case(ranks=2)
def divided_model() -> None:
    rank = join()
    train_shards(rank, lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (2,))))


@case(ranks=4)
def replicas_of_divided_models() -> None:
    """Two replicas of two shards each, as in HSDP."""
    rank = join()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    train_shards(rank, lambda model: fully_shard(model, mesh=mesh))


@case(ranks=2)
def divided_among_itself() -> None:
    """A mesh of one rank each: two trainings of their own."""
    rank = join()
    group: Any = [dist.new_group([each]) for each in range(2)][rank]
    train_shards(rank, lambda model: fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu")))


@case(ranks=2)
def tensor_parallel() -> None:
    join()
    model = network()
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = sgd(model)
    torch.manual_seed(0)
    for _ in range(ENOUGH_STEPS):
        step(model, optimizer, *batch(4))


@case(ranks=2)
def pipeline() -> None:
    """The model's halves on two ranks: both see the same samples."""
    rank = join()
    torch.manual_seed(0)
    half = nn.Linear(6, 6) if rank == 0 else nn.Linear(6, 3)
    schedule = ScheduleGPipe(PipelineStage(half, rank, 2, torch.device("cpu")), 2, loss_fn=cross_entropy)
    optimizer = sgd(half)
    for _ in range(ENOUGH_STEPS):
        inputs, labels = batch(4)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=labels)
        optimizer.step()


@case()
def on_a_gpu() -> None:
    """Steps of the GPU, of which the host does not wait for one; an evaluation that needs 64 MB more."""
    model = network().cuda()
    optimizer = sgd(model)
    for number in range(ENOUGH_STEPS):
        inputs, labels = (tensor.cuda() for tensor in batch())
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        torch.cuda._sleep(10_000_000)
        optimizer.step()
        if number == 5:
            model.eval()
            torch.zeros(2**24, device="cuda")


@case()
def workers_of_each_epoch_on_a_gpu() -> None:
    """A loader forks its workers again in each epoch of four steps, after steps on the GPU."""
    model = network().cuda()
    optimizer = sgd(model)
    loader = DataLoader(samples(32), batch_size=8, num_workers=2)
    for _ in range(ENOUGH_STEPS):
        for inputs, labels in loader:
            step(model, optimizer, inputs.cuda(), labels.cuda())
