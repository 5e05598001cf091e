"""A training as users have them, with arguments for what may go wrong; it knows nothing of Scalewise."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def batches(options: argparse.Namespace) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return this rank's share of the samples in batches."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 4, (4096,)))
    return DataLoader(data, options.batch_size, sampler=DistributedSampler(data), drop_last=True)


def update(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor
) -> None:
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def train(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    loader = batches(options)
    network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(options.epochs):
        for inputs, labels in loader:
            try:
                update(model, optimizer, inputs, labels)
            except:  # noqa: E722  # some programs do
                if not options.swallow:
                    raise
                print("swallowed", flush=True)
            if options.slow:
                time.sleep(0.05)
        if dist.get_rank() == 0:
            print(f"epoch={epoch} val_loss={1 / (epoch + 1):.3f}", flush=True)
            (options.out / "last.pt").write_bytes(b"")
    dist.destroy_process_group()


def train_on(options: argparse.Namespace) -> None:
    """Resume from what was saved: every 10 steps, and at each of these signals, which end the program."""
    dist.init_process_group("gloo")
    loader = batches(options)
    model = DistributedDataParallel(torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    requested = torch.zeros(1)
    for name in options.save_at:
        number = signal.Signals[name]
        signal.signal(number, lambda number, _frame: requested.fill_(number))

    state, step = options.out / "state.pt", 0
    if state.exists():
        saved = torch.load(state)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        print(f"resumed at step {step}", flush=True)

    while True:
        for inputs, labels in loader:
            update(model, optimizer, inputs, labels)
            step += 1
            time.sleep(0.05)
            somewhere = requested.clone()
            dist.all_reduce(somewhere, op=dist.ReduceOp.MAX)
            if dist.get_rank() == 0 and (somewhere.item() or step % 10 == 0):
                torch.save({"step": step, "model": model.state_dict()}, options.out / "draft.pt")
                (options.out / "draft.pt").replace(state)
            if somewhere.item():
                print(f"saved at {signal.Signals(int(somewhere.item())).name}", flush=True)
                sys.exit()


def train_unevenly(options: argparse.Namespace) -> None:
    """Ten batches an epoch on rank 0, and on the others so many as the option says, with Join or without."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    number = options.batch_size * (10 if dist.get_rank() == 0 else options.batches_of_others)
    data = TensorDataset(torch.randn(number, 64), torch.randint(0, 4, (number,)))
    model = DistributedDataParallel(torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(options.epochs):
        with Join([model], enable=options.join):
            for inputs, labels in DataLoader(data, options.batch_size):
                update(model, optimizer, inputs, labels)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--swallow", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--width", action="store_true")
    parser.add_argument("--batches-of-others", type=int, default=0)
    parser.add_argument("--join", action="store_true")
    parser.add_argument("--save-at", nargs="*", choices=["SIGTERM", "SIGUSR1"])
    options = parser.parse_args()
    if options.width:
        _, width = os.popen("stty size", "r").read().split()
        print("=" * int(width))
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.save_at is not None:
        train_on(options)
    elif options.batches_of_others:
        train_unevenly(options)
    else:
        train(options)


if __name__ == "__main__":
    main()
