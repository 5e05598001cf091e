"""The resident loader against torchvision's per-sample path, on files in MNIST's own format."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import MNIST

from scalewise.training.distributed import claim_cpus, identify
from scalewise.training.loaders import ResidentLoader, channel_statistics
from scalewise.training.sampling import EpochSampler

from .bench_loop import ONE_RANK
from .measure import Row, interleave, spread

LEAST = 50.0
ROUNDS = 15
BATCH = 64
SAMPLES = 60_000
OUR_EPOCHS = 10
# A tenth of an epoch takes long enough. That it stays in the caches more than a whole epoch would
# favours the reference.
REFERENCE_SAMPLES = 6_000


def rows() -> list[Row]:
    """Batches of both in turn, on one core."""
    claim_cpus("cpu", identify(os.environ | ONE_RANK, "spawn"), cpus_per_device=1)
    with tempfile.TemporaryDirectory() as folder:
        write_mnist(Path(folder))
        plain = MNIST(folder, train=True)
    images, labels = plain.data.unsqueeze(1), plain.targets
    mean, std = channel_statistics(images)
    loader = ResidentLoader(images, labels, mean, std, torch.device("cpu"))
    sampler = EpochSampler(SAMPLES, BATCH, rank=0, world_size=1, seed=1)
    plain.transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((mean / 255).tolist(), (std / 255).tolist())]
    )
    reference_loader = DataLoader(Subset(plain, range(REFERENCE_SAMPLES)), batch_size=BATCH, shuffle=True)
    torch.testing.assert_close(loader.load(torch.tensor([7]))[0][0], plain[7][0])

    def ours() -> None:
        for epoch in range(OUR_EPOCHS):
            sampler.set_epoch(epoch)
            for _, indices in sampler:
                loader.load(indices)

    def reference() -> None:
        for _batch in reference_loader:
            pass

    interleave(ours, reference, rounds=1)
    pairs = interleave(ours, reference, ROUNDS)

    # judged by CPU time, as the loop is
    compared = []
    for clock in ("cpu", "wall"):
        our_rates = [SAMPLES * OUR_EPOCHS / getattr(mine, clock) for mine, _ in pairs]
        rates = [REFERENCE_SAMPLES / getattr(other, clock) for _, other in pairs]
        ratio = spread([mine / other for mine, other in zip(our_rates, rates, strict=True)])
        judged = clock == "cpu"
        compared.append(
            Row(
                what=f"loader: MNIST samples per second of {clock} time, batch {BATCH}",
                ours=spread(our_rates).show(digits=0),
                reference=spread(rates).show(digits=0),
                ratio=ratio.show(digits=1),
                n=ROUNDS,
                target=f"at least {LEAST:.0f}" if judged else "",
                met=not judged or ratio.median >= LEAST,
            )
        )
    return compared


def write_mnist(root: Path) -> None:
    """Random images and labels where torchvision looks for MNIST, as MNIST stores them."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(1)
    for split, samples in (("train", SAMPLES), ("t10k", 10_000)):
        _write_idx(
            raw / f"{split}-images-idx3-ubyte", random.integers(0, 256, (samples, 28, 28), dtype=np.uint8)
        )
        _write_idx(raw / f"{split}-labels-idx1-ubyte", random.integers(0, 10, samples, dtype=np.uint8))


def _write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Two zero bytes, 8 for unsigned bytes, the number of dimensions; each dimension, big-endian; data."""
    path.write_bytes(struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())
