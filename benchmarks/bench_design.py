"""Compare studies that choose their device counts with full grids, on the measurements of others.

Every series of a table is studied by every criterion, in two ways: all counts with repeats until the decision
is clear (the full grid), and counts that are chosen round by round. The criteria are

- an efficiency of 0.5, 0.7 and 0.8 at least; runs are ended by ``steps``, as many as take two minutes on the
  fewest devices;
- a deadline that the middle one of the counts keeps with 5 % to spare, and as many device-hours; runs are
  whole, of as many samples as these steps have on that count.

    python benchmarks/run.py design
    python benchmarks/run.py design --table speeds.csv --json figures.json
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from .measure import Row
from .replayed_studies import (
    REPEATS,
    T4_STEPS,
    V100_REPEATS,
    Replay,
    ReplayedSeries,
    play,
    published_scatter,
    read_series,
)

EFFICIENCIES = (0.5, 0.7, 0.8)
DEADLINE, DEVICE_HOURS = "deadline", "device-hours"
OF_WHOLE_RUNS = (DEADLINE, DEVICE_HOURS)
CRITERIA = (*(f"efficiency {least}" for least in EFFICIENCIES), *OF_WHOLE_RUNS)
SPARE = 1.05
"""Limit over the published length or cost of a run on the middle count: a bound of the next run that six
repeats carry lies 1 to 2 % above it."""
BASE_SECONDS = 120.0
"""Length of a run on the fewest devices."""
AS_PUBLISHED = None
SCATTERS = (0.01, AS_PUBLISHED, 0.03)
"""Standard deviations of the logarithm of a run's speed; that of published repeats is 0.3 to 0.6 %."""
TARGET_SCATTER = 0.01
MOST_HOURS, MOST_OTHER = 0.10, 0.03
ALL = "all criteria"
LOSS = 1.05
"""Ratio from which on another answer is a worse one."""
MOST_SERIES: int | None = None
SMALL = {"CRITERIA": CRITERIA[:1], "MOST_SERIES": 2, "SCATTERS": SCATTERS[:1]}
SEED = 20261128


Case = tuple[float | None, str, ReplayedSeries]
"""A scatter, a criterion and a training."""


@dataclass(frozen=True)
class Compared:
    """A case, studied in both ways.

    Args:
        scatter: Of a run's speed; None as published.
        full: The answer of the full grid; None if no count meets the criteria.
        chosen: The answer from the counts that were chosen.
        is_worse: Whether that is slower by 5 % or more; with a deadline, whether it costs so much more.
        hours: Device-hours of the chosen counts.
        full_hours: Those of the full grid.
        counts: Number of device counts.
        measured: Number of them that were measured.
        clear: Whether the answer says that it is clear.
    """

    table: str
    series: str
    criterion: str
    scatter: float | None
    full: int | None
    chosen: int | None
    is_worse: bool
    hours: float
    full_hours: float
    counts: int
    measured: int
    rounds: int
    clear: bool


def rows(table: Path | None = None, figures: Path | None = None) -> list[Row]:
    """Compare chosen device counts with full grids.

    Args:
        table: Published speeds; by default the tables in ``benchmarks/published``.
        figures: JSON file to write.
    """
    paths = (T4_STEPS, V100_REPEATS) if table is None else (table,)
    series = [each for path in paths for each in read_series(path)][:MOST_SERIES]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        cases = list(pool.map(study, product(SCATTERS, CRITERIA, series), chunksize=4))
    if figures is not None:
        summaries = {name: _summary(some) for name, some in _groups(cases).items()}
        found = {"summary": summaries, "cases": [asdict(each) for each in cases]}
        figures.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return [_row(name, some, judged=table is None) for name, some in _groups(cases).items()]


def study(case: Case) -> Compared:
    """Study a case in both ways."""
    scatter, criterion, series = case
    replay = replay_of(case)
    full, chosen = play(replay, chosen=False), play(replay, chosen=True)
    worse = full.devices != chosen.devices
    if full.devices is not None and chosen.devices is not None:
        loss = series.true_speed(full.devices) / series.true_speed(chosen.devices)
        if criterion == DEADLINE:
            loss *= chosen.devices / full.devices
        worse = loss >= LOSS
    return Compared(
        table=series.table,
        series=series.name,
        criterion=criterion,
        scatter=scatter,
        full=full.devices,
        chosen=chosen.devices,
        is_worse=worse,
        hours=chosen.device_hours,
        full_hours=full.device_hours,
        counts=len(series.counts),
        measured=sum(n > 0 for n in chosen.repeats.values()),
        rounds=chosen.rounds,
        clear=chosen.clear,
    )


