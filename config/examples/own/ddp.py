"""Train a small CNN on handwritten digits with DistributedDataParallel.

torchrun --standalone --nproc-per-node=2 ddp.py --batch-size 32 --lr 0.1 --epochs 10 --out runs/digits
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset


def digits(seed: int) -> tuple[Dataset, Dataset]:
    """Load scikit-learn's 1,797 digits of 8x8 pixels, one in five of them for validation."""
    images, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
    data = TensorDataset(images, torch.from_numpy(labels).long())
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).tolist()
    split = len(data) // 5
    return Subset(data, order[split:]), Subset(data, order[:split])


def build_model(width: int) -> nn.Module:
    """Stack two convolutions and a classifier on 8x8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Mean loss and accuracy over the validation data of all ranks."""
    model.eval()
    sums = torch.zeros(3, device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        sums[0] += F.cross_entropy(logits, labels, reduction="sum")
        sums[1] += (logits.argmax(1) == labels).sum()
        sums[2] += len(labels)
    dist.all_reduce(sums)
    loss, correct, count = sums.tolist()
    return loss / count, correct / count


def main() -> None:
    """Train for all epochs, and validate and save after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="images a step of each device")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/digits"))
    args = parser.parse_args()

    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    train_data, val_data = digits(args.seed)
    sampler = DistributedSampler(train_data, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(
        train_data,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        pin_memory=use_cuda,
        drop_last=True,
    )
    # no padding by a sampler: every image of the validation data counts once
    own_part = Subset(val_data, range(rank, len(val_data), world_size))
    val_loader = DataLoader(own_part, batch_size=256)

    model = build_model(args.width).to(device)
    model = DistributedDataParallel(model, device_ids=[device] if use_cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    args.out.mkdir(parents=True, exist_ok=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        val_loss, accuracy = evaluate(model.module, val_loader, device)
        if rank == 0:
            print(
                f"epoch {epoch} loss={loss.item():.4f} val_loss={val_loss:.4f} accuracy={accuracy:.3f}",
                flush=True,
            )
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, args.out / "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
