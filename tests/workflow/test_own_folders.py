"""A program in its own folder, measured from a folder that is not Scalewise's, with words of every kind."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.workflow.conftest import ACCOUNT, ROOT, SITE, SNAKEFILE, LoginNode, Outcome, Workplace
from tests.workflow.recording_slurm import recording_slurm, submissions
from tests.workflow.test_hostile_inputs import CANARY, RUNTIME, TRAP, canaries, quoted

refuses = pytest.mark.refuses

SCRIPT = """\
import json, os, pathlib, sys
import torch
from features import WIDTH

told = {"words": sys.argv[2:], "variable": os.environ["TOLD"], "data": open("data.txt").read()}
(pathlib.Path(sys.argv[1]) / "told.json").write_text(json.dumps(told))
model = torch.nn.Linear(WIDTH, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(16, WIDTH)).sum().backward()
    optimizer.step()
"""
FETCH = "import sys\nopen('data.txt', 'w').write(sys.argv[1])\n"
WORDS = [TRAP, "${name}", "*.jpg", "<eos>", "~trainer.logger", "^lora.*|head$", "http://x?a=1&b=2"]


def study(**more: str) -> str:
    keys = {
        "program": "-m train",
        "working_directory": "my project",
        "arguments": json.dumps(["{folder}", *WORDS, "{batch_size_per_device * 1024}", "{argument.trap}"]),
        "argument": f"{{trap: {quoted(TRAP)}}}",
        "environment": f"{{TOLD: {quoted(TRAP)}}}",
        "prepare": f"[my project/fetch.py, {quoted(TRAP)}]",
        "scaling": "weak",
        "batch_size_per_device": "16",
        "devices": "[1]",
        "steps": "20",
        "warmup_steps": "2",
        "repeats": "1",
        "predict": "false",
    }
    lines = [f"    {key}: {value}\n" for key, value in (keys | more).items()]
    return f"experiments:\n  own:\n{''.join(lines)}"


def write_project(folder: Path) -> None:
    project = folder / "my project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    (project / "features.py").write_text("WIDTH = 8\n")
    (project / "fetch.py").write_text(FETCH)


def from_elsewhere(workplace: Workplace, *arguments: str) -> Outcome:
    """Run snakemake as a user does outside Scalewise's folder, with its profile."""
    command = ["snakemake", "--snakefile", str(SNAKEFILE), "--profile"]
    return workplace.run([*command, str(ROOT / "profiles/local"), "--configfile", "study.yaml", *arguments])


@refuses("security: shell in the study")
def test_a_program_runs_in_its_own_folder_and_its_words_reach_no_shell(workplace: Workplace) -> None:
    """Through rules, prelude, a container's command and the launcher, with snakemake in a third folder."""
    workplace.folder.joinpath("study.yaml").write_text(study())
    runs = workplace.folder / "runs here"
    runs.mkdir()
    write_project(runs)
    (runs / "run.sh").write_text(RUNTIME)
    (runs / "run.sh").chmod(0o755)
    container = "container: {image: x.sif, runtime: ./run.sh}\nprelude: [export A=1]\n"
    (runs / "site.yaml").write_text(f"{SITE}python: {workplace.python}\n{container}")
    outcome = from_elsewhere(
        workplace, "--directory", str(runs), "--config", "site=site.yaml", "--printshellcmds"
    )
    run = runs / "results/own/runs/d1.r1"
    assert (run / "summary.json").exists(), outcome.text

    told = json.loads((run / "program/told.json").read_text())
    assert told == {"words": [*WORDS, "16384", TRAP], "variable": TRAP, "data": TRAP}
    assert canaries(workplace.folder) == []
    assert not (workplace.folder / "results").exists()
    (runs / "my project/features.py").write_text("WIDTH = 9\n")
    again = from_elsewhere(workplace, "-n", "--directory", str(runs), "--config", "site=site.yaml")
    assert again.trained == {"own/d1.r1"}, again.text


@refuses("security: shell in the study")
def test_no_word_of_a_program_stands_in_the_command_of_a_job(login_node: LoginNode) -> None:
    record = recording_slurm(login_node.programs, ACCOUNT)
    (login_node.programs / "touch").symlink_to("/usr/bin/touch")
    login_node.fill_in("profiles/slurm/site.yaml")
    write_project(login_node.folder)
    login_node.write("study.yaml", study())
    outcome = login_node.snakemake(
        *("--configfile", "study.yaml", "--retries", "0", "--latency-wait", "0", "--printshellcmds"),
        *("--slurm-init-seconds-before-status-checks", "1"),
    )
    assert record.exists(), outcome.text
    (words,) = submissions(record)
    assert [word for word in words if CANARY in word or "{name}" in word] == []
    assert canaries(login_node.folder.parent) == []


def test_a_profile_finds_its_site_from_another_folder(workplace: Workplace) -> None:
    write_project(workplace.folder)
    (workplace.folder / "study.yaml").write_text(study())
    here = from_elsewhere(workplace, "-n")
    assert here.code == 0, here.text
    assert here.trained == {"own/d1.r1"}
    other = workplace.folder / "other"
    other.mkdir()
    shutil.move(workplace.folder / "my project", other)
    there = from_elsewhere(workplace, "-n", "--directory", "other")
    assert there.trained == {"own/d1.r1"}, there.text
    missing = from_elsewhere(workplace, "-n", "--config", "site=profiles/local/mine.yaml")
    assert "profiles/local/mine.yaml: there is no such file in" in missing.text


def test_a_sites_file_here_goes_before_that_of_the_checkout(workplace: Workplace) -> None:
    write_project(workplace.folder)
    (workplace.folder / "study.yaml").write_text(study())
    (workplace.folder / "profiles/local").mkdir(parents=True)
    (workplace.folder / "profiles/local/site.yaml").write_text("accelerator: gpu\n")
    outcome = from_elsewhere(workplace, "-n")
    assert f"profiles{os.sep}local{os.sep}site.yaml:1: accelerator is 'gpu'" in outcome.text
