"""The losses of a point: the parts of its step that ideal scaling would not have, with their intervals.

Pure functions of tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

import pandas as pd

from scalewise.analysis.bottlenecks.time_parts import (
    COLUMNS,
    COMMUNICATION,
    COMPUTE,
    JITTER,
    LOADER,
    STRAGGLER,
)
from scalewise.analysis.statistics import CONFIDENCE, Interval, t_quantile, welch

NAMED_FROM = 0.1
"""Share of the step, or of a run's wall, from which on a loss is named."""

UNCERTAIN_FROM = 0.05
"""Share of the step by which two measurements of the communication must differ to be doubted."""

POINTS_AT_CONFIDENCE = 4
"""Points of a series beyond its baseline up to which each has an interval of 95 %. The more points, the more
chances of a false cause: beyond, intervals are as much wider as keeps it at one study in twenty."""

WAITS = (COMMUNICATION, LOADER, STRAGGLER, JITTER)
"""Causes for which a device waits."""


@dataclass(frozen=True)
class Loss:
    """The loss of a point to one cause, as a share of its step.

    Args:
        cause: A key of ``STEP_PARTS``, or ``all`` for the sum of them.
        share: Mean over the runs, with Welch's interval; its bounds are NaN where the runs are too few.
        median: The same by the medians over the runs.
        measured: True for a wait, which each run has measured by itself; the others are differences to the
            baseline's runs.
        in_efficiency: True for what the point loses beyond its baseline, and so what its efficiency lacks.
    """

    cause: str
    share: Interval
    median: float
    measured: bool
    in_efficiency: bool

    @property
    def is_large(self) -> bool:
        """True from ``NAMED_FROM`` on, by the mean and by the median, which one odd run does not move."""
        return min(self.share.estimate, self.median) >= NAMED_FROM

    @property
    def is_shown(self) -> bool:
        """True if the loss is large and its interval lies above 0.

        A wait that a single run has measured is shown for that run.
        """
        alone = self.measured and self.share.n == 1
        return self.is_large and (alone or self.share.low > 0)


@dataclass(frozen=True)
class PointLosses:
    """The losses of one point.

    Args:
        point: Row of a scaling table.
        runs: The point's runs whose steps are known.
        losses: Losses beyond the baseline's, one for each cause; empty for the baseline itself, and where no
            baseline is known.
        waits: Waits of its devices, whether the baseline waits alike or not.
        total: The sum of the losses, which is what the efficiency lacks; None where no baseline is known.
        parts: Share of the step that each of its parts takes, 0 to 1: means over the runs.
    """

    point: pd.Series
    runs: pd.DataFrame
    losses: list[Loss]
    waits: list[Loss]
    total: Loss | None
    parts: dict[str, float]

    def main(self) -> Loss | None:
        """The largest loss that is shown, or else the largest wait that is; None where neither is."""
        for losses in (self.losses, self.waits):
            shown = [loss for loss in losses if loss.is_shown]
            if shown:
                return max(shown, key=lambda loss: loss.share.estimate)
        return None


def waiting_shares(point: pd.Series) -> dict[str, float]:
    """Shares of a point's step that its devices waited, by cause; empty where the step's parts are unknown.

    Args:
        point: Row of a scaling table.
    """
    step = number(point, "step_seconds")
    seconds = {cause: number(point, COLUMNS[cause]) for cause in WAITS}
    if is_in_doubt(point):
        seconds[COMMUNICATION] = min(_communications(point))
    for cause in (JITTER, LOADER):
        # jitter that is not known is in the communication; a wait for data that is not known is in compute,
        # and nothing is said of it here
        if math.isnan(seconds[cause]):
            seconds[cause] = 0.0
    shares = {cause: value / step for cause, value in seconds.items()}
    return {} if any(map(math.isnan, shares.values())) else shares


def is_in_doubt(point: pd.Series) -> bool:
    """True if two measurements of a point's communication are far apart; False where one is not known.

    They are what DDP counted in the training, and what passes with an exchange take longer than passes
    without, after it. The passes may hold jitter or not. Both hold the exchange and may hold other waiting,
    so the lesser of the two counts.
    """
    counted, checked = _communications(point)
    jitter = number(point, "jitter_seconds")
    most = counted if math.isnan(jitter) else counted + jitter
    apart = max(counted - checked, checked - most)
    return apart > max(counted, checked) / 2 and apart > UNCERTAIN_FROM * number(point, "step_seconds")


def find_losses(scaling: pd.DataFrame, runs: pd.DataFrame, mode: str = "strong") -> Iterator[PointLosses]:
    """The losses of each point whose step is known in parts, series by series, fewest devices first.

    A step's ideal is the baseline's, divided by so many times the devices with strong scaling. What each part
    takes beyond its ideal is lost; the losses of a point sum to what its efficiency lacks.

    Args:
        scaling: Output of ``scaling_table``, or the rows of one series.
        runs: Output of ``collect``; every completed run counts, so they must be comparable.
        mode: ``strong`` or ``weak`` scaling.
    """
    done = runs.reindex(columns=[*runs.columns, *({*_READ} - {*runs.columns})])
    done = done[(done["outcome"] == "completed") & done[[*_NEEDED]].notna().all(axis=1)]
    for name, series in scaling.groupby("series", sort=False):
        of_series = done[done["series"] == name]
        beyond = int(series["devices"].isin(of_series["devices"]).sum()) - 1
        confidence = 1 - (1 - CONFIDENCE) * min(1.0, POINTS_AT_CONFIDENCE / max(beyond, 1))
        for _, point in series.sort_values("devices").iterrows():
            here = of_series[of_series["devices"] == point["devices"]]
            if len(here):
                yield _point_losses(point, here, of_series, mode, confidence)


