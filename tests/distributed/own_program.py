"""A training as users have them, with arguments for what may go wrong; it knows nothing of Scalewise."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(rank: int, world_size: int, options: argparse.Namespace) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 4, (4096,)))
    # a sampler that was forgotten gives each rank the same batches
    ranks = (1, 0) if options.same else (None, None)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, *ranks)
    loader = DataLoader(data, options.batch_size, sampler=sampler, drop_last=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
    ddp = DistributedDataParallel(model)
    trained = model if options.apart else ddp
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(trained(inputs), labels)
            loss.backward()
            try:
                optimizer.step()
            except:  # some programs do
                if options.swallow:
                    print("swallowed", flush=True)
                    continue
                raise
            step += 1
            if options.slow:
                time.sleep(0.05)
            if options.fail_at == step and rank == world_size - 1:
                if options.fail == "raise":
                    raise ValueError("no more samples in shard 7")
                os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            print(f"epoch={epoch} val_loss={1 / (epoch + 1):.3f}", flush=True)
            (options.out / "last.pt").write_bytes(b"")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--same", action="store_true")
    parser.add_argument("--swallow", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--fail", default="raise")
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--width", action="store_true")
    options = parser.parse_args()
    if options.width:
        _, width = os.popen("stty size", "r").read().split()
        print("=" * int(width))
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.spawn:
        spawn(train, (options.spawn, options), nprocs=options.spawn)
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), options)


if __name__ == "__main__":
    main()
