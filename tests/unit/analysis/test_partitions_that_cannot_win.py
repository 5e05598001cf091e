"""Rounds of a study that chooses its device counts on several partitions: which are measured further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from tests.truth.clusters import PlantedPartition, Study, best, play

from scalewise.analysis.rounds.choice_summary import ChoiceSummary
from scalewise.analysis.rounds.contenders import AIMS, Contender, chance_to_win
from scalewise.analysis.rounds.judge_round import StudySoFar, chance_among, choose
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.runs.rounds import OTHER_ANSWER
from scalewise.plan.terminal.choice_lines import round_story

pytestmark = pytest.mark.slow

By = Literal["time", "cost", "energy", "soonest"]
CHEAP = PlantedPartition(100, most=16, price=1.0)
FAST = PlantedPartition(250, most=16, price=5.0)
BETTER = PlantedPartition(250, most=16, price=2.0)
FAR_BETTER = PlantedPartition(2000, most=16, price=2.0)


def studies(by: By | None = None, **partitions: PlantedPartition) -> list[Study]:
    generator = np.random.default_rng(3)
    rule = DecisionRule(min_efficiency=0.5, by=by)
    return [Study.drawn(name, each, rule, 0.01, generator) for name, each in partitions.items()]


def stopped(made: Sequence[Study]) -> list[str]:
    return [study.name for study in made if study.rounds[-1].is_outdone]


def test_a_partition_that_is_slower_and_dearer_is_measured_no_further_than_its_baseline() -> None:
    made = studies(old=CHEAP, new=FAR_BETTER)
    play(made)

    assert stopped(made) == ["old"]
    old, new = made
    assert {devices for devices, n in old.repeats().items() if n} == {1}
    assert len(new.rounds) > 1
    for aim in AIMS:
        assert best(made, aim, measured=True) == best(made, aim, measured=False)


@pytest.mark.parametrize(("by", "without"), [("time", ["cheap"]), ("cost", ["fast"]), (None, [])])
def test_a_partition_goes_on_while_it_may_be_the_best_by_what_decides(
    by: By | None, without: list[str]
) -> None:
    made = studies(by, cheap=CHEAP, fast=FAST)
    play(made)

    assert stopped(made) == without


def test_the_queue_counts_for_the_soonest_end() -> None:
    made = studies("soonest", near=CHEAP, far=replace(BETTER, queue_minutes=600))
    play(made)

    assert stopped(made) == ["far"]


def test_no_partition_is_left_out_where_energy_decides() -> None:
    made = studies("energy", old=CHEAP, new=BETTER)
    play(made)

    assert stopped(made) == []
    assert [study.rounds[-1].wins for study in made] == [None, None]


def test_equal_partitions_never_stop_each_other() -> None:
    made = studies(a=CHEAP, b=replace(CHEAP, rate=100.5))
    play(made)

    assert len(stopped(made)) <= 1


def test_the_chance_of_a_partition_is_that_of_the_draws_in_which_it_wins_by_the_gain() -> None:
    of = [np.array([10.0, 10.0, 10.0, 10.0]), np.array([9.0, 9.8, 11.0, 12.0])]
    contenders = [Contender(dict.fromkeys(AIMS, seconds)) for seconds in of]

    # the first one's median is the least; the second one wins by 5 % in one draw of four
    assert chance_to_win(0, contenders, AIMS, 0.05) == 1.0
    assert chance_to_win(1, contenders, AIMS, 0.05) == 0.25
    assert chance_to_win(1, contenders, AIMS, 0.0) == 0.5


def with_budget(study: Study, budget: float) -> StudySoFar:
    so_far = study.so_far()
    return replace(so_far, terms=replace(so_far.terms, budget=budget, run_minutes=60))


def test_partitions_share_what_is_left_of_one_budget() -> None:
    a, b = studies("energy", a=CHEAP, b=CHEAP)
    spent = a.device_hours(a.repeats()) + b.device_hours(b.repeats())
    # half of the rest pays a run of 4 devices, and none of 8
    mine, other = (with_budget(each, spent + 15) for each in (a, b))

    judged = choose(mine, 1, [other])
    paid = sum((point.next_asked - point.asked) * int(point.point[1:]) for point in judged.points)

    assert 0 < paid <= 7.5
    assert judged.spent_by_sisters == pytest.approx(b.device_hours(b.repeats()))
    alone = choose(mine, 1)
    assert sum((point.next_asked - point.asked) * int(point.point[1:]) for point in alone.points) > paid


def test_a_partition_without_a_measured_baseline_is_not_judged_by_others() -> None:
    a, b = studies(old=CHEAP, new=BETTER)
    a.asked = dict.fromkeys(a.asked, 0)

    assert chance_among(a.so_far(), [b.so_far()]) is None
    assert chance_among(b.so_far(), [a.so_far()]) == 1.0


def test_terminal_and_report_say_why_a_partition_is_measured_no_further() -> None:
    made = studies(old=CHEAP, new=FAR_BETTER)
    play(made)
    old = made[0]
    so_far = old.so_far()
    summary = ChoiceSummary.of(so_far.experiment, old.rounds, so_far.found.runs, "all runs", so_far.spending)
    assert summary is not None

    why = "another partition is better: the chance that this one gives the answer across partitions is"
    assert summary.outdone is not None
    assert summary.outdone <= OTHER_ANSWER
    assert why in summary.sentences()[-1]
    assert why in summary.open_sentences()[0]
    assert summary.action() == ""
    assert ChoiceSummary.from_dict(summary.as_dict()) == summary
    assert any(why in line for line in round_story(old.rounds[-1]))
