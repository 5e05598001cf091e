"""Training ends when the accuracy asked for has been held, and not before."""

from __future__ import annotations

import pytest

from scalewise.plan.config.settings import Settings
from scalewise.training.loop import is_accurate_enough


def settings(stop: float | None, patience: int = 1) -> Settings:
    return Settings(dataset="digits", model="linear", stop_at_accuracy=stop, stop_patience_epochs=patience)


@pytest.mark.parametrize(
    ("accuracies", "patience", "ends"),
    [
        pytest.param([0.5], 1, False, id="below"),
        pytest.param([0.5, 0.7], 1, True, id="just reached"),
        pytest.param([0.9], 2, False, id="too few epochs for the patience"),
        pytest.param([0.9, 0.8], 2, True, id="held"),
        pytest.param([0.9, 0.6, 0.9], 2, False, id="lost in between"),
        pytest.param([0.6, 0.7, 0.71, 0.9], 3, True, id="the last three"),
        pytest.param([0.9, 0.9, 0.6], 1, False, id="lost at the end"),
    ],
)
def test_the_accuracy_must_be_held_for_the_epochs_of_patience(
    accuracies: list[float], patience: int, ends: bool
) -> None:
    assert is_accurate_enough(accuracies, settings(0.7, patience)) is ends


def test_without_an_accuracy_to_stop_at_training_goes_on() -> None:
    assert not is_accurate_enough([1.0, 1.0], settings(None))
