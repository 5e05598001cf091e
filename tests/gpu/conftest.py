"""One real study on one GPU, through Snakemake to its report, which the tests of this folder read."""

import html
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tests.bucket_view_study import STUDY as MEMORY
from tests.paths import ROOT
from tests.stand_ins import stand_ins
from tests.workflow.workplace import Outcome, Workplace

from scalewise.records import Measurements, RunRecord, read_run

FULL_SPEED: dict[str, Any] = {"precision": "bf16", "channels_last": True, "loader": "resident"}
IMAGES = "synthetic-3x32x32-10classes-2048samples"

LITTLE_MEMORY_OF_ITS_OWN = {"CUBLAS_WORKSPACE_CONFIG": ":1024:1"}
"""A MiB for each of cuBLAS's workspaces, 32 on a Hopper else: they come from the allocator of tensors."""


ONCE: dict[str, Any] = {"devices": [1], "repeats": 1, "runtime_minutes": 10}


def memory_experiments() -> dict[str, dict[str, Any]]:
    """Trainings with gradient_as_bucket_view and without, whose memory is their parameters'."""
    memory = yaml.safe_load(MEMORY)
    usual = memory["defaults"] | {"model": "planted_narrow_transformer_for_a_gpu"}
    return {name: usual | experiment | ONCE for name, experiment in memory["experiments"].items()}


def experiments(accelerator: str) -> dict[str, dict[str, Any]]:
    """What the study trains: on one device, once each.

    Args:
        accelerator: what belongs to a GPU is made small, or left out, in a rehearsal on a CPU.
    """
    rehearsed = accelerator == "cpu"
    shipped = yaml.safe_load((ROOT / "config" / "experiments.yaml").read_text(encoding="utf-8"))
    chosen = {
        name: shipped["defaults"] | experiment | ONCE for name, experiment in shipped["experiments"].items()
    }
    digits = shipped["defaults"] | shipped["experiments"]["digits-strong"] | {"warmup_steps": 6} | ONCE
    precisions = ["bf16"] if rehearsed else ["tf32", "bf16", "fp16"]
    chosen["precisions"] = digits | {"epochs": 3, "sweep": {"precision": precisions}, "channels_last": True}
    # whole batches alone: of a smaller last one code is compiled for itself
    chosen["fast"] = ONCE | FULL_SPEED | {"loader": "workers", "cpus_per_device": 2}
    chosen["fast"] |= {"model": "digits_cnn", "dataset": IMAGES, "global_batch_size": 256, "steps": 20}
    chosen["fast"] |= {"compile": not rehearsed, "learning_rate": 0.01, "warmup_steps": 6}
    chosen["steady"] = ONCE | FULL_SPEED | {"dataset": IMAGES, "learning_rate": 0.01, "warmup_steps": 10}
    chosen["steady"] |= {"model": "wrn-10-1" if rehearsed else "wide_resnet"}
    # long enough for readings of the GPU, one a second
    chosen["steady"] |= {"global_batch_size": 32 if rehearsed else 256, "steps": 40 if rehearsed else 600}
    chosen["oversized"] = digits | {"model": "planted_too_large", "epochs": 1, "warmup_steps": 2}
    return chosen


@dataclass(frozen=True)
class GpuStudy:
    """The study, ended.

    Args:
        folder: that it ran in.
        outcome: of the snakemake command.
    """

    folder: Path
    outcome: Outcome

    @property
    def results(self) -> Path:
        """The results folder, with the runs."""
        return self.folder / "results"

    @property
    def page(self) -> str:
        """The report's text."""
        return html.unescape((self.results / "report.html").read_text(encoding="utf-8"))

    def runs(self, experiment: str) -> pd.DataFrame:
        """The runs.csv of an experiment."""
        return pd.read_csv(self.results / experiment / "runs.csv")

    def run_folders(self) -> list[Path]:
        """The folders of all runs."""
        return sorted(path.parent for path in self.results.glob("*/runs/*/record.json"))

    def summaries(self) -> dict[str, RunRecord]:
        """What each run left, by experiment/run."""
        return {f"{run.parents[1].name}/{run.name}": read_run(run) for run in self.run_folders()}

    def measured(self, experiment: str) -> tuple[Path, Measurements]:
        """Folder and measurements of an experiment's only run."""
        (folder,) = (self.results / experiment / "runs").iterdir()
        measurements = read_run(folder).measurements
        assert measurements is not None
        return folder, measurements


@pytest.fixture(scope="session")
def gpu_study(tmp_path_factory: pytest.TempPathFactory, accelerator: str) -> GpuStudy:
    """One snakemake from the configuration to the report."""
    return run_study(tmp_path_factory.mktemp("study"), experiments(accelerator), accelerator, {})


@pytest.fixture(scope="session")
def memory_study(tmp_path_factory: pytest.TempPathFactory, accelerator: str) -> GpuStudy:
    """Another process on it: what others use of the GPU is not in a process's own memory."""
    if accelerator == "cpu":
        pytest.skip("measures memory of a GPU: no rehearsal on a CPU")
    folder, chosen = tmp_path_factory.mktemp("memory"), memory_experiments()
    return run_study(folder, chosen, accelerator, LITTLE_MEMORY_OF_ITS_OWN)


def run_study(
    folder: Path, chosen: dict[str, dict[str, Any]], accelerator: str, variables: Mapping[str, str]
) -> GpuStudy:
    """Run experiments on one device of this machine, with these environment variables."""
    # where nothing is installed but on purpose, python may be called python3 alone
    programs = stand_ins(folder / "programs", {"python": f'exec "{sys.executable}" "$@"'})
    site = {
        "accelerator": accelerator,
        "devices_per_node": 1,
        "cpus_per_node": min(len(os.sched_getaffinity(0)), 8),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(programs), os.environ["PATH"]]))
        for name, value in variables.items():
            patch.setenv(name, value)
        workplace = Workplace(folder, Path(sys.executable))
        given = {
            "config": yaml.safe_dump({"experiments": chosen}, sort_keys=False),
            "site": yaml.safe_dump(site),
        }
        outcome = workplace.snakemake("--scheduler", "greedy", "--show-failed-logs", **given)
    print(outcome.text)  # next to a test that fails
    return GpuStudy(folder, outcome)
