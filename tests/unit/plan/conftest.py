"""Studies as a user writes them: text in a file, on a site whose facts are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.plan.refusals import Desk

from scalewise.plan.planned_study import Study

Load = Callable[..., Study]
"""Takes the text of a study, and of a site if it is not ``MACHINES["cpus"]``."""

Refuse = Callable[..., list[str]]
"""Takes the same, and returns the lines of the error."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


@pytest.fixture
def load(desk: Desk) -> Load:
    return desk.plan


@pytest.fixture
def refuse(desk: Desk) -> Refuse:
    return desk.refuse
