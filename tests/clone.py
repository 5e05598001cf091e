"""A clone of this checkout as it is now, for tests of what a new user does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.paths import ROOT


def clone(folder: Path) -> Path:
    """Copy the files that git has, and link the installed environment, as after `make setup`."""
    if not (Path(sys.prefix) / "bin" / "activate").exists():
        pytest.skip(f"{sys.prefix} is no virtual environment")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"{ROOT} is no git repository")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (venv := folder / ".venv").mkdir()
    for part in ("bin", "lib", "pyvenv.cfg"):
        (venv / part).symlink_to(Path(sys.prefix) / part)
    (venv / "run.installed").touch()
    return folder


def shorten(shipped: Path) -> None:
    """Make the shipped study short: one repeat of one series each.

    Args:
        shipped: Its configuration, config/experiments.yaml of a copy.
    """
    config = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    strong, transformer = config["experiments"].values()
    strong |= {"epochs": 2, "warmup_steps": 4, "repeats": 1}
    transformer |= {"model": "transformer-1M", "steps": 4, "repeats": 1}
    transformer["sweep"] = {"gradient_as_bucket_view": [False]}
    shipped.write_text(yaml.safe_dump(config), encoding="utf-8")
