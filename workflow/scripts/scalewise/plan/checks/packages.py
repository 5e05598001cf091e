"""Check that the packages are installed that only some keys need."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from scalewise.config.errors import Place, Problem
from scalewise.config.experiment import AnyExperiment

TENSORBOARD = "tensorboard"
"""The package that writes and shows event files, and the key that requires it."""


def check_packages(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse a key whose package is not installed, before a study has trained for hours.

    Args:
        place: The experiment's place.
        experiment: The experiment, with valid values.
    """
    if experiment.tensorboard and find_spec(TENSORBOARD) is None:
        yield Problem(
            (*place, TENSORBOARD),
            f"is true, but {TENSORBOARD}, the package that writes its files, is not installed here",
            f"Run `pip install {TENSORBOARD}`, or remove the key: given later, it reruns nothing.",
        )
