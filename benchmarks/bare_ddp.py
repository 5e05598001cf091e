"""The shipped study's training as a plain script, the way PyTorch's DDP tutorial writes it; records nothing.

python benchmarks/bare_ddp.py --batch-size 256 ... dataset.safetensors
torchrun --standalone --nproc-per-node=2 benchmarks/bare_ddp.py --batch-size 128 ... dataset.safetensors
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

Batch = tuple[torch.Tensor, ...]


def network() -> nn.Module:
    """The layers of digits_cnn."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        if outputs == 64:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def loaders(
    path: Path, batch_size: int, seed: int, distributed: bool
) -> tuple[DataLoader[Batch], DataLoader[Batch], DistributedSampler[Batch] | None]:
    """Batches to train on and to evaluate on, and what shuffles the first among ranks."""
    arrays = load_file(path)
    pixels = arrays["train_images"] / 255
    mean, std = pixels.mean(), pixels.std()
    train = TensorDataset((pixels - mean) / std, arrays["train_labels"])
    test = TensorDataset((arrays["test_images"] / 255 - mean) / std, arrays["test_labels"])
    sampler: DistributedSampler[Batch] | None = None
    test_sampler: DistributedSampler[Batch] | None = None
    if distributed:
        sampler = DistributedSampler(train, seed=seed)
        test_sampler = DistributedSampler(test, shuffle=False)
    return (
        DataLoader(train, batch_size, shuffle=sampler is None, sampler=sampler),
        DataLoader(test, batch_size=1000, sampler=test_sampler),
        sampler,
    )


def main() -> None:
    """Train, evaluate after each epoch, and print what was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, required=True, help="of one device")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--momentum", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--gradient-as-bucket-view", action="store_true")
    parser.add_argument("dataset", type=Path)
    options = parser.parse_args()

    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0
    torch.manual_seed(options.seed)

    train_loader, test_loader, sampler = loaders(
        options.dataset, options.batch_size, options.seed, distributed
    )
    model = network()
    if distributed:
        model = DistributedDataParallel(model, gradient_as_bucket_view=options.gradient_as_bucket_view)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=options.momentum)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=options.learning_rate,
        total_steps=options.epochs * len(train_loader),
        cycle_momentum=False,
    )
    criterion = nn.CrossEntropyLoss()

    steps = 0
    for epoch in range(options.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            steps += 1
        model.eval()
        right = torch.zeros(2)
        with torch.no_grad():
            for images, labels in test_loader:
                right += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
        if distributed:
            dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch + 1}: accuracy {right[0] / right[1]:.4f}, {steps} steps", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
