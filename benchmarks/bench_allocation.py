"""Seconds that a Slurm job holds its allocation before its first rank starts, against a bare script.

On the Slurm lab of the tests (root on Linux, with Slurm installed). Three jobs of the same shape in turn:
sbatch and srun of a bare script; the smallest workflow that runs this srun by the executor plugin; Scalewise.

    python benchmarks/run.py allocation
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml
from tests.prepared_digits import place_digits_of_study
from tests.slurm.lab import Lab
from tests.slurm.study import PROMPT, ROOT, SITE, TRAINING

from .measure import Row, spread

ROUNDS = 12
TARGET = 1.2
RECORD = [sys.executable, str(Path(__file__).with_name("rank_delay.py"))]
STEP = "--nodes=1 --ntasks=2 --cpus-per-task=1 --mpi=none"
BARE = """
rule train:
    output:
        "results/one/runs/d2.r1/summary.json",
    resources:
        mpi="", nodes=1, tasks=2, cpus_per_task=1, runtime=5,
        slurm_account="lab", slurm_partition="main",
    shell:
        "srun {step} {record} delay && touch {{output}}"
"""


def rows() -> list[Row]:
    """Return how long each way takes, and how often it takes as long as the bare script."""
    prefix = f"a{os.getpid()}n"
    with tempfile.TemporaryDirectory(prefix="scalewise-allocation-") as folder:
        lab = Lab.up(Path(tempfile.gettempdir()) / f"scalewise-{prefix}", prefix, nodes=1)
        try:
            ways: dict[str, Callable[[Lab, Path], float]] = {
                "script": script, "workflow": workflow, "scalewise": scalewise,
            }  # fmt: skip
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(ROUNDS):
                # in turn, so that a machine that drifts drifts for all
                for name in list(ways)[:: 1 if turn % 2 else -1]:
                    place = Path(folder) / f"{name}{turn}"
                    place.mkdir()
                    seconds[name].append(ways[name](lab, place))
        finally:
            lab.down()
    bare = seconds["script"]
    table = []
    for name, what in (
        ("workflow", "the smallest workflow with the executor plugin"),
        ("scalewise", "a run of Scalewise"),
    ):
        ratio = spread([ours / alone for ours, alone in zip(seconds[name], bare, strict=True)])
        table.append(
            Row(
                f"allocation: from the job's start to its first rank, {what}",
                spread(seconds[name]).show("s"),
                ROUNDS,
                reference=spread(bare).show("s"),
                ratio=ratio.show(),
            )
        )
    share = spread(
        [ours / alone for ours, alone in zip(seconds["scalewise"], seconds["workflow"], strict=True)]
    )
    table.append(
        Row(
            "allocation: a run of Scalewise against the smallest workflow",
            spread(seconds["scalewise"]).show("s"),
            ROUNDS,
            reference=spread(seconds["workflow"]).show("s"),
            ratio=share.show(),
            target=f"at most {TARGET} times",
            met=share.median <= TARGET,
        )
    )
    return table


def script(lab: Lab, folder: Path) -> float:
    """Submit srun of a bare script by sbatch."""
    line = f"srun {STEP} {shlex.join(RECORD)} delay"
    options = ["--account=lab", "--partition=main", "--nodes=1", "--ntasks=2", "--time=5", "--wait"]
    lab.run("sbatch", *options, "--wrap", line, cwd=folder)
    return delay(folder)


def workflow(lab: Lab, folder: Path) -> float:
    """Run the same srun by the rule of a workflow that has nothing else."""
    (folder / "Snakefile").write_text(BARE.format(step=STEP, record=shlex.join(RECORD)), encoding="utf-8")
    snakemake(lab, folder, "--executor", "slurm", "--jobs", "1", "results/one/runs/d2.r1/summary.json")
    return delay(folder)


def scalewise(lab: Lab, folder: Path) -> float:
    """Run a training of two ranks by the shipped workflow and profile."""
    facts = SITE | {"prelude": [shlex.join([*RECORD, str(folder / "delay")])], "max_nodes": 1}
    facts["slurm"] = {"account": "lab", "partition": "main", "gpu_request": "none"}
    experiment = TRAINING | {"devices": [2], "launcher": "srun", "runtime_minutes": 5}
    (folder / "site.yaml").write_text(yaml.safe_dump(facts), encoding="utf-8")
    (folder / "study.yaml").write_text(yaml.safe_dump({"experiments": {"one": experiment}}), encoding="utf-8")
    place_digits_of_study(folder)
    shipped = (
        "--snakefile",
        str(ROOT / "workflow" / "Snakefile"),
        "--profile",
        str(ROOT / "profiles" / "slurm"),
    )
    study = ("--config", "site=site.yaml", "--configfile", "study.yaml", "--until", "train")
    snakemake(lab, folder, *shipped, *study)
    return delay(folder)


def snakemake(lab: Lab, folder: Path, *arguments: str) -> None:
    """Run Snakemake on the lab's head; it looks at its jobs every two seconds."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command: list[str | Path] = [
        sys.executable,
        PROMPT,
        *arguments,
        "--slurm-init-seconds-before-status-checks",
        "2",
    ]
    lab.run(*command, cwd=folder, env={"PATH": path}, timeout=600)


def delay(folder: Path) -> float:
    """Read what the first rank has written."""
    return float((folder / "delay").read_text(encoding="utf-8"))
