"""Small trainings, each with a habit of public scripts; arguments: the habit, and a folder for its marks.

Each step takes a known time, most of it asleep. The file marks.csv gets a line after each step: the time by
the program's own clock, and whether something else than training took part of the step.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

BATCH, SECONDS = 8, 0.02
MARKS = Path(sys.argv[2]) / "marks.csv"


def mark(beside: bool = False) -> None:
    """Note the end of a step."""
    with MARKS.open("a", encoding="utf-8") as file:
        print(time.perf_counter(), int(beside), sep=",", file=file)


class Net(nn.Module):
    """A layer, whose forward pass takes a while."""

    def __init__(self, seconds: float = SECONDS) -> None:
        super().__init__()
        self.layer, self.seconds = nn.Linear(16, 16), seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        output: torch.Tensor = self.layer(inputs).mean(1, keepdim=True)
        return output


def samples(number: int) -> TensorDataset:
    return TensorDataset(torch.randn(number, 16), torch.randn(number, 1))


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([each for module in modules for each in module.parameters()], lr=0.01)


def loss_of(network: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = network(inputs).square().mean()
    return loss


def update(network: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss_of(network, inputs).backward()
    optimizer.step()


class SlowSamples(Dataset[Any]):
    """Samples of which a batch takes half as long as a step."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(SECONDS / BATCH / 2)
        return torch.randn(16), index


# --- where batches come from


def thread() -> None:
    """Fetch batches in a thread, ahead of the training."""
    batches: queue.Queue[Any] = queue.Queue(4)

    def fill() -> None:
        for batch in DataLoader(SlowSamples(), BATCH):
            batches.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    network = Net()
    optimizer = sgd(network)
    while True:
        inputs, _ = batches.get()
        update(network, optimizer, inputs)
        mark()


# --- what a step is


def gradients() -> None:
    """Add gradients by hand over four batches."""
    network = Net(SECONDS / 4)
    optimizer = sgd(network)
    parameters = list(network.parameters())
    for number, (inputs, _) in enumerate(DataLoader(samples(100_000), BATCH // 4), 1):
        found = torch.autograd.grad(loss_of(network, inputs), parameters)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            mark()


def phases() -> None:
    """Train by Adam, then by LBFGS with several passes a step."""
    network, inputs = Net(), torch.randn(BATCH, 16)
    adam = torch.optim.Adam(network.parameters())
    options: dict[str, Any] = {"max_iter": 5, "tolerance_grad": 0, "tolerance_change": 0}
    lbfgs = torch.optim.LBFGS(network.parameters(), 0.01, **options)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = loss_of(network, inputs)
        loss.backward()
        return loss

    for _ in range(30):
        update(network, adam, inputs)
        mark()
    while True:
        lbfgs.step(closure)
        mark()


def folds() -> None:
    """Train three models of one size in turn, each by an optimizer of its own."""
    networks = [Net() for _ in range(3)]
    optimizers = [sgd(network) for network in networks]
    while True:
        for network, optimizer in zip(networks, optimizers, strict=True):
            network.train()
            for number, (inputs, _) in enumerate(DataLoader(samples(8 * 20), BATCH)):
                update(network, optimizer, inputs)
                mark(beside=number == 0)
            network.eval()
            with torch.no_grad():
                for inputs, _ in DataLoader(samples(8 * 5), BATCH):
                    network(inputs)


def head() -> None:
    """Train a head for long; the optimizer of the whole network is there, and waits."""
    body, network = nn.Linear(16, 16), Net()
    first, whole = sgd(network), sgd(body, network)
    for epoch in itertools.count():
        for number, (inputs, _) in enumerate(DataLoader(samples(8 * 10), BATCH)):
            update(network, first if epoch < 1000 else whole, body(inputs))
            mark(beside=number == 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
