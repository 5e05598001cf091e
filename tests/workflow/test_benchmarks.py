"""Each benchmark that a page names runs, made small: no figure of it is looked at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.paths import ROOT
from tests.workflow.test_docs import DOCUMENTS

OFFLINE = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "url./nothing/.insteadOf",
    "GIT_CONFIG_VALUE_0": "https://github.com/",
}
"""GitHub is not asked."""
MINUTES = {"gpu", "gpu-wide-resnet", "gpu-resnet18", "gpu-transformer"}
"""Benchmarks that take minutes on a CPU."""
NOT_MEASURED = {
    "allocation": "needs sbatch, and SBATCH_ACCOUNT and SBATCH_PARTITION",
    "own-scripts": "not run: ",
}
"""What a benchmark says that lacks something here."""


def named() -> set[str]:
    """Benchmarks in the commands of all documents."""
    texts = (path.read_text(encoding="utf-8") for path in DOCUMENTS)
    return {name for text in texts for name in re.findall(r"benchmarks/run\.py ([a-z0-9-]+)", text)}


@pytest.mark.parametrize("name", sorted(named() - MINUTES))
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), name, "--small"]
    outside = {key: value for key, value in os.environ.items() if not key.startswith("SBATCH_")} | OFFLINE
    done = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # without the headings and the line below them
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert rows, done.stdout
    if name in NOT_MEASURED:
        assert all(NOT_MEASURED[name] in row for row in rows)
    else:
        # n is the last column but one
        assert all(int(row.split("|")[-3].replace(",", "")) >= 1 for row in rows), done.stdout


def test_without_a_gpu_everything_for_one_says_so() -> None:
    command = [sys.executable, "-m", "benchmarks.on_gpu"]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 tests run" in done.stdout
