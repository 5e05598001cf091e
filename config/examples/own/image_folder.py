"""Train a custom model on a folder of images, with DistributedDataParallel.

torchrun --standalone --nproc-per-node=2 image_folder.py --data data/shapes --batch-size 32
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2


class PatchMixer(nn.Module):
    """Mix patches and channels in turn, then classify their mean."""

    def __init__(self, image_size: int, classes: int, patch: int = 4, width: int = 64) -> None:
        super().__init__()
        patches = (image_size // patch) ** 2
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.between_patches = nn.Sequential(nn.LayerNorm(patches), nn.Linear(patches, patches), nn.GELU())
        self.between_channels = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of [batch, classes] for images of [batch, 3, height, width]."""
        x = self.embed(images).flatten(2)
        x = x + self.between_patches(x)
        x = x.transpose(1, 2)
        x = x + self.between_channels(x)
        return self.head(x.mean(1))


def main() -> None:
    """Train for all epochs, and validate and save after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/shapes"), help="train/ and val/ by class")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=32, help="images a step of each device")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/shapes"))
    args = parser.parse_args()

    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    size = (args.image_size, args.image_size)
    to_tensor = v2.Compose([v2.Resize(size), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    train_data = ImageFolder(args.data / "train", to_tensor)
    val_data = ImageFolder(args.data / "val", to_tensor)
    sampler = DistributedSampler(train_data, seed=args.seed, drop_last=True)
    loader = DataLoader(
        train_data, args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=True
    )
    val_loader = DataLoader(Subset(val_data, range(rank, len(val_data), world_size)), batch_size=128)

    model = PatchMixer(args.image_size, len(train_data.classes)).to(device)
    model = DistributedDataParallel(model, device_ids=[device] if use_cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    args.out.mkdir(parents=True, exist_ok=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        counts = torch.zeros(2, device=device)
        with torch.no_grad():
            for images, labels in val_loader:
                right = model.module(images.to(device)).argmax(1) == labels.to(device)
                counts += torch.stack([right.sum(), torch.tensor(len(labels), device=device)])
        dist.all_reduce(counts)
        if rank == 0:
            accuracy = float(counts[0] / counts[1])
            print(f"epoch {epoch} loss={loss.item():.4f} val_accuracy={accuracy:.3f}", flush=True)
            torch.save(model.module.state_dict(), args.out / "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
