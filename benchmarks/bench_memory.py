"""Peak memory with gradient_as_bucket_view and without, for three optimizers, against the theory.

The theory counts, in multiples of the parameters' bytes: the parameters (1), their gradients (1), the copy of
them in DDP's buckets (1, or 0 where gradients are views of the buckets), and the optimizer's states (SGD 0,
momentum 1, Adam 2). It leaves out activations and what one layer's backward pass holds for a moment, which a
network of many equal layers and a small batch keep below 1 %.

Measured is the peak of a process's resident memory, less what it held before there was a network. Each case
has a process of its own: a peak does not go down, and memory once freed is used again.

    python benchmarks/run.py memory
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import psutil
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from scalewise.plan.config.settings import Settings
from scalewise.training.measure.memory import peak_memory
from scalewise.training.optim import build_optimizer
from scalewise.training.parallel_model import ParallelModel

from .measure import Row, spread
from .one_rank import one_rank

TOLERANCE = 0.05
WIDTH, LAYERS, BATCH, STEPS = 1024, 96, 8, 3
ROUNDS = 3
# name -> options, states in multiples of the parameters
OPTIMIZERS: dict[str, tuple[dict[str, Any], int]] = {
    "SGD": ({"optimizer": "sgd", "momentum": 0.0}, 0),
    "momentum": ({"optimizer": "sgd", "momentum": 0.9}, 1),
    "Adam": ({"optimizer": "adam", "learning_rate": 1e-3}, 2),
}


def rows() -> list[Row]:
    """Each optimizer without the view and with it."""
    table = []
    parameters = WIDTH * (WIDTH + 1) * LAYERS / 1e6
    for name, (options, states) in OPTIMIZERS.items():
        for view in (False, True):
            measured = spread([_in_a_process(options, view) for _ in range(ROUNDS)])
            theory = 2 + (not view) + states
            table.append(
                Row(
                    what=f"memory: peak / {parameters:.0f} M parameters, {name}, "
                    f"gradient_as_bucket_view {'on' if view else 'off'}",
                    ours=measured.show(digits=3),
                    reference=f"theory: {theory}",
                    ratio=f"{measured.median / theory:.3f}",
                    n=ROUNDS,
                    target=f"within {TOLERANCE:.0%}",
                    met=abs(measured.median / theory - 1) <= TOLERANCE,
                )
            )
    return table


def _in_a_process(options: dict[str, Any], view: bool) -> float:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(peak, options, view).result()


def peak(options: dict[str, Any], view: bool) -> float:
    """Peak resident memory of some steps, less what was there before, in multiples of the parameters."""
    settings = Settings.model_validate(
        {"dataset": "digits", "model": "linear", "gradient_as_bucket_view": view} | options
    )
    with one_rank() as (_, device):
        # what libraries load and allocate once is none of the training's
        _train(_perceptron(width=8, layers=2), 8, settings, device)
        before = psutil.Process().memory_info().rss
        network = _perceptron(WIDTH, LAYERS)
        size = sum(parameter.nbytes for parameter in network.parameters())
        _train(network, WIDTH, settings, device)
        return (peak_memory(device)[0] - before) / size


def _perceptron(width: int, layers: int) -> nn.Module:
    stages = [[nn.Linear(width, width), nn.ReLU(inplace=True)] for _ in range(layers)]
    return nn.Sequential(*(module for stage in stages for module in stage))


def _train(network: nn.Module, width: int, settings: Settings, device: torch.device) -> None:
    parallel_model = ParallelModel.build(network, [], settings, device)
    optimizer = build_optimizer(settings, network.parameters(), world_size=1)
    images, labels = torch.randn(BATCH, width), torch.randint(width, (BATCH,))
    for _ in range(STEPS):
        cross_entropy(parallel_model.compiled(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
