"""The version of the workflow that a result keeps."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scalewise.ranks.monitoring.environments import source_version


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """An entry script in a checkout with one commit."""
    folder = tmp_path / "checkout" / "workflow" / "scripts"
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text("print()\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "First")
    return script


def test_a_checkout_is_its_commit_whatever_its_tag_and_dirty_once_a_file_has_changed(script: Path) -> None:
    commit = git(script.parent, "rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert source_version(script.parent) == commit
    git(script.parent, "tag", "--annotate", "--message", "First", "v1.0")
    assert source_version(script.parent) == commit
    script.write_text("print('changed')\n")
    assert source_version(script.parent) == f"{commit}-dirty"


def test_a_folder_that_is_no_checkout_has_no_version(tmp_path: Path) -> None:
    assert source_version(tmp_path) == ""
