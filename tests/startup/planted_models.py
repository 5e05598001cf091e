"""Models with which tests plant faults and loads, each by the function that builds it."""

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from scalewise.training.transformer import Architecture, Encoder


class Planted(nn.Module):
    """Linear layers, with something before each training pass.

    Args:
        image: [channels, height, width].
        sizes: Widths of the layers.
        before: Gets the number of passes with gradients so far, this one included.
    """

    def __init__(self, image: torch.Size, *sizes: int, before: Callable[[int], object]) -> None:
        super().__init__()
        widths = (image.numel(), *sizes)
        self.layers = nn.Sequential(*(nn.Linear(*pair) for pair in zip(widths, sizes, strict=False)))
        self.before = before
        self.passes = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += torch.is_grad_enabled()
            self.before(self.passes)
        logits: torch.Tensor = self.layers(images.flatten(1))
        return logits


# --- work that takes its time, whatever else the machine does: ranks that compute would slow each other


def unhurried(image: torch.Size, classes: int) -> nn.Module:
    """Wait more than it computes: a training without an end leaves the machine to others."""
    return Planted(image, classes, before=lambda _: time.sleep(0.02))


def late_on_rank_1(image: torch.Size, classes: int) -> nn.Module:
    seconds = 0.05 if os.environ["RANK"] == "1" else 0.0
    return Planted(image, classes, before=lambda _: time.sleep(seconds))


def communicating(image: torch.Size, classes: int) -> nn.Module:
    """5 MB of gradients for 1.5 s of work."""
    return Planted(image, 4000, 250, classes, before=lambda _: time.sleep(1.5))


# --- waiting for the test


def held_back(image: torch.Size, classes: int) -> nn.Module:
    """Train once the file held.back has gone from the study's folder."""
    return Planted(image, classes, before=lambda _: wait_for_leave())


def held_back_later(image: torch.Size, classes: int) -> nn.Module:
    """The same for runs that begin after another has finished."""
    finished = any(Path().glob("results/*/runs/*/record.json"))
    return Planted(image, classes, before=lambda _: wait_for_leave() if finished else None)


def wait_for_leave() -> None:
    while Path("held.back").exists():
        time.sleep(0.05)


# --- faults


def crashing(image: torch.Size, classes: int) -> nn.Module:
    raise ValueError("crashes at every start")


def raising_on_rank_1(image: torch.Size, classes: int) -> nn.Module:
    last = 5 if os.environ["RANK"] == "1" else math.inf
    return Planted(image, classes, before=lambda passes: fail() if passes > last else None)


def raising_on_signal(image: torch.Size, classes: int) -> nn.Module:
    """Unhurried, until SIGUSR2."""
    signal.signal(signal.SIGUSR2, fail)
    return unhurried(image, classes)


def fail(*_: object) -> None:
    raise ValueError("a fault on purpose")


class LostOnRank1(Planted):
    """Gives no numbers from a pass on, on one rank."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = super().forward(images)
        return logits * math.nan if self.passes > 12 and os.environ["RANK"] == "1" else logits


def lost_on_rank_1(image: torch.Size, classes: int) -> nn.Module:
    return LostOnRank1(image, classes, before=lambda _: None)


# --- counting


class Counting(Planted):
    """Writes each pass with its number of samples below ``COUNTED_IN``, a folder."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        path = Path(os.environ["COUNTED_IN"]) / f"seen{os.environ['RANK']}.csv"
        with path.open("a", encoding="utf-8") as file:
            print("train" if self.training else "test", len(images), sep=",", file=file)
        return super().forward(images)


def counting(image: torch.Size, classes: int) -> nn.Module:
    return Counting(image, classes, before=lambda _: None)


# --- interruptions


def drawing(image: torch.Size, classes: int) -> nn.Module:
    """What it draws and counts must survive: batch norm counts, dropout draws."""
    channels, height, width = image
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(8 * height * width, 96),
        nn.BatchNorm1d(96),
        nn.ReLU(),
        nn.Linear(96, classes),
    )


class Paced(nn.Module):
    """Takes longer for each training pass, by the seconds in ``PERIL_PAUSE``."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(float(os.environ.get("PERIL_PAUSE", "0")))
        logits: torch.Tensor = self.network(images)
        return logits


def perilous(image: torch.Size, classes: int) -> nn.Module:
    return Paced(drawing(image, classes))


def heavy(image: torch.Size, classes: int) -> nn.Module:
    """Of which a checkpoint takes long enough to be cut off in the middle."""
    return Planted(image, 4000, 3000, classes, before=lambda _: None)


# --- sizes


def narrow_transformer(image: torch.Size, classes: int) -> nn.Module:
    """A transformer whose memory is its parameters': 64 narrow layers, of which none is much of the whole.

    A layer's backward pass holds a gradient or two in addition to the buckets for a moment: 1 % of its 50
    million parameters.
    """
    return Encoder(Architecture((image[0], image[1], image[2]), classes, width=256, depth=64))


def narrow_transformer_for_a_gpu(image: torch.Size, classes: int) -> nn.Module:
    """Two hundred million parameters in 256 narrow layers; activations are small in comparison."""
    return Encoder(Architecture((image[0], image[1], image[2]), classes, width=256, depth=256))


def too_large(image: torch.Size, classes: int) -> nn.Module:
    """Take more memory of the GPU, where there is one, than any has: four tebibytes."""

    def take(_passes: int) -> None:
        if torch.cuda.is_available():
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")

    return Planted(image, classes, before=take)
