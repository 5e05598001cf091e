"""The serial fraction is fitted with an interval that covers the truth, or not stated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scalewise.analysis.laws import serial_fraction


@pytest.mark.parametrize(
    ("scaling", "serial", "rate"),
    [
        ("strong", 0.04, lambda n: 1 / (0.04 + 0.96 / n)),
        ("strong", 0.0, lambda n: n),
        ("weak", 0.15, lambda n: n - 0.15 * (n - 1)),
    ],
    ids=["strong", "ideal", "weak"],
)
def test_the_interval_covers_the_planted_fraction(
    scaling: str, serial: float, rate: Callable[[float], float]
) -> None:
    covered = 0
    for seed in range(200):
        scatter = np.random.default_rng(seed).lognormal(0, 0.02, (4, 3))
        rates = {n: (1000 * rate(n) * row).tolist() for n, row in zip((1, 2, 4, 8), scatter, strict=True)}
        found = serial_fraction(rates, scaling)
        assert found is not None
        assert 0 <= found.low <= found.estimate <= found.high <= 1
        covered += found.low <= serial + 1e-9 and serial <= found.high
    # with 95 % in truth, 180 or fewer come by in one study of 500
    assert covered >= 180


@pytest.mark.parametrize(
    "rates",
    [{}, {1: [100.0] * 9, 2: [190.0] * 9}, {1: [99.0, 100.0], 2: [190.0, 191.0], 4: [370.0, 371.0], 8: []}],
    ids=["nothing", "two device counts", "two repeats"],
)
def test_too_few_device_counts_or_repeats_give_none(rates: dict[int, list[float]]) -> None:
    assert serial_fraction(rates, "strong") is None
