"""The README's commands work one after the other, in an empty folder and a new shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.clone import clone, shorten
from tests.machine import needs_two_cores
from tests.paths import ROOT
from tests.workflow.test_docs import blocks, commands, spans

README = ROOT / "README.md"
CLONE = ["git clone <address of this repository> scalewise", "cd scalewise"]
REPORT = "python workflow/scripts/cli.py report"

pytestmark = pytest.mark.contract


@needs_two_cores
@pytest.mark.starts_ranks
def test_its_commands_for_one_machine_run_in_their_order(tmp_path: Path) -> None:
    """What is replaced: the clone by a copy of its files, the installation by this Python's, repeats by 1."""
    own = commands(README)
    assert own[:2] == CLONE
    (cluster,) = (number for number, command in enumerate(own) if command == "make setup")
    assert any(command.startswith("snakemake ") for command in own[:cluster])
    assert REPORT in spans(README)
    folder = clone(tmp_path / "scalewise")
    shorten(folder / "config" / "experiments.yaml")
    (example,) = blocks(README, "yaml")
    # as written, but for its repeats
    (folder / "study.yaml").write_text(f"defaults: {{repeats: 1}}\n{example}", encoding="utf-8")
    script = "\n".join(["set -ex", *own[2:cluster], REPORT])
    shell = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    assert subprocess.run(["/bin/sh", "-c", "command -v snakemake"], env=shell, check=False).returncode != 0
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env=shell, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # the shipped study's, then that of study.yaml
    for experiment in ("digits-strong", "my-training"):
        answer = json.loads((folder / "results" / experiment / "answer.json").read_text(encoding="utf-8"))
        assert f"{experiment}: {answer['verdict']}" in done.stderr
    (answer,) = json.loads((folder / "results" / "decision.json").read_text(encoding="utf-8"))
    assert answer["experiment"] == "my-training"
    assert done.stdout.splitlines()[-1] == "Report on all runs: results/report.html"