_NEEDED = ("step_seconds", "compute_seconds", "communication_seconds", "straggler_seconds")
_READ = (*_NEEDED, "loader_seconds", "jitter_seconds", "crosscheck_communication_seconds")


def _point_losses(
    point: pd.Series, here: pd.DataFrame, of_series: pd.DataFrame, mode: str, confidence: float
) -> PointLosses:
    base = number(point, "baseline_devices")
    at_base = of_series[of_series["devices"] == base]
    is_base = point["devices"] == base
    ratio = float(point["devices"]) / base if mode == "strong" and len(at_base) else 1.0
    doubted = is_in_doubt(point)
    # the wait for data is in compute where it is not known: of all runs, then, as it cannot be parted
    together = bool(here["loader_seconds"].isna().any() or at_base["loader_seconds"].isna().any())
    causes = [cause for cause in COLUMNS if not (together and cause == LOADER)]
    parts = {cause: _seconds(here, cause, doubted, with_loader=together) for cause in causes}
    step = _seconds(here, "all", doubted)

    def loss(cause: str, seconds: Sequence[float], *, beyond: bool) -> Loss:
        ideal = _seconds(at_base, cause, False, with_loader=together) if beyond else [0.0]
        share = difference_of_means(seconds, ideal, 1 / ratio, confidence).scaled(1 / fmean(step))
        by_medians = (median(seconds) - median(ideal) / ratio) / median(step)
        return Loss(cause, share, by_medians, measured=cause in WAITS, in_efficiency=beyond)

    shares = {cause: fmean(seconds) / fmean(step) for cause, seconds in parts.items()}
    waits = [loss(cause, parts[cause], beyond=False) for cause in causes if cause in WAITS]
    if is_base or at_base.empty:
        return PointLosses(point, here, [], waits, None, shares)
    losses = [loss(cause, seconds, beyond=True) for cause, seconds in parts.items()]
    return PointLosses(point, here, losses, waits, loss("all", step, beyond=True), shares)


def _seconds(runs: pd.DataFrame, cause: str, doubted: bool, *, with_loader: bool = False) -> list[float]:
    """Seconds of a part of the step in each run, or of the whole step; compute may hold the wait for data."""
    if cause == "all":
        return [float(seconds) for seconds in runs["step_seconds"]]
    # jitter that is not known is in the communication
    seconds = runs[COLUMNS[cause]].astype(float).fillna(0.0)
    if cause == COMPUTE and with_loader:
        seconds = seconds + runs["loader_seconds"].astype(float).fillna(0.0)
    if cause == COMMUNICATION and doubted:
        checked = runs["crosscheck_communication_seconds"].astype(float)
        seconds = seconds.clip(upper=checked.fillna(math.inf))
    return [float(each) for each in seconds]


def difference_of_means(
    sample: Sequence[float], reference: Sequence[float], factor: float = 1.0, confidence: float = CONFIDENCE
) -> Interval:
    """The mean of a sample less a multiple of another's, with Welch's interval (Biometrika 34, 1947).

    Neither equal scatter nor equal size is assumed, but that means of the runs are about normal. A reference
    of zeros is known, however few they are: it is what one device waits for others.

    Args:
        sample: One value for each run.
        reference: One value for each run.
        factor: Multiple of the reference, positive.
        confidence: Probability that the interval covers the true difference.

    Returns:
        The interval; its bounds are NaN where a sample of one leaves its scatter unknown.
    """
    estimate = fmean(sample) - factor * fmean(reference)
    unknown = len(sample) == 1 or (len(reference) == 1 and any(reference))
    if unknown:
        return Interval(estimate, math.nan, math.nan, len(sample))
    parts = [(variance(sample) / len(sample), len(sample) - 1)]
    if any(reference):
        parts.append((factor**2 * variance(reference) / len(reference), len(reference) - 1))
    error, freedom = welch(parts)
    half = t_quantile(freedom, confidence) * error
    fewest = min(len(sample), len(reference)) if any(reference) else len(sample)
    return Interval(estimate, estimate - half, estimate + half, fewest)


def _communications(point: pd.Series) -> tuple[float, float]:
    """Seconds of a step, as DDP counted them and as passes after the training tell."""
    return number(point, "communication_seconds"), number(point, "crosscheck_communication_seconds")


def number(point: pd.Series, column: str) -> float:
    """The value of a column; NaN where a hand-made table does not know it."""
    value = point.get(column)
    return math.nan if value is None else float(value)
