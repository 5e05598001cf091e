"""What planning costs: ``snakemake -n`` of studies of up to 1,000 runs, and of a workflow of as many jobs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from .measure import ROOT, Row, compare, show

MOST = 1.25

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


Planning = tuple[float, float]
"""CPU seconds, user and system, of one ``snakemake -n`` and what it waited for; MB of the largest process."""


def rows() -> list[Row]:
    """Plan studies of each size, quiet and with every job printed."""
    table = []
    for runs, n in SIZES.items():
        quiet, printed, bare = [], [], []
        # in turn, so that a machine that drifts drifts for all
        for _ in range(n):
            quiet.append(plan_ours(runs, ["--quiet", "all"]))
            printed.append(plan_ours(runs))
            bare.append(dry_run({"Snakefile": BARE}, ["--config", f"runs={runs}"]))
        what = f"plan: snakemake -n of {runs:,} runs"
        table.append(Row(f"{what}, quiet", figures(quiet), n=n))
        seconds = ([cpu for cpu, _ in printed], [cpu for cpu, _ in bare])
        row = compare(f"{what}, every job printed", seconds, most=MOST if runs in JUDGED else None)
        table.append(replace(row, ours=figures(printed), reference=figures(bare)))
    return table


def figures(plannings: Sequence[Planning]) -> str:
    """Return CPU seconds and peak memory, each with its spread."""
    seconds, megabytes = zip(*plannings, strict=True)
    return f"{show(seconds, 's CPU')}, {show(megabytes, 'MB', 0)}"


def plan_ours(runs: int, options: Sequence[str] = ()) -> Planning:
    """Plan a study of so many runs, as a user does, by further options of Snakemake."""
    # the machine is stated, so that the plan is the same whatever runs this
    site = {"accelerator": "cpu", "devices_per_node": max(DEVICES), "cpus_per_node": max(DEVICES)}
    files = {"site.yaml": yaml.safe_dump(site), "experiments.yaml": yaml.safe_dump(study(runs))}
    snakefile = ROOT / "workflow" / "Snakefile"
    return dry_run(files, [*options, "-s", str(snakefile), "--configfile", "experiments.yaml"])


def dry_run(files: Mapping[str, str], options: Sequence[str]) -> Planning:
    """Run ``snakemake -n`` in a folder that holds only these files.

    Raises:
        RuntimeError: It failed; the message is Snakemake's.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "snakemake", "-n", *options]
        errors = folder / "stderr.txt"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=stderr)
            # the peak of a child starts at its parent's, so this process must import nothing large
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{errors.read_text(encoding='utf-8')}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def study(runs: int) -> dict[str, Any]:
    """Return a study of so many runs, a multiple of 10: learning rates x seeds x devices x repeats."""
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
