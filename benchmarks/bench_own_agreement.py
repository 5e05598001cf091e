"""A training by the built-in loop, measured as a user's program too: the same steps, by both ways.

The probe that measures programs is loaded into the ranks of a built-in training. Its records, put together
as those of a program, must give the throughput that the loop's own summary has.

    python benchmarks/run.py own-agreement
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scalewise.ranks.program.environment import write_startup
from scalewise.ranks.results.figures import throughput
from scalewise.ranks.results.merge import join_starts, measured_steps
from scalewise.ranks.results.rank_record import RECORD, read_records
from scalewise.ranks.results.samples import Planned
from scalewise.records import Measurements, read_summary

from .measure import Row, spread

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 0.01
REPEATS = 3
WARMUP_STEPS = 10
BATCH = 64

SITE = """\
accelerator: cpu
devices_per_node: 2
cpus_per_node: 2
"""

# one epoch of whole batches: the loop's windows hold its first and last step, a program's leave them out
STUDY = f"""\
experiments:
  agreement:
    dataset: synthetic-1x28x28-10classes-8064samples
    model: mnist_cnn
    scaling: weak
    batch_size_per_device: {BATCH}
    epochs: 1
    warmup_steps: {WARMUP_STEPS}
    devices: [1, 2]
    repeats: {REPEATS}
    predict: false
"""


def rows() -> list[Row]:
    """A row for each device count: throughput by the probe over that by the loop."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
        (folder / "site.yaml").write_text(SITE, encoding="utf-8")
        return [_row(folder, devices) for devices in (1, 2)]


def _row(folder: Path, devices: int) -> Row:
    pairs = [_both_ways(folder, devices, f"d{devices}.r{repeat}") for repeat in range(1, REPEATS + 1)]
    ratio = spread([probe / loop for probe, loop in pairs])
    return Row(
        what=f"own program: throughput by the probe and by the built-in loop, the same steps, {devices} CPU "
        f"process{'es' if devices > 1 else ''}",
        ours=spread([probe for probe, _ in pairs]).show("samples/s", 0),
        reference=spread([loop for _, loop in pairs]).show("samples/s", 0),
        ratio=ratio.show(digits=4),
        n=REPEATS,
        target=f"within {TOLERANCE:.0%}, each of them",
        met=max(abs(ratio.least - 1), abs(ratio.most - 1)) <= TOLERANCE,
    )


def _both_ways(folder: Path, devices: int, run: str) -> tuple[float, float]:
    """Samples a second of one run, by the probe and by the loop."""
    probed = folder / "probe" / run
    write_startup(probed / "startup")
    spec = probed / "spec.json"
    spec.write_text(json.dumps({"folder": str(probed), "warmup_steps": WARMUP_STEPS}), encoding="utf-8")
    summary = f"results/agreement/runs/{run}/summary.json"
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "workflow" / "Snakefile")]
    command += ["--config", "site=site.yaml", "--cores", "2", summary, "--configfile", "study.yaml"]
    environment = {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(probed / "startup"),
        "SCALEWISE_PROBE": str(spec),
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # the preparation of the data and the passes after the training make no optimizer steps
    records = read_records(probed, RECORD)
    assert len(records) == devices, [record.rank for record in records]
    planned = Planned("rank.py", devices, BATCH * devices, 1, True, frozenset(), "cpu")
    steps = measured_steps(join_starts([records], [WARMUP_STEPS]), planned)
    seen = throughput(steps.windows)
    measured: Measurements | None = read_summary(folder / "results" / "agreement" / "runs" / run).measurements
    assert measured is not None
    assert seen is not None
    assert measured.throughput_samples_per_second is not None
    return seen, measured.throughput_samples_per_second
