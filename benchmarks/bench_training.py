"""Our training against the tutorials' own loops: same network, batch and images, one CPU thread.

- Princeton's multi-GPU guide: MNIST, per-sample loader, batch 64, Adadelta, fp32; in fp32 and in bf16.
- Clemson's DistributedDataParallel tutorial: ResNet-18, CIFAR-10, batch 32, Adam, fp32; in bf16.

The tutorials' loops are written here from their descriptions, under DistributedDataParallel as there. The
images are stand-ins that can be learned, in the true files' shapes; MNIST's also in its file format.

    python benchmarks/run.py training
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import MNIST

from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.data.loaders import channel_statistics
from scalewise.builtin.loop import evaluate
from scalewise.builtin.models.builders import build
from scalewise.builtin.trainer import Trainer
from scalewise.ranks.distributed.identity import Identity

from .measure import Row, interleave, rate_rows, spread
from .one_rank import epochs_of, measuring, one_rank, project_task
from .stand_in_images import PilImages, per_sample, stand_in, write_mnist

LEAST_FP32, LEAST_BF16, LEAST_RESNET = 1.15, 1.6, 1.5
MNIST_BATCH, MNIST_STEPS, MNIST_ROUNDS = 64, 10, 20
RESNET_BATCH, RESNET_STEPS, RESNET_ROUNDS = 32, 2, 12
# an epoch of 200 steps; the time of one of 938 would be spent nine times
EPOCH_SAMPLES, TEST_SAMPLES = 12_800, 10_000
SEEDS = (1, 2, 3)
LOG_INTERVAL = 10
SMALL = {
    "MNIST_ROUNDS": 1, "RESNET_ROUNDS": 1, "EPOCH_SAMPLES": 640, "TEST_SAMPLES": 1_000, "SEEDS": (1,),
}  # fmt: skip

# what changes neither the network, nor the batch, nor the precision
LAYOUT = {"channels_last": True, "gradient_as_bucket_view": True}
MNIST_OPTIONS = LAYOUT | {
    "model": "mnist_cnn",
    "global_batch_size": MNIST_BATCH,
    "optimizer": "adadelta",
    "learning_rate": 1.0,
}
RESNET_OPTIONS = LAYOUT | {
    "model": "resnet18",
    "global_batch_size": RESNET_BATCH,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "precision": "bf16",
}


class TutorialNet(nn.Module):
    """The network of PyTorch's MNIST example, which Princeton's guide trains."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, 1, 28, 28] -> logarithms of probabilities, [batch, 10]."""
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        x = self.dropout1(functional.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(functional.relu(self.fc1(x)))
        return functional.log_softmax(self.fc2(x), dim=1)


def rows() -> list[Row]:
    """Times of steps in turn, in one process on one core; then the accuracies of whole epochs."""
    with one_rank() as (identity, device):
        return mnist_rows(identity, device) + resnet_rows(identity, device)


def mnist_rows(identity: Identity, device: torch.device) -> list[Row]:
    """Princeton's loop, against ours in fp32 and in bf16."""
    with tempfile.TemporaryDirectory() as folder:
        write_mnist(Path(folder), stand_in((1, 28, 28), EPOCH_SAMPLES, TEST_SAMPLES))
        train, test = MNIST(folder, train=True), MNIST(folder, train=False)
    # ours from what torchvision read
    dataset = Dataset(train.data.unsqueeze(1), train.targets, test.data.unsqueeze(1), test.targets, 10)
    train.transform = test.transform = per_sample(*channel_statistics(dataset.train_images))

    def tutorial(samples: int) -> tuple[nn.Module, Callable[[], None]]:
        network = TutorialNet()
        loader = DataLoader(Subset(train, range(samples)), batch_size=MNIST_BATCH, shuffle=True)
        optimizer = optim.Adadelta(network.parameters(), lr=1.0)
        return network, tutorial_epoch(network, loader, optimizer, functional.nll_loss)

    def ours(samples: int, precision: str, seed: int = 1) -> Trainer:
        part = Dataset(
            dataset.train_images[:samples],
            dataset.train_labels[:samples],
            dataset.test_images,
            dataset.test_labels,
            10,
        )
        return project_task(MNIST_OPTIONS | {"precision": precision, "seed": seed}, part, identity, device)

    table = []
    samples = MNIST_BATCH * MNIST_STEPS
    for precision, least in (("fp32", LEAST_FP32), ("bf16", LEAST_BF16)):
        trainer, (_, other) = ours(samples, precision), tutorial(samples)
        mine, hooks = epochs_of(trainer), partial(measuring, trainer.measured)
        interleave(mine, other, rounds=2, around_ours=hooks)
        pairs = interleave(mine, other, MNIST_ROUNDS, around_ours=hooks)
        what = f"training: MNIST CNN, batch {MNIST_BATCH}, {precision} against the tutorial's fp32, images/s"
        table += rate_rows(what, pairs, samples, samples, least, digits=2)

    accuracies: dict[str, list[float]] = {"tutorial": [], "fp32": [], "bf16": []}
    for seed in SEEDS:
        torch.manual_seed(seed)
        network, epoch = tutorial(EPOCH_SAMPLES)
        epoch()
        accuracies["tutorial"].append(accuracy(network, DataLoader(test, batch_size=1000)))
        for precision in ("fp32", "bf16"):
            trainer = ours(EPOCH_SAMPLES, precision, seed)
            with measuring(trainer.measured):
                epochs_of(trainer)()
            accuracies[precision].append(evaluate(trainer)[1])
    return table + [accuracy_row(precision, accuracies) for precision in ("fp32", "bf16")]


def accuracy_row(precision: str, accuracies: Mapping[str, list[float]]) -> Row:
    """Ours is met where it is no worse than the tutorial's by more than seeds differ."""
    mine, other = (spread([100 * value for value in accuracies[key]]) for key in (precision, "tutorial"))
    allowed = max(mine.most - mine.least, other.most - other.least)
    return Row(
        what=f"training: accuracy after an epoch of {EPOCH_SAMPLES:,} MNIST stand-ins, {precision}",
        ours=mine.show("%"),
        reference=other.show("%"),
        n=len(SEEDS),
        target="no worse, within the seeds' spread",
        met=mine.median >= other.median - allowed,
    )


def resnet_rows(identity: Identity, device: torch.device) -> list[Row]:
    """Clemson's loop, against ours in bf16 with channels last; both with the stem for 32 pixels."""
    samples = RESNET_BATCH * RESNET_STEPS
    dataset = stand_in((3, 32, 32), samples, 10)
    transform = per_sample(*channel_statistics(dataset.train_images))
    images = PilImages(dataset.train_images, dataset.train_labels, transform)
    network = build("resnet18", dataset.train_images.shape[1:], 10)
    loader = DataLoader(images, batch_size=RESNET_BATCH, shuffle=True)
    optimizer = optim.Adam(network.parameters(), lr=1e-3)
    other = tutorial_epoch(network, loader, optimizer, functional.cross_entropy)
    trainer = project_task(RESNET_OPTIONS, dataset, identity, device)
    mine, hooks = epochs_of(trainer), partial(measuring, trainer.measured)
    interleave(mine, other, rounds=1, around_ours=hooks)
    pairs = interleave(mine, other, RESNET_ROUNDS, around_ours=hooks)
    what = f"training: ResNet-18, CIFAR-10, batch {RESNET_BATCH}, bf16 against the tutorial's fp32, images/s"
    return rate_rows(what, pairs, samples, samples, LEAST_RESNET, digits=2)


def tutorial_epoch(
    network: nn.Module,
    loader: Iterable[Any],
    optimizer: optim.Optimizer,
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[], None]:
    """The tutorials' epoch; they name the device, which is the CPU here, for every batch."""
    model = DistributedDataParallel(network)
    device = torch.device("cpu")

    def epoch() -> None:
        model.train()
        for index, (data, target) in enumerate(loader):
            images, labels = data.to(device), target.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            if index % LOG_INTERVAL == 0:
                loss.item()  # printed there

    return epoch


@torch.no_grad()
def accuracy(network: nn.Module, loader: Iterable[Any]) -> float:
    """The fraction of test images that is right."""
    network.eval()
    right = [(network(images).argmax(1) == labels).float() for images, labels in loader]
    return float(torch.cat(right).mean())
