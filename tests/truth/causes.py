"""Rates at which causes are found and invented, over studies whose true causes are planted.

A study is drawn step by step and rank by rank, and goes the way of a measured one: each run's steps are
split, its row joins the table of runs, and that makes the scaling table and the causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from scalewise.analysis.causes import Cause, find_causes
from scalewise.analysis.steps import COMMUNICATION, COMPUTE, JITTER, LOADER, STRAGGLER, split
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.ranks.results.figures import waiting_seconds
from scalewise.records import Window

COUNTS = (1, 2, 4, 8, 16)
SLOW_RANK, SLOW_NODE = 5, "node1"
RANKS_OF_A_NODE = 4
STEPS = 40
STEP_SCATTER = 0.01
"""Standard deviation of a rank's computing from step to step, on a machine that nothing disturbs."""

SCATTERS = (0.01, 0.03, 0.1)
REPEATS = (3, 6, 10)
SHARE = 0.15
"""Share of the step that a planted cause takes on the most devices, where nothing else is said."""


@dataclass(frozen=True)
class Truth:
    """The planted causes of a study, as shares of the ideal step; on the most devices, or on all for jitter.

    Args:
        communication: Exposed exchange of gradients.
        loader: Wait for batches on every rank.
        compute: Computing beyond its ideal on every rank.
        jitter: Standard deviation of each rank's computing from step to step, a fraction.
        slow: Computing of the slow ranks beyond the others'.
        slow_ranks: ``rank``, always the same; ``random``, another in each run; ``node``, all ranks of a node
            in every run; ``guest``, all ranks of a node that takes part in half of the runs.
    """

    communication: float = 0.0
    loader: float = 0.0
    compute: float = 0.0
    jitter: float = 0.0
    slow: float = 0.0
    slow_ranks: str = "rank"


_OF_IDEAL = SHARE / (1 - SHARE)

FOUND: dict[str, tuple[Truth, Callable[[Cause], bool]]] = {
    "communication": (Truth(communication=_OF_IDEAL), lambda found: found.part == COMMUNICATION),
    "loader": (Truth(loader=_OF_IDEAL), lambda found: found.part == LOADER),
    "compute": (Truth(compute=_OF_IDEAL), lambda found: found.part == COMPUTE),
    "jitter of 15 % a step": (Truth(jitter=0.15), lambda found: found.part == JITTER),
    "one slow rank": (
        Truth(slow=_OF_IDEAL),
        lambda found: found.rank == SLOW_RANK,
    ),
    "a slow node": (
        Truth(slow=_OF_IDEAL, slow_ranks="node"),
        lambda found: found.host == SLOW_NODE and found.rank is None,
    ),
    "a slow node in half of the runs": (
        Truth(slow=_OF_IDEAL, slow_ranks="guest"),
        lambda found: found.host == SLOW_NODE and found.rank is None,
    ),
}
"""Planted causes, and what makes a bottleneck on the most devices the right one."""

FALSE: dict[str, tuple[Truth, Callable[[Cause], bool]]] = {
    "nothing lost": (Truth(), lambda _: True),
    "6 % communication": (Truth(communication=0.06), lambda _: True),
    "jitter of 10 % a step": (Truth(jitter=0.1), lambda found: found.part != JITTER),
    "jitter of 25 % a step": (Truth(jitter=0.25), lambda found: found.part != JITTER),
    "another slow rank in each run": (
        Truth(slow=2 * _OF_IDEAL, slow_ranks="random"),
        lambda found: found.part != STRAGGLER or found.host is not None,
    ),
}
"""Planted truths, and what makes a bottleneck anywhere a false one."""


