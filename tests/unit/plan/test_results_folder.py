"""A results folder that the user cannot write to is refused before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Imports first, then gives up root where there is one: permissions do not bind it.
CHECK_AS_ANOTHER_USER = """\
import os, sys
from pathlib import Path
from scalewise.plan.config.errors import StudyError
from scalewise.plan.study import check_results_folder
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    check_results_folder(Path("results"))
except StudyError as error:
    sys.exit(error.lines[0])
"""


def check_results_as_another_user(folder: Path) -> str:
    """What stops a user who does not own the folder; empty where nothing does."""
    scripts = Path(__file__).parents[3] / "workflow" / "scripts"
    ended = subprocess.run(
        [sys.executable, "-c", CHECK_AS_ANOTHER_USER],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(scripts)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == bool(ended.stderr), ended.stderr
    return ended.stderr.strip()


@pytest.mark.parametrize("existing", ["results", "."])
@pytest.mark.refuses("names: output folder unwritable")
def test_an_unwritable_results_folder_is_refused(
    existing: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = tmp_path / existing
    folder.mkdir(exist_ok=True)
    tmp_path.chmod(0o755)
    folder.chmod(0o555)
    try:
        refusal = check_results_as_another_user(tmp_path)
    finally:
        folder.chmod(0o755)

    assert refusal == f"{folder}: cannot be written to. Change its permissions, or run elsewhere."
    record_property("message", refusal.replace(f"{folder}", existing))


def test_a_writable_results_folder_passes(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)

    assert check_results_as_another_user(tmp_path) == ""
