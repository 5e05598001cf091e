"""Laws are fitted with intervals that hold, and refused with the reason where runs do not carry them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from tests.unit.analysis.planted_tables import make_runs

from scalewise.analysis.conditions import leave_out
from scalewise.analysis.laws import Law, fit_laws, study_laws

SEEDS = 200
LEAST_SHARE = 0.90
"""With 95 % in truth, 180 or fewer of 200 come by in one study of 500."""

COUNTS = (1, 2, 4, 8, 16, 32)

Rate = Callable[[float], float]


def amdahl(serial: float) -> Rate:
    return lambda n: 1 / (serial + (1 - serial) / n)


def gustafson(serial: float) -> Rate:
    return lambda n: n - serial * (n - 1)


def usl(contention: float, coherency: float) -> Rate:
    return lambda n: n / (1 + contention * (n - 1) + coherency * n * (n - 1))


def measure(
    rate: Rate, counts: Sequence[int], *, repeats: int = 3, noise: float = 0.02, seed: int = 0
) -> dict[int, list[float]]:
    """Runs that some disturbance slows down: skewed, by ``noise`` on average; of even seeds lognormal."""
    generator = np.random.default_rng(seed)
    shape = (len(counts), repeats)
    slowed = (
        generator.lognormal(0, noise, shape) if seed % 2 == 0 else 1 + generator.exponential(noise, shape)
    )
    return {n: (1000 * rate(n) / row).tolist() for n, row in zip(counts, slowed, strict=True)}


def the(law: str, laws: Sequence[Law]) -> Law:
    return next(found for found in laws if found.law == law)


@pytest.mark.parametrize(
    ("law", "scaling", "rate", "counts", "truth"),
    [
        ("amdahl", "strong", amdahl(0.04), COUNTS[:4], {"serial_fraction": 0.04}),
        ("gustafson", "weak", gustafson(0.15), COUNTS[:4], {"serial_fraction": 0.15}),
        ("usl", "strong", usl(0.03, 0.0008), COUNTS,
         {"contention": 0.03, "coherency": 0.0008, "peak_devices": math.sqrt(0.97 / 0.0008)}),
    ],
)  # fmt: skip
def test_laws_recover_their_parameters_within_their_intervals(
    law: str, scaling: str, rate: Rate, counts: Sequence[int], truth: dict[str, float]
) -> None:
    covered = dict.fromkeys([*truth, "curve"], 0)
    for seed in range(SEEDS):
        found = the(law, fit_laws("plain", measure(rate, counts, seed=seed), scaling))
        if found.refused:
            continue  # counts as missed
        for name, value in truth.items():
            covered[name] += found.parameters[name].low <= value <= found.parameters[name].high
        end = found.curve[-1]
        covered["curve"] += end.low <= rate(counts[-1]) / rate(counts[0]) <= end.high
    shares = {name: count / SEEDS for name, count in covered.items()}
    assert min(shares.values()) >= LEAST_SHARE, f"{law} recovered in {shares} of {SEEDS} studies"


def test_a_baseline_of_two_devices_gives_the_law_of_one() -> None:
    found = the("amdahl", fit_laws("plain", measure(amdahl(0.1), (2, 4, 8, 16), noise=0.005), "strong"))
    assert found.parameters["serial_fraction"].estimate == pytest.approx(0.1, abs=0.01)
    assert found.parameters["single_device_rate"].estimate == pytest.approx(1000, rel=0.03)
    assert found.curve[0].devices == 2
    assert found.curve[0].speedup == pytest.approx(1.0)
    expected = amdahl(0.1)(16) / amdahl(0.1)(2)
    assert found.curve[-1].speedup == pytest.approx(expected, rel=0.03)


def test_the_drawn_curve_has_its_estimate_inside_its_band_and_never_beats_the_ideal() -> None:
    rates = measure(amdahl(0.0005), (1, 4, 16, 64), noise=0.05, seed=6)
    curve = the("amdahl", fit_laws("plain", rates, "strong")).curve
    assert {1, 4, 16, 64} <= {point.devices for point in curve}
    assert len(curve) > 20
    assert all(a.devices < b.devices for a, b in pairwise(curve))
    assert all(point.low <= point.speedup <= point.high <= point.devices * (1 + 1e-12) for point in curve)
    assert curve[-1].low < curve[-1].speedup
    assert curve[-1].high == pytest.approx(64)


def test_perfect_scaling_has_no_serial_part_and_no_peak() -> None:
    rates = measure(lambda n: n, (1, 2, 4, 8, 16, 32), noise=0.001, seed=4)
    laws = fit_laws("plain", rates, "strong")
    assert the("amdahl", laws).parameters["serial_fraction"].high < 0.002
    peak = the("usl", laws).parameters["peak_devices"]
    assert peak.high == math.inf
    assert peak.low > 32
    written = json.loads(json.dumps(the("usl", laws).as_dict(), allow_nan=False))
    assert written["parameters"]["peak_devices"]["high"] is None
    assert (written["series"], written["law"], written["confidence"]) == ("plain", "usl", 0.95)
    assert set(written["curve"][0]) == {"devices", "speedup", "low", "high"}


AMDAHL = measure(amdahl(0.05), (1, 2, 4, 8), noise=0.005)
LOST_ONE = {n: rates[:-1] if n == 2 else rates for n, rates in AMDAHL.items()}
DRIFTING = {n: [1000 * amdahl(0.05)(n) * jitter for jitter in (1, 1.00001, 1.00002)] for n in (1, 2, 4, 8)}
DRIFTING[4] = [1.002 * rate for rate in DRIFTING[4]]


@pytest.mark.parametrize(
    ("law", "rates", "words"),
    [
        ("amdahl", measure(amdahl(0.1), (1, 2)), "3 or more device counts; there are 2 (1, 2)"),
        ("gustafson", measure(amdahl(0.1), (1, 2)), "3 or more device counts; there are 2 (1, 2)"),
        ("usl", measure(usl(0.1, 0.01), (1, 2, 4, 8, 16)), "6 or more device counts; there are 5"),
        ("amdahl", AMDAHL | {4: [3000.0]}, "a single comparable run on 4 devices shows no spread"),
        ("amdahl", {n: rates[:2] for n, rates in AMDAHL.items()}, "2 runs of each device count show"),
        ("amdahl", AMDAHL | {8: [0.8 * rate for rate in AMDAHL[8]]}, "devices ran"),
        ("amdahl", measure(lambda n: n**1.1, (1, 2, 4, 8), noise=0.005), "would be below 0"),
        ("amdahl", measure(lambda n: n**-0.3, (1, 2, 4, 8), noise=0.005), "would be above 1"),
        ("amdahl", measure(amdahl(0.3), (1, 2, 3), noise=0.4, seed=2), "anywhere between"),
        ("amdahl", {n: rates for n, rates in AMDAHL.items() if n > 1}, "(1 device) has a throughput"),
        ("amdahl", LOST_ONE, ""),
        ("amdahl", DRIFTING, ""),
    ],
    ids=["two counts", "two counts, weak", "five counts", "a single run", "two runs of each",
         "a point off the law", "more than the devices", "it falls", "wide scatter", "no baseline",
         "one repeat of nine lost",
         "off by less than machines drift"],
)  # fmt: skip
def test_a_law_is_refused_with_the_reason_where_runs_do_not_carry_it(
    law: str, rates: dict[int, list[float]], words: str
) -> None:
    scaling = "weak" if law == "gustafson" else "strong"
    found = the(law, fit_laws("plain", rates, scaling, 1))
    assert words in found.refused
    assert bool(words) == bool(found.refused)
    assert bool(found.parameters) == bool(found.curve) == (not found.refused)


def test_repeats_without_any_scatter_are_fitted_in_any_order() -> None:
    rates = {n: [1000 * amdahl(0.1)(n)] * 3 for n in (1, 2, 4, 8, 16, 32)}
    laws = fit_laws("plain", rates, "strong")
    assert [law.refused for law in laws] == ["", ""]
    assert the("amdahl", laws).parameters["serial_fraction"].estimate == pytest.approx(0.1)
    assert the("usl", laws).parameters["contention"].estimate == pytest.approx(0.1)
    assert fit_laws("plain", {n: rates[n] for n in reversed(rates)}, "strong") == laws


def test_a_law_is_fitted_for_each_series_to_its_comparable_runs_only() -> None:
    clean = measure(amdahl(0.1), (1, 2, 4), noise=0.005)
    runs = make_runs(
        {
            **{("fast", n): [*rates, 10 * rates[0]] for n, rates in clean.items()},
            **{("slow", n): [rates[0], "failed", *rates[1:]] for n, rates in clean.items()},
        }
    )
    odd = (runs["series"] == "fast") & (runs["repeat"] == 4)
    runs["fingerprint"] = odd.map({True: "another", False: "usual"})
    lost = runs["outcome"] == "failed"
    runs.loc[lost, "throughput_samples_per_second"] = 1000.0  # of the epochs before it failed
    laws = study_laws(leave_out(runs), "strong")
    assert [(law.series, law.law) for law in laws] == [
        (series, law) for series in ("fast", "slow") for law in ("amdahl", "usl")
    ]
    assert laws[0] == the("amdahl", fit_laws("fast", clean, "strong"))
    assert laws[2].parameters["serial_fraction"].n == 9
