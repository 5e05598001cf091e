"""Possible speeds of the device counts of a series, given those that were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, variance

import numpy as np
from scipy.special import stdtrit

from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.decision.walk import Array
from scalewise.analysis.rounds.likely_answers import RunTimes
from scalewise.analysis.rounds.overhead_model import MeasuredSpeed, OverheadModel
from scalewise.analysis.statistics import CONFIDENCE
from scalewise.plan.config.experiment import Repeats

DRAWS = 4000
SEED = 1
PRIOR_SCATTER, PRIOR_FREEDOM = 0.02, 2.0
"""Standard deviation of the logarithm of a run's speed before repeats are known, worth so many of them:
published repeats scatter by 0.3 to 0.6 %, processes on a busy machine by up to 10 %."""


@dataclass(frozen=True)
class Candidate:
    """A device count that may be measured.

    Args:
        devices: Devices of a run.
        nodes: Nodes that they fill.
        billed: Devices that are paid.
        samples: Samples of one optimizer step.
        queue_minutes: Usual wait.
    """

    devices: int
    nodes: int
    billed: float
    samples: int
    queue_minutes: float = 0.0


@dataclass(frozen=True)
class SeriesSoFar:
    """A series with what was measured of it.

    Args:
        series: Name of the series.
        candidates: Counts that may be the answer, fewest devices first.
        asked: Devices -> repeats that were asked for or found.
        speeds: Devices -> speed of each completed run.
        train_seconds: Devices -> seconds of training of each of these.
        other_seconds: Devices -> seconds of each run beside its training: start-up and evaluation.
        decision: Decision on the measured points alone.
        ended_by_steps: A run trains a number of steps, and not a number of samples.
    """

    series: str
    candidates: Sequence[Candidate]
    asked: Mapping[int, int]
    speeds: Mapping[int, Sequence[float]]
    train_seconds: Mapping[int, Sequence[float]]
    other_seconds: Mapping[int, Sequence[float]]
    decision: Decision
    ended_by_steps: bool

    @property
    def possible(self) -> list[Candidate]:
        """Candidates but those that were tried and gave no speed; the fewest devices stay the baseline."""
        return [
            each
            for place, each in enumerate(self.candidates)
            if place == 0 or self.speeds.get(each.devices) or not self.asked.get(each.devices)
        ]

    @property
    def base(self) -> int | None:
        """Devices of the baseline; None where no count can be trained."""
        return self.candidates[0].devices if self.candidates else None


@dataclass(frozen=True)
class PossibleSpeeds:
    """Equally probable speeds of all candidates of a series.

    Args:
        model: The model before anything was measured, of the candidates.
        measured: Speeds of the measured counts, by their place among the candidates.
        scatter: Standard deviation of the logarithm of a run's speed, and its degrees of freedom.
        log_speeds: Logarithms of the speeds; shape (draws, counts).
        times: Lengths of whole runs.
    """

    model: OverheadModel
    measured: Mapping[int, MeasuredSpeed]
    scatter: tuple[float, float]
    log_speeds: Array
    times: RunTimes

    @classmethod
    def of(
        cls, series: SeriesSoFar, scaling: str, repeats: Repeats, seed: int = SEED
    ) -> PossibleSpeeds | None:
        """Draw the speeds; None of a series whose baseline has no speed.

        Args:
            series: The measurements so far.
            scaling: ``strong`` or ``weak``.
            repeats: Fewest repeats of what the answer rests on.
            seed: Seed of the draws.
        """
        candidates = series.possible
        if not candidates or not series.speeds.get(candidates[0].devices):
            return None
        series = replace(series, candidates=candidates)
        counts = [each.devices for each in candidates]
        model = OverheadModel.before_measuring(counts, [each.nodes for each in candidates], scaling)
        known = {index: speeds for index, each in enumerate(counts) if (speeds := series.speeds.get(each))}
        measured = {
            index: MeasuredSpeed(fmean(map(math.log, speeds)), len(speeds)) for index, speeds in known.items()
        }
        scatter, freedom = _scatter(list(known.values()))
        log_speeds = model.log_speeds(measured, scatter, freedom, np.random.default_rng(seed), DRAWS)
        times = _run_times(series, scatter, repeats.min)
        return cls(model, measured, (scatter, freedom), log_speeds, times)


def _scatter(samples: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Standard deviation of the logarithm of a run's speed over all points, and its degrees of freedom."""
    squares = sum(
        variance([math.log(value) for value in each]) * (len(each) - 1) for each in samples if len(each) > 1
    )
    freedom = sum(len(each) - 1 for each in samples)
    whole = PRIOR_FREEDOM + freedom
    return math.sqrt((PRIOR_FREEDOM * PRIOR_SCATTER**2 + squares) / whole), whole


def _run_times(series: SeriesSoFar, scatter: float, repeats: int) -> RunTimes:
    """The length of a run on each candidate, by those that were made.

    Args:
        series: The measurements so far.
        scatter: Standard deviation of the logarithm of one run's speed.
        repeats: Runs that the answer is going to rest on.
    """
    base = series.candidates[0]
    speeds, trained = series.speeds[base.devices], series.train_seconds.get(base.devices, ())
    work = median(rate * seconds for rate, seconds in zip(speeds, trained, strict=True)) if trained else 0.0
    others = [seconds for each in series.other_seconds.values() for seconds in each]
    scale = [each.samples / base.samples if series.ended_by_steps else 1.0 for each in series.candidates]
    # as ``next_value_bound`` will see it
    reach = float(stdtrit(repeats - 1, CONFIDENCE)) * math.sqrt(1 + 1 / repeats)
    return RunTimes(
        fixed_seconds=median(others) if others else 0.0,
        work=np.array(scale) * work,
        billed=np.array([each.billed for each in series.candidates]),
        queue_seconds=60 * np.array([each.queue_minutes for each in series.candidates]),
        next_over_median=math.exp(reach * scatter),
    )
