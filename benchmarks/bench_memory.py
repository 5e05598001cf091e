"""What gradient_as_bucket_view saves, as a study's options.csv says it, against the theory.

The theory counts copies of the parameters: themselves (1), their gradients (1), the copy of them in DDP's
buckets (1, or 0 where gradients are views of the buckets), and the optimizer's states (SGD 0, momentum 1,
Adam 2). Of 3, 4 and 5 copies the views save one: 33, 25 and 20 %. It leaves out activations and what a
layer's backward pass holds for a moment, which this network's depth, images of one pixel and a batch of 2
keep small.

    python benchmarks/run.py memory
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from tests.startup.sitecustomize import for_children

from .measure import Row

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 0.05
REPEATS = 3

COPIES = {"sgd": 3, "momentum": 4, "adam": 5}
"""Copies of the parameters that a DDP rank holds without the views, by experiment."""

SITE = """\
accelerator: cpu
devices_per_node: 1
cpus_per_node: 1
"""

STUDY = """\
defaults:
  dataset: synthetic-1x1x1-2classes-8samples
  model: planted_narrow_transformer
  scaling: weak
  batch_size_per_device: 2
  epochs: 2
  warmup_steps: 2
  devices: [1]
  repeats: {repeats}
  learning_rate: 1.0e-4
  sweep:
    gradient_as_bucket_view: [false, true]
experiments:
  sgd: {{title: SGD without momentum, optimizer: sgd, momentum: 0.0}}
  momentum: {{title: SGD with momentum, optimizer: sgd, momentum: 0.9}}
  adam: {{title: Adam, optimizer: adam}}
"""


def rows(repeats: int = REPEATS) -> list[Row]:
    """Two rows for each optimizer: the share that is saved, and the bytes in copies of the parameters."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.yaml").write_text(STUDY.format(repeats=repeats), encoding="utf-8")
        (folder / "site.yaml").write_text(SITE, encoding="utf-8")
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "workflow" / "Snakefile")]
        command += ["--configfile", "study.yaml", "--config", "site=site.yaml", "--cores", "1"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | for_children() | {"CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return [row for name in COPIES for row in _rows(name, options(folder / "results" / name))]


def options(results: Path) -> pd.Series:
    """The row of an experiment's options.csv: gradient_as_bucket_view true instead of false."""
    table = pd.read_csv(results / "options.csv")
    assert len(table) == 1, f"{results} has {len(table)} comparisons of options"
    return table.iloc[0]


def _rows(name: str, gain: pd.Series) -> list[Row]:
    what = f"memory: gradient_as_bucket_view on against off, {name}"
    copies = COPIES[name]
    share = (1 - gain["peak_memory_ratio"]) * copies
    before, after = (gain[f"{side}peak_memory_bytes"] / 1e6 for side in ("reference_", ""))
    return [
        Row(
            what=f"{what}: share saved of {before:,.0f} MB, {after:,.0f} MB left",
            ours=f"{share / copies:.1%}",
            reference=f"theory: {1 / copies:.1%}",
            ratio=f"{share:.3f}",
            n=int(gain["n"]),
            target=f"within {TOLERANCE:.0%}",
            met=abs(share - 1) <= TOLERANCE,
        ),
        Row(
            what=f"{what}: {before - after:,.0f} MB saved, in copies of the parameters",
            ours=f"{gain['saved_parameter_copies']:.3f}",
            reference="theory: 1",
            ratio=f"{gain['saved_parameter_copies']:.3f}",
            n=int(gain["n"]),
            target=f"within {TOLERANCE:.0%}",
            met=abs(gain["saved_parameter_copies"] - 1) <= TOLERANCE,
        ),
    ]
