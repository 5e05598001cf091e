"""The serial fraction is fitted with an interval that covers the truth, or not stated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from scalewise.analysis.laws import serial_fraction

SEEDS = 200
LEAST_SHARE = 0.90
"""With 95 % in truth, 180 or fewer of 200 come by in one study of 500."""

Rate = Callable[[float], float]

LAWS: dict[str, Callable[[float], Rate]] = {
    "strong": lambda serial: lambda n: 1 / (serial + (1 - serial) / n),
    "weak": lambda serial: lambda n: n - serial * (n - 1),
}


def measured(rate: Rate, counts: Sequence[int], seed: int, repeats: int = 3) -> dict[int, list[float]]:
    scatter = np.random.default_rng(seed).lognormal(0, 0.02, (len(counts), repeats))
    return {n: (1000 * rate(n) * row).tolist() for n, row in zip(counts, scatter, strict=True)}


@pytest.mark.parametrize("counts", [(1, 2, 4, 8), (2, 4, 16)], ids=str)
@pytest.mark.parametrize(("scaling", "serial"), [("strong", 0.04), ("weak", 0.15), ("strong", 0.0)])
def test_the_interval_covers_the_planted_fraction(
    scaling: str, serial: float, counts: tuple[int, ...]
) -> None:
    covered = 0
    for seed in range(SEEDS):
        found = serial_fraction(measured(LAWS[scaling](serial), counts, seed), scaling)
        assert found is not None
        assert found.n == 3 * len(counts)
        assert 0 <= found.low <= found.estimate <= found.high <= 1
        covered += found.low <= serial + 1e-9 and serial <= found.high
    assert covered >= LEAST_SHARE * SEEDS


@pytest.mark.parametrize(
    "rates",
    [{}, {1: [100.0] * 9, 2: [190.0] * 9}, {1: [99.0, 100.0], 2: [190.0, 191.0], 4: [370.0, 371.0], 8: []}],
    ids=["nothing", "two device counts", "two repeats"],
)
def test_too_few_device_counts_or_repeats_give_none(rates: dict[int, list[float]]) -> None:
    assert serial_fraction(rates, "strong") is None
