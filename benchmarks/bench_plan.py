"""What planning costs: ``snakemake -n`` of studies of up to 1,000 runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .measure import Row, Spread, spread

ROOT = Path(__file__).resolve().parents[1]
RATIO = 1.25
"""Planning may take this much of the bare workflow's time."""

# runs -> repetitions of the measurement
SIZES = {10: 3, 100: 5, 1_000: 3}
JUDGED = (100,)
SMALL = {"SIZES": {10: 1}}
REPEATS = 5
DEVICES = (1, 2)
# the same files for each run, and nothing of ours
BARE = """
rule all:
    input:
        [f"results/bench/runs/{run}/record.json" for run in range(config["runs"])],


rule dataset:
    output:
        "resources/datasets/digits/dataset.safetensors",
    shell:
        "touch {output}"


rule train:
    input:
        "resources/datasets/digits/dataset.safetensors",
    output:
        "results/{experiment}/runs/{run}/record.json",
        "results/{experiment}/runs/{run}/epochs.csv",
        "results/{experiment}/runs/{run}/ranks.csv",
    log:
        "results/{experiment}/runs/{run}/train.log",
    shell:
        "touch {output}"
"""


@dataclass(frozen=True)
class Planning:
    """One ``snakemake -n``.

    Args:
        cpu_seconds: user and system, of the process and those it waited for.
        peak_megabytes: resident, of the largest of them.
    """

    cpu_seconds: float
    peak_megabytes: float


def rows() -> list[Row]:
    """Each size, quiet and with every job printed."""
    table = []
    for runs, n in SIZES.items():
        quiet, printed, bare = [], [], []
        # in turn, so that a machine that drifts drifts for all
        for _ in range(n):
            quiet.append(plan_ours(runs, ["--quiet", "all"]))
            printed.append(plan_ours(runs))
            bare.append(plan_bare(runs))
        ratio = ratio_of(printed, bare)
        target = f"at most {RATIO} times" if runs in JUDGED else ""
        met = not target or ratio.median <= RATIO
        table += [
            Row(f"plan: snakemake -n of {runs:,} runs, quiet", show(quiet), n),
            Row(
                f"plan: snakemake -n of {runs:,} runs, every job printed",
                show(printed),
                n,
                reference=show(bare),
                ratio=ratio.show(),
                target=target,
                met=met,
            ),
        ]
    return table


def ratio_of(ours: Sequence[Planning], reference: Sequence[Planning]) -> Spread:
    """Return the ratios of the CPU seconds, pair by pair."""
    return spread([a.cpu_seconds / b.cpu_seconds for a, b in zip(ours, reference, strict=True)])


def show(plannings: Sequence[Planning]) -> str:
    """CPU seconds and peak memory, each with its spread."""
    seconds = spread([planning.cpu_seconds for planning in plannings])
    megabytes = spread([planning.peak_megabytes for planning in plannings])
    return f"{seconds.show('s CPU')}, {megabytes.show('MB', 0)}"


def plan_ours(runs: int, options: Sequence[str] = ()) -> Planning:
    """Plan a study of so many runs, as a user does, in a folder where nothing has been made yet.

    Args:
        runs: All runs of the study.
        options: Further options of Snakemake.
    """
    # the machine is stated, so that the plan is the same whatever runs this
    site = {"accelerator": "cpu", "devices_per_node": max(DEVICES), "cpus_per_node": max(DEVICES)}
    files = {"site.yaml": yaml.safe_dump(site), "experiments.yaml": yaml.safe_dump(study(runs))}
    snakefile = ROOT / "workflow" / "Snakefile"
    return dry_run(files, [*options, "-s", str(snakefile), "--configfile", "experiments.yaml"])


def plan_bare(runs: int) -> Planning:
    """Plan as many jobs of a workflow that does nothing else: what Snakemake itself costs."""
    return dry_run({"Snakefile": BARE}, ["--config", f"runs={runs}"])


def dry_run(files: Mapping[str, str], options: Sequence[str]) -> Planning:
    """``snakemake -n`` in a folder that holds these files alone.

    Raises:
        RuntimeError: it failed; says what Snakemake said.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        command = [str(Path(sys.executable).with_name("snakemake")), "-n", *options]
        said = folder / "stderr.txt"
        with said.open("wb") as stderr:
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=stderr)
            # The peak of a child starts at its parent's, so this process must import nothing large.
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{said.read_text(encoding='utf-8')}")
    # Linux counts in KiB, macOS in bytes
    peak_bytes = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Planning(used.ru_utime + used.ru_stime, peak_bytes / 1e6)


def study(runs: int) -> dict[str, Any]:
    """A configuration of so many runs, a multiple of 10: learning rates x seeds x devices x repeats."""
    series = runs // (len(DEVICES) * REPEATS)
    seeds = min(series, 10)
    sweep = {
        "learning_rate": [round(0.001 * (rate + 1), 3) for rate in range(series // seeds)],
        "seed": [100 * (seed + 1) for seed in range(seeds)],
    }
    experiment = {
        "dataset": "digits",
        "model": "digits_cnn",
        "global_batch_size": 256,
        "devices": list(DEVICES),
        "repeats": REPEATS,
        "sweep": sweep,
    }
    return {"site": "site.yaml", "experiments": {"bench": experiment}}
