"""Experiments and runs of the built-in loop, as such."""

from __future__ import annotations

from scalewise.plan.config.experiment import Experiment
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.study import Study


def built_in(study: Study, name: str) -> Experiment:
    """An experiment of the built-in loop."""
    spec = study.experiments[name].experiment
    assert isinstance(spec, Experiment)
    return spec


def settings_of_loop(run: RunDefinition) -> Settings:
    """The settings of a run of the built-in loop."""
    assert isinstance(run.settings, Settings)
    return run.settings
