"""Studies as a user writes them, on sites of any kind, and the programs that a site's commands find."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stand_ins import system_programs
from tests.unit.plan.conftest import load, refuse, study_folder

__all__ = ["load", "programs", "refuse", "study_folder"]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of PATH: the system's programs, without Slurm's."""
    folder = system_programs(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("LOGNAME", "someone")
    return folder