def replay_of(case: Case) -> Replay:
    """Return the study of a case, the noise of all its possible runs drawn."""
    scatter, criterion, series = case
    middle, base = series.counts[len(series.counts) // 2], series.counts[0]
    steps = max(round(BASE_SECONDS * series.true_speed(base) / series.step_samples(base)), 1)
    samples = steps * series.step_samples(middle)
    minutes = SPARE * samples / series.true_speed(middle) / 60
    decision = {
        DEADLINE: {"deadline_minutes": minutes},
        DEVICE_HOURS: {"max_device_hours": middle * minutes / 60},
    }.get(criterion) or {"min_efficiency": float(criterion.split()[-1])}
    speeds, most = {}, REPEATS["max"]
    for devices, shape in series.shapes.items():
        published = series.speeds[devices]
        if scatter is AS_PUBLISHED and len(published) >= most:
            speeds[devices] = list(published[:most])
            continue
        # a generator for each point: one more count in a table leaves the noise of the others alone
        point = f"{criterion} {series.table} {series.name} {devices}".encode()
        noise = np.random.default_rng([SEED, *point]).standard_normal(most)
        share = scatter or published_scatter()[devices == 1, shape.nodes == 1]
        speeds[devices] = (series.true_speed(devices) * np.exp(share * noise)).tolist()
    return Replay(series, decision, speeds, None if criterion in OF_WHOLE_RUNS else steps, samples)


def _summary(cases: Sequence[Compared]) -> dict[str, Any]:
    other = sum(each.chosen != each.full for each in cases)
    worse = sum(each.is_worse for each in cases)
    return {
        "scatter": cases[0].scatter,
        "cases": len(cases),
        "hours_share": sum(each.hours for each in cases) / sum(each.full_hours for each in cases),
        "mean_hours_share": fmean(each.hours / each.full_hours for each in cases),
        "other_answers": other,
        "other_answers_share": other / len(cases),
        "worse_answers": worse,
        "worse_answers_share": worse / len(cases),
        "mean_rounds": fmean(each.rounds for each in cases),
        "mean_measured": fmean(each.measured for each in cases),
        "mean_counts": fmean(each.counts for each in cases),
        "clear_share": fmean(each.clear for each in cases),
    }


def _groups(cases: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Return the cases of each line of the table: all, all of an efficiency, then by criterion."""
    found = {}
    for scatter in SCATTERS:
        text = "as published" if scatter is AS_PUBLISHED else f"{scatter:.0%}"
        same = [each for each in cases if each.scatter == scatter]
        found[f"scatter {text}, {ALL}"] = same
        found[f"scatter {text}, efficiencies"] = [e for e in same if e.criterion not in OF_WHOLE_RUNS]
        for criterion in CRITERIA:
            found[f"scatter {text}, {criterion}"] = [each for each in same if each.criterion == criterion]
    return found


def _row(name: str, cases: Sequence[Compared], *, judged: bool) -> Row:
    found = _summary(cases)
    is_target = judged and name == f"scatter {TARGET_SCATTER:.0%}, {ALL}"
    return Row(
        what=f"design: {name}",
        ours="{hours_share:.1%} of the grid's hours (mean of the cases {mean_hours_share:.1%})".format(
            **found
        ),
        reference="{other_answers} of {cases} answers are others ({other_answers_share:.1%}), "
        "{worse_answers} worse by 5 % or more".format(**found),
        ratio="{mean_rounds:.1f} rounds, {mean_measured:.1f} of {mean_counts:.1f} counts measured".format(
            **found
        ),
        n=len(cases),
        target=f"at most {MOST_HOURS:.0%} of the hours, {MOST_OTHER:.0%} other answers" if is_target else "",
        met=not is_target
        or (found["hours_share"] <= MOST_HOURS and found["other_answers_share"] <= MOST_OTHER),
    )
