"""A training whose step takes a time that is planted by its number of devices, so that the answer is known.

    python planted_speeds.py FOLDER BATCH_SIZE 1=1.0 2=0.95 4=0.6

The step of two devices takes 1 / 0.95 of the time that it takes on one, by the clock of its own process: what
else the machine does changes nothing. PLANTED_SPEED is a factor on all speeds. Runs of one point differ by a
few tenths of a per cent, by their names.
"""

import os
import sys
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

PROBE = "_scalewise_probe."
"""Begin of the names of the probe's modules in this process."""

STEP_SECONDS = 0.1
SPREAD = 0.003
STEPS_OF_AN_EPOCH = 40


class PlantedClock:
    """Takes the place of ``time.perf_counter`` in the probe, and advances by whole steps only."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._now = time.perf_counter()

    def __call__(self) -> float:
        return self._now

    def end_step(self) -> None:
        self._now += self._step_seconds


def main() -> None:
    folder, devices, batch_size = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"]), int(sys.argv[2])
    efficiency = dict(pair.split("=") for pair in sys.argv[3:])
    own = 1 + SPREAD * (zlib.crc32(folder.parent.name.encode()) / 2**32 - 0.5)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples = batch_size * devices * STEPS_OF_AN_EPOCH
    data = TensorDataset(torch.randn(samples, 8), torch.randn(samples, 2))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    speed = float(os.environ.get("PLANTED_SPEED", "1")) * float(efficiency[str(devices)])
    clock = PlantedClock(STEP_SECONDS / speed * own)
    for name, module in list(sys.modules.items()):
        if name.startswith(PROBE) and hasattr(module, "perf_counter"):
            # it has bound the function, so that no program changes its times
            vars(module)["perf_counter"] = clock
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for inputs, wanted in DataLoader(data, batch_size, sampler=sampler):
            optimizer.zero_grad()
            (model(inputs) - wanted).square().mean().backward()
            clock.end_step()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
