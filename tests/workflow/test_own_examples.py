"""Scripts of config/examples/own, which know nothing of Scalewise, run to their report on 1 and 2 CPUs."""

from __future__ import annotations

import html
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tests.shrunk_examples import FOLDER, OWN_EXAMPLES, Experiments, shrunk_own
from tests.workflow.conftest import Workplace

from scalewise.records import read_summary

NEEDS = {"own-accelerate": "accelerate", "own-lightning": "lightning"}
"""Packages that only these scripts need; `make test` installs them."""


def samples_of_a_step(experiment: dict[str, object], devices: int) -> int:
    """The global batch that an experiment plans."""
    if "global_batch_size" in experiment:
        return int(str(experiment["global_batch_size"]))
    sweep = experiment.get("sweep", {})
    assert isinstance(sweep, dict)
    (passes,) = sweep.get("accumulation_steps", [experiment.get("accumulation_steps", 1)])
    return int(str(experiment["batch_size_per_device"])) * int(passes) * devices


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Path:
    """All examples whose packages are installed, run in one study to its report."""
    workplace = Workplace(tmp_path_factory.mktemp("own"), preloaded_python)
    # paths of scripts are relative to where snakemake is started
    (workplace.folder / "config").mkdir()
    (workplace.folder / "config" / "examples").symlink_to(FOLDER, target_is_directory=True)
    experiments: Experiments = {}
    for example in filter(_is_installed, OWN_EXAMPLES):
        experiments |= shrunk_own(example)
    site = {"accelerator": "cpu", "devices_per_node": 2, "cpus_per_node": 4}
    outcome = workplace.snakemake(
        *("--scheduler", "greedy", "--keep-going"),
        config=yaml.safe_dump({"experiments": experiments}),
        site=yaml.safe_dump(site),
    )
    assert outcome.code == 0, outcome.text
    return workplace.folder / "results"


def _is_installed(example: str) -> bool:
    return example not in NEEDS or find_spec(NEEDS[example]) is not None


@pytest.mark.parametrize("example", OWN_EXAMPLES)
def test_an_own_script_runs_to_its_report(example: str, results: Path) -> None:
    if not _is_installed(example):
        pytest.skip(f"{NEEDS[example]} is not installed: pip install -c constraints.txt '.[dev]'")
    report = html.unescape((results / "report.html").read_text())
    for name, experiment in shrunk_own(example).items():
        assert experiment["title"] in report
        runs = pd.read_csv(results / name / "runs.csv")
        assert list(runs["outcome"]) == ["completed"] * len(experiment["devices"])
        for run in sorted((results / name / "runs").iterdir()):
            summary = read_summary(run)
            assert summary.measurements is not None
            counted = [window for window in summary.measurements.windows if not window.warmup]
            steps = sum(window.steps for window in counted)
            devices = int(run.name.removeprefix("d").split(".")[0])
            assert sum(window.samples for window in counted) == steps * samples_of_a_step(experiment, devices)


def test_the_scripts_know_nothing_of_scalewise() -> None:
    for script in (FOLDER / "own").glob("*.py"):
        words = script.read_text(encoding="utf-8").lower()
        assert "scalewise" not in words
        assert "snakemake" not in words


def test_the_gpt_also_trains_without_any_launcher(tmp_path: Path) -> None:
    outside = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    for script, *words in (
        ("prepare_tokens.py", "--tokens=2000", "--out=tokens"),
        ("nanogpt_like.py", "--data=tokens", "--out=gpt", "--max-steps=3", "--eval-every=2"),
    ):
        command = [sys.executable, str(FOLDER / "own" / script), *words]
        subprocess.run(command, cwd=tmp_path, env=outside, check=True)
    assert (tmp_path / "gpt" / "last.pt").exists()
