"""A training that resumes by itself from what it has saved in its folder; it knows nothing of Scalewise."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--save-at", choices=["10 steps", "SIGTERM", "SIGUSR1"], default="10 steps")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 4, (4096,)))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, options.batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    requested = torch.zeros(1)
    if options.save_at.startswith("SIG"):
        signal.signal(signal.Signals[options.save_at], lambda *_: requested.fill_(1))

    state, step = options.out / "state.pt", 0
    if state.exists():
        saved = torch.load(state)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        print(f"resumed at step {step}", flush=True)

    def save() -> None:
        if dist.get_rank() == 0:
            torch.save({"step": step, "model": model.state_dict()}, options.out / "draft.pt")
            (options.out / "draft.pt").replace(state)

    while True:
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            step += 1
            time.sleep(0.05)
            if options.save_at == "10 steps":
                if step % 10 == 0:
                    save()
                continue
            somewhere = requested.clone()
            dist.all_reduce(somewhere)
            if somewhere.item():
                save()
                sys.exit()


if __name__ == "__main__":
    main()
