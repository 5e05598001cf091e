"""A key whose package is not installed is refused before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.unit.plan.refusals import built_in

from scalewise.plan.study import Study, load_study

BOARD = built_in("tensorboard: true")


@pytest.fixture
def without_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which nobody can import it."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)


@pytest.mark.usefixtures("without_tensorboard")
def test_event_files_that_nobody_could_write_are_refused(
    refuse: Callable[[str], list[str]], study_file: Path
) -> None:
    (line,) = refuse(BOARD)
    assert line.startswith(f"{study_file}:8: experiments.digits.tensorboard is true")
    assert "`pip install tensorboard`" in line


@pytest.mark.usefixtures("without_tensorboard")
def test_an_environment_that_conda_makes_for_the_rule_needs_no_package_beside_snakemake(
    site_file: Path,
) -> None:
    assert load_study(yaml.safe_load(BOARD), (), site_file, conda_environments=True).runs


def test_event_files_are_no_part_of_any_definition(load: Callable[[str], Study]) -> None:
    with_them, without = load(BOARD), load(built_in("tensorboard: false"))
    of_both = [study.experiments["digits"] for study in (with_them, without)]
    assert with_them.runs == without.runs
    assert len({planned.analysis_definition for planned in of_both}) == 1
    assert len({planned.prediction_definition for planned in of_both}) == 1
    assert len({planned.rounds_definition for planned in of_both}) == 1
