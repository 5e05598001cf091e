"""Images made at random, as tensors that need not fit into memory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch

from scalewise.config.catalog import synthetic_facts

CHUNK_BYTES = 64 << 20


def make_synthetic(dataset: str, folder: Path) -> dict[str, torch.Tensor]:
    """Make random images with a faint pattern for each class, so that a loss can fall; always the same.

    Args:
        dataset: A name that says shape, classes and samples.
        folder: Has room for the images, in files without a name that end with the tensors.
    """
    facts, classes = synthetic_facts(dataset)
    shape = (facts.channels, facts.height, facts.width)
    generator = np.random.default_rng(0)
    # a gain of each class on each pixel: half the range is noise, and up to half is the class's
    patterns = generator.integers(0, 128, (min(classes, 1024), *shape), dtype=np.uint8)
    step = max(CHUNK_BYTES // patterns[0].nbytes, 1)
    tensors = {}
    for split, samples in (("train", facts.train_samples), ("test", facts.test_samples)):
        labels = np.arange(samples, dtype=np.int64) % classes
        with TemporaryFile(dir=folder) as file:
            images = np.memmap(file, np.uint8, "w+", shape=(samples, *shape))
        for begin in range(0, samples, step):
            chunk = images[begin : begin + step]
            noise = generator.integers(0, 128, chunk.shape, dtype=np.uint8)
            np.add(noise, patterns[labels[begin : begin + step] % len(patterns)], out=chunk)
        tensors[f"{split}_images"] = torch.from_numpy(images)
        tensors[f"{split}_labels"] = torch.from_numpy(labels)
    return tensors
