"""The rank or host that is slow in a point's runs, where it is the same one more often than chance has it.

In every run some rank is the slowest. With 4 ranks the same one is it in all of 3 runs by chance in one
study of 16, so that rank is named only where chance would hardly do it. Pure functions of tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
from scipy.stats import binom

from scalewise.analysis.statistics import Sample, ratio_of

CHANCE = 0.05
"""Most that chance may do of what is said of a rank or host, over all points that are judged together."""


@dataclass(frozen=True)
class SlowPlace:
    """A rank or host that is the slowest in a point's runs more often than any other.

    Args:
        rank: The rank; None where a whole host is meant.
        host: The host; None where the rank was on several.
        hits: Number of runs in which it was the slowest.
        taken: Number of runs that it took part in.
        chance: Probability that some rank, or host, is the slowest so often where each is equally likely.
        runs: The runs that it took part in.
    """

    rank: int | None
    host: str | None
    hits: int
    taken: int
    chance: float
    runs: pd.DataFrame


def find_slow_place(runs: pd.DataFrame, judged: int = 1) -> SlowPlace | None:
    """The slow host of a point, its slow rank, or None where chance may have picked them.

    Args:
        runs: Completed runs of one point.
        judged: Number of points among which a slow one is looked for: the more, the more chance finds.
    """
    limit = CHANCE / judged
    hosts = list(_hosts(runs, "slow_host"))
    ranks = most_frequent_rank(runs)
    always = list(_hosts(runs, "slowest_host"))
    for places in (hosts, [ranks] if ranks is not None else [], always):
        likely = [place for place in places if place.chance <= limit]
        if likely:
            return min(likely, key=lambda place: place.chance)
    return None


def most_frequent_rank(runs: pd.DataFrame) -> SlowPlace | None:
    """The rank that is the slowest in most of a point's runs, with the chance of that; None if none is known.

    Args:
        runs: Completed runs of one point.
    """
    known = runs.reindex(columns=["devices", "slowest_rank", "slowest_host"]).dropna()
    if known.empty:
        return None
    devices = int(known["devices"].iloc[0])
    counts = known["slowest_rank"].value_counts()
    rank, hits = counts.index[0], int(counts.iloc[0])
    its = known[known["slowest_rank"] == rank]["slowest_host"]
    host = str(its.iloc[0]) if its.nunique() == 1 else None
    chance = _some_is_hit(devices, 1 / devices, hits, len(known))
    return SlowPlace(int(rank), host, hits, len(known), chance, runs.loc[known.index])


def _hosts(runs: pd.DataFrame, column: str) -> Iterator[SlowPlace]:
    """Every host that was the slow one in some run, by the column that tells it."""
    read = runs.reindex(columns=["devices", "nodes", "hosts", "step_seconds", "slowest_host", column])
    known = read.loc[:, ~read.columns.duplicated()].dropna(subset=["slowest_host", "nodes"])
    known = known[known["nodes"] > 1]
    if known.empty:
        return
    devices, nodes = int(known["devices"].iloc[0]), int(known["nodes"].max())
    each = max(devices // nodes, 1)
    # all ranks of a host lie behind all others in one order of many, the slowest is one of its ranks in more
    single = 1 / math.comb(devices, each) if column == "slow_host" else each / devices
    taking_part = [_named_hosts(run) for _, run in known.iterrows()]
    candidates = set().union(*taking_part)
    for host in sorted(set(known[column].dropna())):
        with_it = pd.Series([host in names or not names for names in taking_part], index=known.index)
        its = known[with_it]
        hits = int((its[column] == host).sum())
        count = max(len(candidates), nodes)
        chance = _some_is_hit(count, single, hits, len(its))
        if len(its) < len(known) and hits == len(its):
            chance = min(chance * _slower_with(its, known[~with_it]), 1.0)
        yield SlowPlace(None, str(host), hits, len(its), chance, runs.loc[its.index])


def _named_hosts(run: pd.Series) -> set[str]:
    """The hosts of a run; empty where they are not known."""
    return {name.strip() for name in run["hosts"].split(",")} if isinstance(run["hosts"], str) else set()


def _slower_with(its: pd.DataFrame, others: pd.DataFrame) -> float:
    """The p value that steps are longer where a host takes part.

    Which host is the slowest within a run, and how long the run's steps are among other runs', are
    independent where chance rules: the two chances multiply.
    """
    rates, than = (
        Sample.of(1 / float(seconds) for seconds in table["step_seconds"].dropna()) for table in (others, its)
    )
    ratio = ratio_of(rates, than)
    return 1.0 if ratio is None or ratio.assumed else ratio.p_above()


def _some_is_hit(places: int, single: float, hits: int, runs: int) -> float:
    """Probability, at most, that some of equally likely places is hit so often.

    Were it hit in all runs, this is ``places ** (1 - runs)``.

    Args:
        places: Number of ranks, or of hosts.
        single: Probability that a given place is hit in a run.
        hits: Number of runs in which one place was hit.
        runs: Number of runs.
    """
    return min(places * float(binom.sf(hits - 1, runs, single)), 1.0)
