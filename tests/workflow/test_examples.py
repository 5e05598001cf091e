"""The shipped examples: each plans as it is, and runs to its report when it is made small."""

import html
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tests.paths import ROOT
from tests.shrunk_examples import EXAMPLES, FOLDER, OWN_EXAMPLES, Experiments, shrunk_own
from tests.workflow.workplace import LoginNode, Workplace

from scalewise.records import read_run

PLANS: dict[str, tuple[str, set[str], int]] = {
    "hello-ddp": ("profiles/slurm/site.yaml", {"1x1", "1x2", "2x2"}, 6),
    "nyu-ddp": ("profiles/sites/nyu-greene.yaml", {"1x1", "1x2", "2x2"}, 36),
    "olivia-cifar100": ("profiles/sites/sigma2-olivia.yaml", {"1x1", "1x2", "1x4", "2x4"}, 78),
    "own-accelerate": ("profiles/slurm/site.yaml", {"1x1", "1x2"}, 12),
    "own-ddp": ("profiles/slurm/site.yaml", {"1x1", "1x2"}, 18),
    "own-images": ("profiles/slurm/site.yaml", {"1x1", "1x2"}, 6),
    "own-lightning": ("profiles/slurm/site.yaml", {"1x1", "1x2"}, 6),
    "own-nanogpt": ("profiles/slurm/site.yaml", {"1x1", "1x2"}, 12),
    "palmetto-torchrun": ("profiles/slurm/site.yaml", {"1x1", "1x2", "2x2"}, 12),
    "princeton-mnist": ("profiles/sites/princeton-della.yaml", {"1x1", "1x2", "1x4", "2x2", "3x2"}, 36),
    "resnet18-spawn": ("profiles/slurm/site.yaml", {"1x1", "1x2", "2x2"}, 18),
}
"""Of each file, untouched: a site, the nodes x devices of its runs, and their number."""


def commands(example: str) -> list[list[str]]:
    """What its comment says to type, as words."""
    comment = [line.removeprefix("#") for line in (FOLDER / f"{example}.yaml").read_text().splitlines()]
    text = "\n".join(comment).replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^   (snakemake .*)$", text, re.MULTILINE)]


def test_every_example_is_tested_and_listed_in_the_documentation() -> None:
    assert set(PLANS) == {*EXAMPLES, *OWN_EXAMPLES}
    listed = re.findall(r"\(examples/([a-z0-9-]+)\.yaml\)", (ROOT / "config" / "README.md").read_text())
    assert sorted(listed) == sorted(PLANS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_a_tutorial_names_its_version_and_ends_with_all_that_differs(example: str) -> None:
    text = (FOLDER / f"{example}.yaml").read_text(encoding="utf-8")
    assert re.search(r"^# Source: https://github\.com/\S+ [^\0]*?\(commit [0-9a-f]{7}\)", text, re.MULTILINE)
    _, _, end = text.partition("\n\n# Differs from the original:\n")
    assert end.count("\n#  - ") > 3


@pytest.mark.parametrize("example", PLANS)
def test_an_example_plans_on_its_cluster_as_its_comment_says(example: str, login_node: LoginNode) -> None:
    site, shapes, runs = PLANS[example]
    login_node.fill_in(site)
    typed = commands(example)
    assert typed
    for program, *words in typed:
        assert program == "snakemake"
        assert words[words.index("--configfile") + 1] == f"config/examples/{example}.yaml"
        assert site == "profiles/slurm/site.yaml" or f"site={site}" in words
        outcome = login_node.snakemake(*words, "-n")
        assert outcome.code == 0, outcome.text
        assert f"\n{runs} runs, " in outcome.text
        rows = re.findall(r"^  \S+ +\d+ +(\d+x\d+) ", outcome.text, re.MULTILINE)
        assert set(rows) == shapes
        text = re.sub(r"\n    (?=\S)", " ", outcome.text)
        asked = re.findall(r"^  (\S+): nodes=(\d+) .*--ntasks-per-node=(\d+)", text, re.MULTILINE)
        assert {shape for shape, *_ in asked} == (set() if "preflight" in words else shapes)
        assert all(shape == f"{nodes}x{tasks}" for shape, nodes, tasks in asked)
        assert "Warning: experiments" not in outcome.text


SITE = "accelerator: cpu\ndevices_per_node: 2\ncpus_per_node: 4\n"
"""A machine of four CPUs, of which there may be two: these runs are not for their speed."""


def check_reported(results: Path, name: str, experiment: Mapping[str, Any]) -> None:
    """Check that a report has an experiment whose runs have all completed."""
    assert experiment["title"] in html.unescape((results / "report.html").read_text(encoding="utf-8"))
    runs = pd.read_csv(results / name / "runs.csv")
    assert list(runs["outcome"]) == ["completed"] * len(experiment["devices"])
    assert set(runs["devices"]) == set(experiment["devices"])


# --- custom scripts, which know nothing of Scalewise -----------------------------------------------------

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
def own_folder(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Path:
    """The folder of one study of all scripts whose packages are installed, run to its report."""
    workplace = Workplace(tmp_path_factory.mktemp("own"), preloaded_python)
    # paths of scripts are relative to where snakemake is started
    (workplace.folder / "config").mkdir()
    (workplace.folder / "config" / "examples").symlink_to(FOLDER, target_is_directory=True)
    experiments: Experiments = {}
    for example in filter(_is_installed, OWN_EXAMPLES):
        experiments |= shrunk_own(example)
    config = yaml.safe_dump({"experiments": experiments})
    outcome = workplace.snakemake("--scheduler", "greedy", "--keep-going", config=config, site=SITE)
    assert outcome.code == 0, outcome.text
    return workplace.folder


def _is_installed(example: str) -> bool:
    return example not in NEEDS or find_spec(NEEDS[example]) is not None


@pytest.mark.parametrize("example", OWN_EXAMPLES)
def test_an_own_script_runs_to_its_report(example: str, own_folder: Path) -> None:
    if not _is_installed(example):
        pytest.skip(f"{NEEDS[example]} is not installed: pip install -c constraints.txt '.[dev]'")
    for name, experiment in shrunk_own(example).items():
        check_reported(own_folder / "results", name, experiment)
        for run in sorted((own_folder / "results" / name / "runs").iterdir()):
            measured = read_run(run).measurements
            assert measured is not None
            counted = [window for window in measured.windows if not window.warmup]
            steps = sum(window.steps for window in counted)
            devices = int(run.name.removeprefix("d").split(".")[0])
            assert sum(window.samples for window in counted) == steps * samples_of_a_step(experiment, devices)


def test_the_scripts_know_nothing_of_scalewise() -> None:
    for script in (FOLDER / "own").glob("*.py"):
        words = script.read_text(encoding="utf-8").lower()
        assert "scalewise" not in words
        assert "snakemake" not in words


def test_the_gpt_also_trains_without_any_launcher(own_folder: Path, tmp_path: Path) -> None:
    outside = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    command = [sys.executable, str(FOLDER / "own" / "nanogpt_like.py"), "--out=gpt", "--max-steps=3"]
    command += [f"--data={own_folder / 'resources' / 'own' / 'tokens'}", "--eval-every=2"]
    subprocess.run(command, cwd=tmp_path, env=outside, check=True)
    assert (tmp_path / "gpt" / "last.pt").exists()
