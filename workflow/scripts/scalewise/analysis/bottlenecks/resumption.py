"""Resumed runs, and the figures that they are left out of. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from scalewise.plan.formatting import MAX_PLACES, pluralize, point_text
from scalewise.records import Resumption

_KNOWN = ["run", "series", "devices", "outcome", "resumes", "lost_steps", "checkpoint_problems"]


def resumption_columns(resumption: Resumption) -> dict[str, int | str]:
    """``starts``, ``resumes``, ``lost_steps`` and ``checkpoint_problems`` of a run."""
    return {
        "starts": resumption.starts,
        "resumes": len(resumption.resumed_at_steps),
        "lost_steps": resumption.lost_steps,
        "checkpoint_problems": "; ".join(dict.fromkeys(resumption.problems)),
    }


def resumption_notes(runs: pd.DataFrame) -> list[str]:
    """A sentence on the runs that were resumed, and one on checkpoints that failed; none for neither.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
    """
    known = runs.reindex(columns=_KNOWN)
    return [*_resumed(known[known["outcome"] == "completed"]), *_problems(known)]


def resumed_text(resumes: int, lost_steps: int) -> str:
    """``3 times, 14 steps done again``."""
    often = "once" if resumes == 1 else f"{resumes} times"
    again = pluralize(str(lost_steps), "step") if lost_steps else "no step"
    return f"{often}, {again} done again"


def _resumed(done: pd.DataFrame) -> Iterator[str]:
    resumed = done[done["resumes"].fillna(0) > 0]
    if resumed.empty:
        return
    names = [
        f"{run['run']} ({resumed_text(int(run['resumes']), int(run['lost_steps']))})"
        for _, run in resumed.iterrows()
    ]
    more = len(names) - MAX_PLACES
    listed = ", ".join(names[:MAX_PLACES]) + (f" and {more} more, in runs.csv" if more > 0 else "")
    sentence = (
        f"{len(resumed)} of {pluralize(str(len(done)), 'run')} resumed from a checkpoint: {listed}. The "
        "first steps after each resume are excluded from the throughput. The runs are excluded from wall "
        "times, device-hours and times to accuracy, because they were interrupted."
    )
    undisturbed = set(map(tuple, done.loc[~done.index.isin(resumed.index), ["series", "devices"]].to_numpy()))
    points = dict.fromkeys(map(tuple, resumed[["series", "devices"]].to_numpy()))
    without = [
        point_text(devices, series) for series, devices in points if (series, devices) not in undisturbed
    ]
    yield sentence + (f" No uninterrupted run is left at {', '.join(without)}." if without else "")


def _problems(runs: pd.DataFrame) -> Iterator[str]:
    texts = runs["checkpoint_problems"].dropna()
    told = texts[texts != ""]
    if len(told):
        others = told.nunique() - 1
        further = f", and {pluralize(str(others), 'other')} in runs.csv" if others else ""
        yield (
            f"{len(told)} of {pluralize(str(len(runs)), 'run')} could not write a checkpoint or use all of "
            f"one: {told.iloc[0]}{further}."
        )
