"""Points that get more repeats, by how many, and what the terminal and the report say of it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.planted_tables import decision_on, make_runs

from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.rounds.repeats import judge
from scalewise.analysis.rounds.sentences import (
    STOPPING,
    STOPPING_AT_DECISION,
    repeat_sentences,
    round_lines,
)
from scalewise.analysis.statistics import geometric_interval
from scalewise.plan.config.experiment import DecisionRule, Repeats
from scalewise.plan.runs.rounds import Round

RULE = Repeats(min=3, max=10, until_interval=0.03)
DECIDED = Repeats(min=3, max=10)

Results = dict[int, list[Any]]
"""Devices -> samples/s of each repeat, or the outcome of one that has none."""


def table(results: Results) -> pd.DataFrame:
    return make_runs({("a", devices): each for devices, each in results.items()})


def judged_by_width(results: Results, number: int = 1, rule: Repeats = RULE) -> Round:
    return judge("study", number, table(results), rule)


def requests(judged: Round) -> dict[str, tuple[str, int]]:
    """Return the verdict on each point, and the repeats that it should have."""
    return {point.point: (point.verdict, point.next_asked) for point in judged.points}


RISING = [1000.0 + 100 * step for step in range(10)]


@pytest.mark.parametrize(
    ("results", "verdict", "repeats", "line"),
    [
        ([1000, 1001, 1002], "narrow enough", 3, "0.25 % of the throughput (n = 3), at most 3 %: enough"),
        ([1800, 1900, 2000], "too wide", 6, "13 % of the throughput (n = 3), more than 3 %: repeats 4 to 6"),
        ([9879.7, 10000, 10121.8], "too wide", 4, "3.01 % of the throughput (n = 3), more than 3 %"),
        ([962, 985, 1000, 1015, 1038], "too wide", 8, "half-width 3.6 %"),
        # 2 completed of 3 requested may become 2 more, not 6 of which one is known to fail
        ([1000, "diverged", 1200], "too wide", 5, "too few for an interval: repeats 4 to 5 follow"),
        ([1000, "failed", "timed-out"], "too few completed", 3, "is too few for an interval: no more"),
        (["failed"] * 3, "too few completed", 3, "0 of 3 repeats completed"),
        (RISING[:8], "too wide", 10, "repeats 9 to 10 follow"),
        (RISING, "most repeats", 10, "10 are the most, no more follow"),
    ],
    ids=["narrow", "wide", "just wider than the limit", "as the root of the repeats",
         "one run diverged", "one completed", "none completed",
         "fewer than the double are left", "no more are left"],
)  # fmt: skip
def test_a_point_gets_repeats_by_the_interval_of_its_completed_runs(
    results: list[Any], verdict: str, repeats: int, line: str
) -> None:
    judged = judged_by_width({1: results})

    assert requests(judged) == {"d1.a": (verdict, repeats)}
    assert judged.requests_more == (repeats > len(results))
    assert line in round_lines(judged)[0]
    completed = [rate for rate in results if not isinstance(rate, str)]
    if len(completed) > 2:
        shown = geometric_interval(completed)
        assert judged.points[0].half_width_fraction == (shown.high - shown.low) / 2 / shown.estimate


def test_the_speed_of_a_run_that_diverged_does_not_count() -> None:
    runs = table({1: [1000, 1001, 1002, "diverged"]})
    runs.loc[3, "throughput_samples_per_second"] = 2000.0
    (point,) = judge("study", 1, runs, RULE).points
    assert (point.completed, point.verdict) == (3, "narrow enough")


def test_the_report_says_which_points_got_more_and_why_and_which_are_still_too_wide() -> None:
    rule = Repeats(min=3, max=5, until_interval=0.03)
    first: Results = {
        1: [1000.0, 1001, 1002],
        2: [1000.0, 1100, 1200],
        4: [1000.0, 1010, 1025],
        8: [1000, "failed", "failed"],
    }
    second = first | {2: [*first[2], 1000, 1200], 4: [*first[4], 1012]}
    rounds = [judged_by_width(results, n, rule) for n, results in enumerate((first, second), start=1)]

    wide_still, narrowed, failed, others, stopping = repeat_sentences(rounds)

    assert all(fact in wide_still for fact in ("d2.a: 2 more", "23 %", "(n = 3)", "now 11 % (n = 5), still"))
    assert all(fact in narrowed for fact in ("d4.a: 1 more", "3.1 %", "now 1.6 % (n = 4), narrow enough"))
    assert "d8.a: 1 of 3 repeats completed" in failed
    assert others.startswith("1 point is within 3 %")
    assert stopping == STOPPING
    (all_narrow,) = repeat_sentences([judged_by_width({1: first[1], 2: [1900, 1901, 1902]})])
    assert all_narrow.startswith("2 points are within 3 %")
    assert repeat_sentences([]) == []


def any_gain(runs: pd.DataFrame) -> Decision:
    """Return the decision for which any gain of 5 % is worth its devices."""
    return decision_on(runs, DecisionRule(min_efficiency=0.1))


def test_without_a_width_points_that_leave_the_decision_open_get_more_until_it_is_clear() -> None:
    """4 devices may or may not be 5 % faster than 2, whose gain over 1 is clear."""
    one, two = [1000, 1001, 1002], [1890, 1900, 1910]
    runs = table({1: one, 2: two, 4: [1990, 2030, 2070], 8: [1000, 1100, 1200]})
    decision = any_gain(runs)
    first = judge("study", 1, runs, DECIDED, decision)

    assert decision.undecided.keys() == {2, 4}
    open_points = ("undecided", 3 + min(decision.undecided[4], 3))
    enough = ("decided", 3)
    assert requests(first) == {"d1.a": enough, "d2.a": open_points, "d4.a": open_points, "d8.a": enough}
    assert "d2.a: 3 repeats leave the decision open" in round_lines(first)[1]

    runs = table({1: one, 2: two * 2, 4: [2090, 2095, 2100] * 2, 8: [1000, 1100, 1200]})
    second = judge("study", 2, runs, DECIDED, any_gain(runs))
    assert not second.requests_more
    *points, stopping = repeat_sentences([first, second])
    assert [each[:6] for each in points] == ["d2.a: ", "d4.a: "]
    assert all("3 more repeats" in each and "now the decision is clear" in each for each in points)
    assert stopping == STOPPING_AT_DECISION


def test_a_baseline_is_measured_again_together_with_a_count_that_was_added_later() -> None:
    runs = table({devices: [950 * devices + run for run in range(3)] for devices in (1, 2, 4)})
    runs["wall_seconds"] = 60.0
    runs["started_at"] = runs["devices"].map({1: "2026-01-01", 2: "2026-01-01", 4: "2026-01-03"})
    runs["started_at"] += "T10:00:00+00:00"

    judged = judge("study", 1, runs, DECIDED, any_gain(runs))

    assert requests(judged) == {"d1.a": ("other session", 6), "d2.a": ("decided", 3), "d4.a": ("decided", 3)}
    assert "d1.a: its 3 repeats share no session" in round_lines(judged)[0]
    again = runs[runs["devices"] == 1].assign(
        run=[f"d1.a.r{repeat}" for repeat in (4, 5, 6)],
        repeat=[4, 5, 6],
        started_at="2026-01-03T11:00:00+00:00",
    )
    both = pd.concat([runs, again], ignore_index=True)
    assert not judge("study", 2, both, DECIDED, any_gain(both)).requests_more
