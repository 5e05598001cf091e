"""One training measured both ways: as the built-in training, and as a user's program.

Both use the same probe, once set by the training in its own process, once loaded into a script that trains
the same by the same loop and knows nothing of it. Both must count the same steps and samples, and have the
same throughput. The network waits for a second in each step and hardly computes: runs one after the other are
then nearly as fast on a machine that others use, too. These only slow a run: the fastest of each way count.

    python benchmarks/run.py own-agreement
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.startup.sitecustomize import for_children

from scalewise.builtin.data.preparation import prepare
from scalewise.records import Measurements, read_summary

from .measure import Row, spread

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 0.01
REPEATS = 3
DATASET = "synthetic-1x8x8-10classes-272samples"
MODEL = "planted_balanced"
WAYS = ("program", "built-in")

SITE = """\
accelerator: cpu
devices_per_node: 2
cpus_per_node: 2
"""

# two epochs with a smaller last batch: such steps are to be excluded in both
STUDY = f"""\
defaults:
  scaling: weak
  batch_size_per_device: 32
  warmup_steps: 3
  devices: [1, 2]
  repeats: {REPEATS}
experiments:
  built-in:
    dataset: {DATASET}
    model: {MODEL}
    epochs: 2
    predict: false
  program:
    program: {ROOT / "benchmarks" / "built_in_as_program.py"}
    arguments:
      - --model={MODEL}
      - --batch-size={{batch_size_per_device}}
      - --epochs=2
      - --seed={{seed}}
      - images.safetensors
"""


def rows() -> list[Row]:
    """A row for each device count: throughput as a program over that as the built-in training."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
        (folder / "site.yaml").write_text(SITE, encoding="utf-8")
        prepare(DATASET, folder / "images.safetensors")
        # run by run, so that the two of a pair meet the same machine
        for repeat in range(1, REPEATS + 1):
            train(folder, [f"results/{way}/runs/d{n}.r{repeat}/summary.json" for n in (1, 2) for way in WAYS])
        return [row(folder, devices) for devices in (1, 2)]


def train(folder: Path, summaries: list[str]) -> None:
    """Make some runs of the study, which has the machine's lock for one at a time."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "workflow" / "Snakefile")]
    command += ["--config", "site=site.yaml", "--cores", "2", *summaries, "--configfile", "study.yaml"]
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


def row(folder: Path, devices: int) -> Row:
    """Compare all repeats with so many devices."""
    pairs = []
    for repeat in range(1, REPEATS + 1):
        pair = [measured(folder / "results" / way / "runs" / f"d{devices}.r{repeat}") for way in WAYS]
        program, built_in = (counted(way) for way in pair)
        assert program == built_in, (program, built_in)
        pairs.append([way.throughput_samples_per_second or 0.0 for way in pair])
    ratio = spread([program / built_in for program, built_in in pairs])
    fastest = max(program for program, _ in pairs) / max(built_in for _, built_in in pairs)
    return Row(
        what=f"own-agreement: throughput as a user's program and as the built-in training, {devices} CPU "
        f"process{'es' if devices > 1 else ''}, ratio of the fastest {fastest:.4f}",
        ours=spread([program for program, _ in pairs]).show("samples/s", 2),
        reference=spread([built_in for _, built_in in pairs]).show("samples/s", 2),
        ratio=ratio.show(digits=4),
        n=REPEATS,
        target=f"fastest within {TOLERANCE:.0%}",
        met=abs(fastest - 1) <= TOLERANCE,
    )


def counted(measurements: Measurements) -> list[tuple[int, int, int]]:
    """First step, steps and samples of each measured window."""
    windows = (window for window in measurements.windows if not window.warmup)
    return [(window.first_step, window.steps, window.samples) for window in windows]


def measured(run: Path) -> Measurements:
    """The figures of a run."""
    measurements = read_summary(run).measurements
    assert measurements is not None
    return measurements