def cause_rates(
    truths: Iterable[str],
    studies: int = 200,
    seed: int = 1,
    scatters: Sequence[float] = SCATTERS,
    repeats: Sequence[int] = REPEATS,
) -> pd.DataFrame:
    """Share of studies with a bottleneck that counts: on the most devices for ``FOUND``, else anywhere.

    Args:
        truths: Keys of ``FOUND`` or of ``FALSE``.
        scatters: Standard deviation of a run's computing, and of its exchange, from run to run.
        repeats: Number of runs at each device count.

    Returns:
        A row for each truth, scatter and number of runs, with the ``rate``.
    """
    rows = []
    for name, scatter, n in product(truths, scatters, repeats):
        truth, counts = (FOUND | FALSE)[name]
        generator = np.random.default_rng(seed)
        hits = 0
        for _ in range(studies):
            runs = planted_runs(truth, scatter, n, generator)
            named = [each for each in find_causes(runs, rows_of(runs)) if each.part]
            hits += any(counts(cause) for cause in named if name in FALSE or cause.devices == COUNTS[-1])
        rows.append({"truth": name, "scatter": scatter, "n": n, "studies": studies, "rate": hits / studies})
    return pd.DataFrame(rows)


def rows_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return what causes read of scaling.csv: the points of each series with its baseline."""
    points = runs[["series", "devices"]].drop_duplicates()
    return points.assign(baseline_devices=points.groupby("series")["devices"].transform("min"))


def planted_runs(
    truth: Truth, scatter: float, n: int, generator: np.random.Generator, counts: Sequence[int] = COUNTS
) -> pd.DataFrame:
    """The table of runs of a study whose losses are known.

    Args:
        scatter: Standard deviation of a run's computing, and of its exchange, from run to run.
    """
    return pd.DataFrame(
        [
            _run(truth, devices, repeat, scatter, generator, planted=devices == max(counts))
            for devices in counts
            for repeat in range(n)
        ]
    )


def _run(
    truth: Truth, devices: int, repeat: int, scatter: float, generator: np.random.Generator, *, planted: bool
) -> dict[str, Any]:
    ideal = 1 / devices
    hosts = [f"node{rank // RANKS_OF_A_NODE}" for rank in range(devices)]
    guest = truth.slow_ranks == "guest"
    if guest and repeat % 2:
        hosts = [host.replace(SLOW_NODE, "node9") for host in hosts]
    slow = np.zeros(devices)
    if planted and truth.slow:
        ranks = {
            "rank": [SLOW_RANK],
            "random": [int(generator.integers(devices))],
        }.get(truth.slow_ranks, [rank for rank, host in enumerate(hosts) if host == SLOW_NODE])
        slow[ranks] = truth.slow
    run_factor, exchange_factor = np.exp(scatter * generator.standard_normal(2))
    varying = max(truth.jitter, STEP_SCATTER) if devices > 1 else STEP_SCATTER
    own = np.exp(varying * generator.standard_normal((devices, STEPS)) - varying**2 / 2)
    beyond = (truth.compute if planted else 0.0) + slow
    compute = ideal * run_factor * (1 + beyond)[:, np.newaxis] * own
    loader = ideal * (truth.loader if planted else 0.0) * exchange_factor
    exchange = ideal * (truth.communication if planted and devices > 1 else 0.0) * exchange_factor
    last = compute.max(axis=0)
    steps = loader + last + exchange
    communication = [[float(each) for each in last - rank + exchange] for rank in compute]
    measured = Window(first_step=5, steps=STEPS, samples=STEPS, seconds=float(steps.sum()), warmup=False)
    table = pd.DataFrame(
        {
            "rank": range(devices),
            "host": hosts,
            "loader_wait_seconds": STEPS * loader,
            "communication_seconds_per_step": [float(np.mean(each)) for each in communication],
            "waiting_seconds_per_step": waiting_seconds(communication),
        }
    )
    return {
        "experiment": "planted",
        "series": NO_OPTIONS,
        "devices": devices,
        "nodes": len(set(hosts)),
        "hosts": ", ".join(dict.fromkeys(hosts)),
        "repeat": repeat + 1,
        "outcome": "completed",
        "loader": "workers",
        # no cause reads a speedup, whose tests would take most of the time
        "throughput_samples_per_second": None,
        **split([measured], table),
    }
