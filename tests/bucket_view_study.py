"""Trainings whose memory is their parameters', each with gradient_as_bucket_view and without it.

A rank holds copies of the parameters: themselves (1), their gradients (1), the copy of them in DDP's buckets
(1, or 0 where gradients are views of the buckets), and the optimizer's states (SGD 0, momentum 1, Adam 2).
Activations, and what a layer's backward pass holds for a moment, are small here: the network is deep, its
images have one pixel, and its batch has 2.
"""

from pathlib import Path

import pandas as pd

TOLERANCE = 0.05

COPIES = {"sgd": 3, "momentum": 4, "adam": 5}
"""Copies of the parameters that a DDP rank holds without the views, by experiment."""

STUDY = """\
defaults:
  dataset: synthetic-1x1x1-2classes-8samples
  model: planted_narrow_transformer
  scaling: weak
  batch_size_per_device: 2
  epochs: 3
  warmup_steps: 2
  devices: [2]
  repeats: 1
  learning_rate: 1.0e-4
  sweep:
    gradient_as_bucket_view: [false, true]
experiments:
  sgd: {title: SGD without momentum, optimizer: sgd, momentum: 0.0}
  momentum: {title: SGD with momentum, optimizer: sgd, momentum: 0.9}
  adam: {title: Adam, optimizer: adam}
"""


def compared_options(results: Path) -> pd.Series:
    """Return the row of an experiment's options.csv: gradient_as_bucket_view true instead of false."""
    table = pd.read_csv(results / "options.csv")
    assert len(table) == 1, f"{results} has {len(table)} comparisons of options"
    return table.iloc[0]
