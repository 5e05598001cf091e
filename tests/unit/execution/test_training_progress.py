"""Progress is told in what ends the training: its epochs, its steps, or steps alone where nobody knows."""

from __future__ import annotations

import pytest

from scalewise.execution.messages import Progress


@pytest.mark.parametrize(
    ("progress", "text", "fraction"),
    [
        pytest.param(Progress(epoch=3, epochs=4, step=30), "epoch 3/4", None, id="epochs of unknown length"),
        pytest.param(
            Progress(epoch=1, epochs=4, step=19, steps_per_epoch=10), "epoch 1/4", 0.475, id="within an epoch"
        ),
        pytest.param(Progress(epoch=3, epochs=4, step=30, steps=40), "step 30/40", 0.75, id="steps"),
        pytest.param(Progress(epoch=0, epochs=0, step=30), "step 30", None, id="a program to its own end"),
        pytest.param(Progress(epoch=0, epochs=0, step=30, steps=120), "step 30/120", 0.25, id="a program"),
    ],
)
def test_progress_is_told_in_what_ends_the_training(
    progress: Progress, text: str, fraction: float | None
) -> None:
    assert (str(progress), progress.fraction) == (text, fraction)


def test_a_progress_that_an_older_version_told_is_read() -> None:
    assert str(Progress.model_validate_json('{"epoch": 1, "epochs": 2, "step": 7}')) == "epoch 1/2"
