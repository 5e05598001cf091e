"""Disturbances of a run: load, neighbours and lowered clocks, from its record. Pure functions.

Scaling assumes that a run has its devices and its machine to itself. A completed run that had not is set
apart if its point has undisturbed ones: its outcome is then ``DISTURBED``, and nothing is computed from it.
If all runs of a point were disturbed they are used, and an answer that rests on them is not clear.

A run's own wait for data is none: files that are slow because many devices read them are the cost of scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalewise.plan.formatting import percent

if TYPE_CHECKING:
    import pandas as pd  # watching a study does without it

DISTURBED = "disturbed"
"""Outcome of a completed run that is set apart."""

OTHERS_CPU = 0.1
"""Share of its machine's CPU time from which on processes outside a run disturb it. On a quiet machine of two
CPUs the system, Snakemake and its display take up to 4 %; a gain worth having is 5 % by default."""

MAX_NAMED = 2
"""Disturbed runs that are named; `redo --disturbed --dry-run` names all."""


def disturbance(record: Mapping[str, Any]) -> str:
    """Return what disturbed a run, with the numbers; empty if nothing did.

    Every reason for a lowered clock counts (``THROTTLING`` of the monitor). The power cap is none: a GPU is
    meant to run at it, and a cap that differs between runs is a condition like the device model.

    Args:
        record: ``other_cpu_fraction``, ``other_jobs``, ``study_jobs``, ``throttled`` and ``monitor_note``, as
            far as they are known; None for what is not.
    """
    found = []
    if (share := record.get("other_cpu_fraction")) is not None and share >= OTHERS_CPU:
        found.append(f"other processes took {percent(share, 0)} of the CPUs")
    if jobs := record.get("other_jobs"):
        own = record.get("study_jobs")
        whose = "" if own is None else f" ({own} of this study)" if own else " (not of this study)"
        found.append(f"{jobs} other {'job' if jobs == 1 else 'jobs'} on its nodes{whose}")
    if record.get("throttled"):
        notes = (record.get("monitor_note") or "").split("; ")
        found.append(" ".join(["lowered clocks", *(f"({note})" for note in notes if "throttled" in note)]))
    return ", ".join(found)


def set_apart(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs, those set apart with the outcome ``DISTURBED``.

    Args:
        runs: A row for each planned run, with the ``disturbance`` that its own record shows.
    """
    done = runs["outcome"] == "completed"
    # a column of missing values only is one of numbers
    found = runs["disturbance"].astype(object).where(done, "")
    quiet = done & (found == "")
    apart = done & ~quiet & quiet.groupby([runs["series"], runs["devices"]]).transform("any")
    return runs.assign(
        disturbance=found,
        outcome=runs["outcome"].mask(apart, DISTURBED),
        reason=runs["reason"].mask(apart, found),
    )


def disturbed_columns(point: pd.DataFrame) -> dict[str, Any]:
    """Return ``n_disturbed``, runs that are used, ``n_set_apart``, and ``disturbed``, the names of both.

    Args:
        point: All runs of a point.
    """
    disturbed = point[point["disturbance"] != ""]
    return {
        "n_disturbed": int((disturbed["outcome"] == "completed").sum()),
        "n_set_apart": int((disturbed["outcome"] == DISTURBED).sum()),
        "disturbed": "; ".join(f"{run['run']} ({run['disturbance']})" for _, run in disturbed.iterrows()),
    }


def disturbed_of(number: int, total: int) -> str:
    """Return how many of some runs were disturbed, as a clause."""
    return f"{number} of {total} runs {'was' if number == 1 else 'were'} disturbed"


def named_runs(runs: pd.DataFrame) -> str:
    """Return the first of some disturbed runs, each with what disturbed it.

    Args:
        runs: Rows of runs.csv.
    """
    names = [f"{run['run']} ({run['disturbance']})" for _, run in runs.head(MAX_NAMED).iterrows()]
    more = len(runs) - MAX_NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
