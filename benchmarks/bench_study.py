"""The shipped study's first experiment, against plain scripts that train the same and record nothing.

Ours is ``snakemake --profile profiles/local`` in a fresh folder: the plan, all trainings with their passes
and records, the all-reduce, tables, figures and reports. The reference is ``bare_ddp.py`` once for each run,
one after the other, on one device by python and on two by torchrun. The dataset is prepared before for
both; both sides are shown to have made the same steps.

    python benchmarks/run.py study
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import yaml

from scalewise.builtin.data.preparation import prepare
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.study import load_study
from scalewise.records import read_summary

from .measure import Row, interleave, spread

ROOT = Path(__file__).resolve().parents[1]
MOST = 0.9
ROUNDS = 3
CHANGED: dict[str, Any] = {}
"""Keys of the shipped experiment that have other values."""
SMALL = {"ROUNDS": 1, "CHANGED": {"devices": [1], "epochs": 1, "warmup_steps": 2, "repeats": 1}}
DATASET = Path("resources/datasets/digits/dataset.safetensors")
# GPUs would change both sides
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": ""}


def rows() -> list[Row]:
    """Wall times of the two in turn: whole processes wait for each other and for disks."""
    rounds = ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare("digits", place / "dataset.safetensors")
        with chdir(ROOT):
            config = first_experiment()
            runs = list(load_study(config, site_file=Path("profiles/local/site.yaml")).runs.values())
        workplaces = (place / f"study{number}" for number in range(rounds))
        work(
            bare_command(runs[-1], place / "dataset.safetensors")
        )  # what only the first would read from disk

        def ours() -> None:
            run_study(next(workplaces), place / "dataset.safetensors", runs)

        pairs = interleave(ours, lambda: run_bare(runs, place / "dataset.safetensors"), rounds)
    ratio = spread([mine.wall / other.wall for mine, other in pairs])
    return [
        Row(
            what=f"study: digits-strong, {len(runs)} runs, whole, against as many bare scripts, wall time",
            ours=spread([mine.wall for mine, _ in pairs]).show("s", digits=0),
            reference=spread([other.wall for _, other in pairs]).show("s", digits=0),
            ratio=ratio.show(),
            n=rounds,
            target=f"at most {MOST:g}",
            met=ratio.median <= MOST,
        )
    ]


def first_experiment() -> dict[str, Any]:
    """Return the shipped configuration without its other experiments, which bare scripts do not train."""
    config: dict[str, Any] = yaml.safe_load(
        (ROOT / "config" / "experiments.yaml").read_text(encoding="utf-8")
    )
    name = next(iter(config["experiments"]))
    return config | {"experiments": {name: config["experiments"][name] | CHANGED}}


def run_study(workplace: Path, dataset: Path, runs: list[RunDefinition]) -> None:
    """Run the study as a user does, in a folder with nothing but the prepared dataset."""
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, workplace / name)
    text = yaml.safe_dump(first_experiment(), sort_keys=False)
    (workplace / "config" / "experiments.yaml").write_text(text, encoding="utf-8")
    (workplace / DATASET).parent.mkdir(parents=True)
    shutil.copy(dataset, workplace / DATASET)
    snakefile = ROOT / "workflow" / "Snakefile"
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(snakefile),
        "--profile",
        "profiles/local",
    ]
    work(command, cwd=workplace)
    assert (workplace / "results" / "report.html").exists(), "the study has made its report"
    for run in runs:
        measured = read_summary(workplace / "results" / run.experiment / "runs" / run.run).measurements
        assert measured is not None, f"{run.run} was trained"
        assert sum(window.steps for window in measured.windows) == steps_of(run), f"{run.run} made every step"


def run_bare(runs: list[RunDefinition], dataset: Path) -> None:
    """The same trainings, one plain script after the other."""
    for run in runs:
        printed = work(bare_command(run, dataset))
        last = re.findall(r"(\d+) steps$", printed, re.MULTILINE)[-1]
        assert int(last) == steps_of(run), f"the script of {run.run} made every step"


def steps_of(run: RunDefinition) -> int:
    """Optimizer steps of the whole training; digits has 1,437 images to train on."""
    return _built_in(run).epochs * -(-1437 // run.global_batch_size)


def _built_in(run: RunDefinition) -> Settings:
    assert isinstance(run.settings, Settings), "the study has built-in trainings alone"
    return run.settings


def bare_command(run: RunDefinition, dataset: Path) -> list[str]:
    """What somebody without Scalewise would type for a run."""
    return [*_launcher(run), str(ROOT / "benchmarks" / "bare_ddp.py"), *_options(run), str(dataset)]


def _launcher(run: RunDefinition) -> list[str]:
    devices = run.shape.world_size
    if devices == 1:
        return [sys.executable]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    return [*torchrun, f"--nproc-per-node={devices}"]


def _options(run: RunDefinition) -> Iterator[str]:
    settings = _built_in(run)
    yield f"--batch-size={run.batch_size_per_device}"
    yield f"--epochs={settings.epochs}"
    yield f"--learning-rate={settings.learning_rate}"
    yield f"--momentum={settings.momentum}"
    yield f"--seed={run.settings.seed}"
    if settings.gradient_as_bucket_view:
        yield "--gradient-as-bucket-view"


def work(command: list[str], cwd: Path | None = None) -> str:
    """What a command prints; one that fails ends the benchmark with its words."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with code {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout
