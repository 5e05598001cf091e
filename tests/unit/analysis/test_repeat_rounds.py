"""Which points get more repeats, by how many, and what a reader is told of it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from tests.planned_job import plan_one_experiment
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted_tables import decision_on, make_runs

import cli
from scalewise.analysis.rounds.repeats import further, judge
from scalewise.analysis.rounds.sentences import (
    STOPPING,
    STOPPING_AT_DECISION,
    repeat_sentences,
    round_lines,
)
from scalewise.analysis.statistics.intervals import Interval, geometric_interval
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import DecisionRule, Repeats
from scalewise.plan.runs.rounds import Round, known_rounds, read_round, round_file
from scalewise.plan.runs.run_definition import canonical_json
from scalewise.records import write_json

RULE = Repeats(min=3, max=10, until_interval=0.03)


def points(judged: Round) -> dict[str, tuple[str, int]]:
    """Verdict on each point, and repeats that it should have."""
    return {point.point: (point.verdict, point.next_asked) for point in judged.points}


def test_only_points_whose_interval_is_wider_than_asked_for_get_more_repeats() -> None:
    runs = make_runs({("a", 1): [1000, 1001, 1002], ("a", 2): [1800, 1900, 2000]})

    judged = judge("study", 1, runs, RULE)

    assert points(judged) == {"d1.a": ("narrow enough", 3), "d2.a": ("too wide", 6)}
    wide = judged.points[1]
    assert wide.half_width_fraction == pytest.approx(4.302653 * 0.0527 / math.sqrt(3), rel=0.01)
    assert judged.requests_more


def test_the_interval_is_the_one_that_the_report_shows() -> None:
    rates = [1000.0, 1010, 990, 1005, 1200, 980, 1001, 1002]

    (point,) = judge("study", 1, make_runs({("a", 1): rates}), RULE).points

    shown = geometric_interval(rates)
    assert point.half_width_fraction == (shown.high - shown.low) / 2 / shown.estimate


@pytest.mark.parametrize(
    ("completed", "excess", "more"),
    [
        pytest.param(5, 1.0, 1, id="at least one"),
        pytest.param(5, 1.0001, 1, id="just over"),
        pytest.param(5, 1.2, 3, id="as the root of n"),
        pytest.param(5, 1.4, 5, id="at most twice as many"),
        pytest.param(5, 1e9, 5, id="hopeless"),
        pytest.param(5, math.inf, 5, id="no spread known"),
    ],
)
def test_a_point_gets_as_many_repeats_as_its_width_asks_for_and_at_most_twice(
    completed: int, excess: float, more: int
) -> None:
    assert further(completed, excess) == more


def test_no_point_gets_more_than_its_most_repeats() -> None:
    rates = [1000.0 + 100 * step for step in range(10)]

    assert points(judge("study", 1, make_runs({("a", 1): rates[:8]}), RULE)) == {"d1.a": ("too wide", 10)}
    judged = judge("study", 2, make_runs({("a", 1): rates}), RULE)
    assert points(judged) == {"d1.a": ("most repeats", 10)}
    assert not judged.requests_more


@pytest.mark.parametrize("outcome", ["failed", "timed-out", "diverged", "out-of-memory"])
def test_a_point_is_judged_by_its_completed_runs(outcome: str) -> None:
    runs = make_runs(
        {
            ("a", 1): [1000, outcome, 1200],
            ("a", 2): [1000, outcome, outcome],
            ("a", 4): [outcome, outcome, outcome],
        }
    )

    judged = judge("study", 1, runs, RULE)

    # 2 completed of 3 asked for may become 2 more, not 6 of which one is known to fail
    assert points(judged) == {
        "d1.a": ("too wide", 5),
        "d2.a": ("too few completed", 3),
        "d4.a": ("too few completed", 3),
    }


def test_the_speed_of_a_run_that_diverged_does_not_count() -> None:
    runs = make_runs({("a", 1): [1000, 1001, "diverged"]})
    runs.loc[2, "throughput_samples_per_second"] = 2000.0

    (point,) = judge("study", 1, runs, RULE).points

    assert (point.completed, point.verdict) == (2, "narrow enough")


def test_the_terminal_says_of_each_point_what_was_found_and_what_follows() -> None:
    points = {
        ("a", 1): [1000, 1001, 1002],
        ("a", 2): [1800, 1900, 2000],
        ("a", 4): [1000, "failed", "failed"],
    }
    steady, wide, failed = round_lines(judge("study", 1, make_runs(points), RULE))
    assert all(fact in steady for fact in ("d1.a", "0.25 %", "(n = 3)", "at most 3 %", "enough"))
    assert all(fact in wide for fact in ("d2.a", "13 %", "more than 3 %", "repeats 4 to 6 follow"))
    assert all(fact in failed for fact in ("d4.a", "1 of 3 repeats completed", "no more follow"))


def test_a_width_just_over_the_limit_is_not_shown_as_equal_to_it() -> None:
    runs = make_runs({("a", 1): [9879.7, 10000, 10121.8]})

    (line,) = round_lines(judge("study", 1, runs, RULE))

    assert "half-width 3.01 % of the throughput (n = 3), more than 3 %: repeat 4" in line


def test_the_report_says_which_points_got_more_and_why_and_which_are_still_too_wide() -> None:
    rule = Repeats(min=3, max=5, until_interval=0.03)
    steady, wide, mended = [1000.0, 1001, 1002], [1000.0, 1100, 1200, 1000, 1200], [1000.0, 1010, 1025]
    first = judge(
        "study",
        1,
        make_runs(
            {("a", 1): steady, ("a", 2): wide[:3], ("a", 4): mended, ("a", 8): [1000, "failed", "failed"]}
        ),
        rule,
    )
    second = judge(
        "study",
        2,
        make_runs(
            {
                ("a", 1): steady,
                ("a", 2): wide,
                ("a", 4): [*mended, 1012],
                ("a", 8): [1000, "failed", "failed"],
            }
        ),
        rule,
    )

    wide_still, narrowed, failed, others, stopping = repeat_sentences([first, second])
    assert all(fact in wide_still for fact in ("d2.a: 2 more", "23 %", "(n = 3)", "now 11 % (n = 5), still"))
    assert all(fact in narrowed for fact in ("d4.a: 1 more", "3.1 %", "now 1.6 % (n = 4), narrow enough"))
    assert "d8.a: 1 of 3 repeats completed" in failed
    assert others.startswith("1 point is within 3 %")
    assert stopping == STOPPING
    enough = make_runs({("a", 1): steady, ("a", 2): [1900, 1901, 1902]})
    (alone,) = repeat_sentences([judge("study", 1, enough, RULE)])
    assert alone.startswith("2 points are within 3 %")
    assert repeat_sentences([]) == []


DECIDED = Repeats(min=3, max=10)


def test_without_a_width_only_points_that_leave_the_decision_open_get_more() -> None:
    """4 devices may or may not be 5 % faster than 2, whose gain over 1 is clear."""
    runs = make_runs(
        {
            ("a", 1): [1000, 1001, 1002],
            ("a", 2): [1890, 1900, 1910],
            ("a", 4): [1990, 2030, 2070],
            ("a", 8): [1000, 1100, 1200],
        }
    )
    decision = decision_on(runs, DecisionRule(min_efficiency=0.1))

    judged = judge("study", 1, runs, DECIDED, decision)

    assert not decision.clear
    assert decision.undecided.keys() == {2, 4}
    more = decision.undecided[4]
    assert points(judged) == {
        "d1.a": ("decided", 3),
        "d2.a": ("undecided", 3 + min(more, 3)),
        "d4.a": ("undecided", 3 + min(more, 3)),
        "d8.a": ("decided", 3),
    }
    assert "d2.a: 3 repeats leave the decision open" in round_lines(judged)[1]


def test_repeats_end_where_the_decision_is_clear_and_the_report_says_what_they_were_for() -> None:
    clear = {("a", 1): [1000, 1001, 1002], ("a", 2): [1890, 1900, 1910]}
    unclear = make_runs({**clear, ("a", 4): [1990, 2030, 2070]})
    first = judge("study", 1, unclear, DECIDED, decision_on(unclear, DecisionRule(min_efficiency=0.1)))
    more = make_runs(
        {("a", 1): clear["a", 1], ("a", 2): [*clear["a", 2]] * 2, ("a", 4): [2090, 2095, 2100] * 2}
    )
    decision = decision_on(more, DecisionRule(min_efficiency=0.1))

    second = judge("study", 2, more, DECIDED, decision)

    assert decision.clear
    assert not second.requests_more
    *told, stopping = repeat_sentences([first, second])
    assert [each[:6] for each in told] == ["d2.a: ", "d4.a: "]
    assert all("3 more repeats" in each and "now the decision is clear" in each for each in told)
    assert stopping == STOPPING_AT_DECISION


@pytest.mark.parametrize("rule", [RULE, DECIDED])
def test_a_baseline_is_measured_again_beside_a_count_that_was_added_later(rule: Repeats) -> None:
    rates = {("a", devices): [950 * devices + run for run in range(3)] for devices in (1, 2, 4)}
    runs = make_runs(rates, wall_seconds=60.0)
    runs["started_at"] = runs["devices"].map(
        lambda devices: f"2026-01-0{3 if devices == 4 else 1}T10:00:00+00:00"
    )

    judged = judge("study", 1, runs, rule, decision_on(runs, DecisionRule(min_efficiency=0.1)))

    enough = "narrow enough" if rule is RULE else "decided"
    assert points(judged) == {"d1.a": ("other session", 6), "d2.a": (enough, 3), "d4.a": (enough, 3)}
    assert "d1.a: its 3 repeats share no session" in round_lines(judged)[0]
    later = runs[runs["devices"] == 1].assign(
        run=[f"d1.a.r{repeat}" for repeat in (4, 5, 6)],
        repeat=[4, 5, 6],
        started_at="2026-01-03T11:00:00+00:00",
    )
    both = pd.concat([runs, later], ignore_index=True)
    after = judge("study", 2, both, rule, decision_on(both, DecisionRule(min_efficiency=0.1)))
    assert not after.requests_more


def test_equal_runs_make_an_equal_round_and_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    runs = make_runs({("a", 1): [1000, 1001, 1002], ("a", 2): [1800, "failed", "failed"]})
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        write_json(file, judge("study", 1, runs, RULE))

    assert files[0].read_bytes() == files[1].read_bytes()
    assert read_round(files[0]) == judge("study", 1, runs, RULE)


SPEC = experiment(repeats={"min": 2, "max": 4, "until_interval": 0.03})


def judge_folder(folder: Path, number: int) -> int:
    """What the checkpoint does."""
    definition = canonical_json({"name": "study", "spec": SPEC.model_dump(exclude_none=True)})
    plan = plan_one_experiment(folder / "plan.json", folder, rounds=definition)
    return cli.main([*plan, "judge", "--round", str(number), str(folder)])


def test_tables_list_further_repeats_only_where_a_round_has_asked_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    rates = {"d1.r1": 1000.0, "d1.r2": 1001.0, "d1.r3": 5.0, "d2.r1": 1800.0, "d2.r2": 2000.0}
    for name, rate in rates.items():
        write_run(runs, name, rate=rate)

    def listed() -> list[str]:
        return collect("study", SPEC, runs).runs["run"].tolist()

    assert listed() == ["d1.r1", "d1.r2", "d2.r1", "d2.r2"]
    assert judge_folder(tmp_path, 1) == 0
    assert "study: d2: half-width 72 %" in capsys.readouterr().out
    assert listed() == ["d1.r1", "d1.r2", "d2.r1", "d2.r2", "d2.r3", "d2.r4"]
    assert collect("study", SPEC, runs).runs["outcome"].tolist()[-2:] == ["not run yet"] * 2


def test_a_round_rests_on_the_runs_that_the_rounds_before_it_asked_for(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for repeat, rate in enumerate((1800, 2000, 1900, 1901), start=1):
        write_run(runs, f"d2.r{repeat}", rate=float(rate))
        write_run(runs, f"d1.r{repeat}")

    judge_folder(tmp_path, 1)
    judge_folder(tmp_path, 2)
    before = round_file(tmp_path, 1).read_bytes()
    # by hand, with a later round in the folder
    judge_folder(tmp_path, 1)

    assert round_file(tmp_path, 1).read_bytes() == before
    first, second = known_rounds(SPEC, tmp_path)
    assert [point.completed for point in first.points] == [2, 2]
    assert [point.completed for point in second.points] == [2, 4]


def stop_early(rng: random.Random, noise: float, rule: Repeats) -> Interval:
    """The interval of a point of true throughput 1 that got repeats until it seemed narrow."""

    def measure(count: int) -> list[float]:
        return [math.exp(rng.gauss(0, noise)) for _ in range(count)]

    assert rule.until_interval is not None
    until, rates = rule.until_interval, measure(rule.min)
    while True:
        interval = geometric_interval(rates)
        excess = interval.half_width_fraction / until
        if excess <= 1 or len(rates) >= rule.max:
            return interval
        rates += measure(min(further(len(rates), excess), rule.max - len(rates)))


def coverage(intervals: Sequence[Interval]) -> float:
    """The share of intervals that covers the truth."""
    return sum(interval.low <= 1 <= interval.high for interval in intervals) / len(intervals)


def simulated(least: int, noise: float, points: int = 2000) -> list[Interval]:
    rng = random.Random(f"{least} {noise}")
    rule = Repeats(min=least, max=10, until_interval=0.03)
    return [stop_early(rng, noise, rule) for _ in range(points)]


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.03, 0.04, 0.06])
def test_from_six_repeats_on_looking_again_and_again_costs_at_most_three_points_of_coverage(
    noise: float,
) -> None:
    covers = coverage(simulated(6, noise))

    assert covers > 0.92, f"{covers:.1%} of 2,000 intervals cover the true value at {noise:.0%} noise"


def test_from_three_repeats_on_intervals_cover_less_than_they_state() -> None:
    covers = coverage(simulated(3, 0.04))

    assert covers < 0.94, f"{covers:.1%} of 2,000 intervals cover the true value, 95 % stated"
