"""Studies as a user writes them: text in a file, on a site whose facts are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.unit.plan.refusals import MACHINES

from scalewise.plan.config.errors import StudyError
from scalewise.plan.study import Study, check_spelling, load_study

Load = Callable[[str], Study]
Refuse = Callable[[str], list[str]]


def plan(path: Path, site_file: Path) -> Study:
    """What the Snakefile does with a configuration."""
    check_spelling(path)
    return load_study(yaml.safe_load(path.read_text(encoding="utf-8")), [path], site_file)


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    return tmp_path / "study.yaml"


@pytest.fixture
def site_file(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(MACHINES["cpus"], encoding="utf-8")
    return path


@pytest.fixture
def load(study_file: Path, site_file: Path) -> Load:
    """The study of a text."""

    def load_text(text: str) -> Study:
        study_file.write_text(text, encoding="utf-8")
        return plan(study_file, site_file)

    return load_text


@pytest.fixture
def refuse(study_file: Path, site_file: Path) -> Refuse:
    """The lines of the error that a text ends in."""

    def refuse_text(text: str) -> list[str]:
        study_file.write_text(text, encoding="utf-8")
        with pytest.raises(StudyError) as refused:
            plan(study_file, site_file)
        return refused.value.lines

    return refuse_text
