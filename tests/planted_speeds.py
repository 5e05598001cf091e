"""A training whose step takes a time that is planted by its number of devices, so that the answer is known.

    python planted_speeds.py BATCH_SIZE 1=1.0 2=0.95 4=0.6

The step of two devices takes 1 / 0.95 of the time that it takes on one.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEP_SECONDS = 0.1
"""Far above what the exchange of a busy machine takes."""
STEPS_OF_AN_EPOCH = 40


def main() -> None:
    devices, batch_size = int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
    efficiency = dict(pair.split("=") for pair in sys.argv[2:])
    step_seconds = STEP_SECONDS / float(efficiency[str(devices)])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples = batch_size * devices * STEPS_OF_AN_EPOCH
    data = TensorDataset(torch.randn(samples, 8), torch.randn(samples, 2))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        ends = time.perf_counter() + step_seconds
        for inputs, wanted in DataLoader(data, batch_size, sampler=sampler):
            optimizer.zero_grad()
            (model(inputs) - wanted).square().mean().backward()
            # what the step itself took is part of the planted time, and no step makes up for another
            time.sleep(max(ends - time.perf_counter(), 0.0))
            optimizer.step()
            ends = time.perf_counter() + step_seconds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
