r"""Seconds that a Slurm job holds its allocation before its first rank starts, against a bare script.

Three jobs of the same shape in turn: sbatch and srun of a bare script; the smallest workflow that runs this
srun by the executor plugin; Scalewise. On a login node, in a folder that its compute nodes share:

    SBATCH_ACCOUNT=... SBATCH_PARTITION=... python benchmarks/run.py allocation

or, as root, on the cluster that ``make slurm-lab`` starts, whose account is lab and whose partition is main:

    python tests/slurm/lab.py run env SBATCH_ACCOUNT=lab SBATCH_PARTITION=main \
        python benchmarks/run.py allocation
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from .measure import ROOT, Row, compare

ROUNDS = 12
SMALL = {"ROUNDS": 1}
MOST = 1.2
LIMIT_SECONDS = 600
RECORD = [sys.executable, str(Path(__file__).with_name("rank_delay.py"))]
STEP = "--nodes=1 --ntasks=2 --cpus-per-task=1 --mpi=none"
PLACE = ("SBATCH_ACCOUNT", "SBATCH_PARTITION")
BARE = """
rule train:
    output:
        "results/one/runs/d2.r1/record.json",
    resources:
        mpi="", nodes=1, tasks=2, cpus_per_task=1, runtime=5,
        slurm_account="{account}", slurm_partition="{partition}",
    shell:
        "srun {step} {record} delay && touch {{output}}"
"""
EXPERIMENT = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 240,
    "learning_rate": 0.05,
    "epochs": 2,
    "warmup_steps": 2,
    "devices": [2],
    "repeats": 1,
    "launcher": "srun",
    "runtime_minutes": 5,
}


def rows() -> list[Row]:
    """Start jobs in each way in turn, and compare how long each takes."""
    if shutil.which("sbatch") is None or not all(map(os.environ.get, PLACE)):
        return [Row("allocation", f"needs sbatch, and {' and '.join(PLACE)}")]
    ways = (script, workflow, scalewise)
    seconds: dict[str, list[float]] = {way.__name__: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="scalewise-allocation-", dir=Path.cwd()) as folder:
        for turn in range(ROUNDS):
            # in turn, so that a machine that drifts drifts for all
            for way in ways[:: 1 if turn % 2 else -1]:
                place = Path(folder) / f"{way.__name__}{turn}"
                place.mkdir()
                way(place)
                seconds[way.__name__].append(float((place / "delay").read_text(encoding="utf-8")))
    start = "allocation: from the job's start to its first rank"
    return [
        compare(f"{start}, the smallest workflow", (seconds["workflow"], seconds["script"]), "s"),
        compare(f"{start}, a run of Scalewise", (seconds["scalewise"], seconds["script"]), "s"),
        compare(
            "allocation: a run of Scalewise against the smallest workflow",
            (seconds["scalewise"], seconds["workflow"]),
            "s",
            most=MOST,
        ),
    ]


def script(folder: Path) -> None:
    """Submit srun of a bare script by sbatch."""
    line = f"srun {STEP} {shlex.join(RECORD)} delay"
    work(folder, "sbatch", "--nodes=1", "--ntasks=2", "--time=5", "--wait", "--wrap", line)


def workflow(folder: Path) -> None:
    """Run the same srun by the rule of a workflow that has nothing else."""
    account, partition = (os.environ[name] for name in PLACE)
    record = shlex.join(RECORD)
    text = BARE.format(step=STEP, record=record, account=account, partition=partition)
    (folder / "Snakefile").write_text(text, encoding="utf-8")
    snakemake(folder, "--executor", "slurm", "--jobs", "1", "results/one/runs/d2.r1/record.json")


def scalewise(folder: Path) -> None:
    """Run a training of two ranks by the shipped workflow and profile."""
    account, partition = (os.environ[name] for name in PLACE)
    site = {
        "accelerator": "cpu",
        "devices_per_node": 2,
        "cpus_per_node": 2,
        "max_nodes": 1,
        "prelude": [shlex.join([*RECORD, str(folder / "delay")])],
        "slurm": {"account": account, "partition": partition, "gpu_type": "none"},
    }
    (folder / "site.yaml").write_text(yaml.safe_dump(site), encoding="utf-8")
    (folder / "study.yaml").write_text(yaml.safe_dump({"experiments": {"one": EXPERIMENT}}), encoding="utf-8")
    shipped = ("--snakefile", str(ROOT / "workflow/Snakefile"), "--profile", str(ROOT / "profiles/slurm"))
    snakemake(
        folder, *shipped, "--config", "site=site.yaml", "--configfile", "study.yaml", "--until", "train"
    )


def snakemake(folder: Path, *words: str) -> None:
    """Run Snakemake, which looks at its jobs after two seconds."""
    status = ("--slurm-init-seconds-before-status-checks", "2")
    work(folder, sys.executable, "-m", "snakemake", *words, *status)


def work(folder: Path, *command: str) -> None:
    """Run a command to its end; one that fails ends the benchmark with its output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stdout[-3000:]}")
