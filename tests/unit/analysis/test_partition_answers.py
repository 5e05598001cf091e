"""The answer across partitions: the best point by each aim, what is open, and what cannot be compared."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.truth.partitions import A100, CASES, Planted, Truth, answer_on, judge, rates, studies_of
from tests.unit.analysis.reference import welch_bounds

from scalewise.analysis.partitions.answer import answer, state_of
from scalewise.analysis.partitions.card import PartitionCard, partition_card
from scalewise.analysis.partitions.compare import COLUMNS, TABLE, write_comparison
from scalewise.analysis.partitions.points import Aim, PartitionStudy, Place, collect_points
from scalewise.analysis.queue_waits import waits_by_run, with_measured_waits
from scalewise.analysis.statistics.ratios import Ratio
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.plan_file import COMPARISON

STUDIES = 8
SCATTER = 0.03


def card_of(truth: Truth, scatter: float = 0.01, n: int = 3, by: Aim | None = None) -> PartitionCard:
    """Return the card of a study with little noise."""
    points = collect_points(studies_of(truth, np.random.default_rng(3), scatter, n))
    return partition_card(answer(points, by))


def test_planted_answers_are_found_or_called_open() -> None:
    verdicts: Counter[str] = Counter()
    for place, name in enumerate(CASES):
        verdicts += rates(name, SCATTER, 3, STUDIES, seed=place)

    found: Counter[str] = Counter()
    for verdict, count in verdicts.items():
        found[verdict.partition(": ")[2]] += count
    assert found["wrong"] <= 0.05 * (found["right"] + found["cannot tell"] + found["wrong"])
    assert found["right"] > found["cannot tell"]
    assert verdicts["falsely dominated"] <= 0.05 * verdicts["dominated"]


@pytest.mark.parametrize("name", [name for name in CASES if name not in {"a tie", "close, 8 % apart"}])
def test_a_difference_of_half_or_more_is_shown_by_three_runs(name: str) -> None:
    truth = CASES[name]
    found = answer_on(truth, np.random.default_rng(11), SCATTER, 3)

    assert judge(truth, found, "time") == "right"
    assert found.aims["time"].partition_status == "clear"


def test_the_ratio_of_partitions_is_that_of_welch_on_the_runs_of_both() -> None:
    studies = studies_of(CASES["fast and cheap"], np.random.default_rng(5), SCATTER, 3)
    found = answer(collect_points(studies))
    rival = found.aims["time"].runner_up

    assert rival is not None
    assert found.aims["time"].best == Place("h200", "all runs", 1)
    assert rival.place == Place("a100", "all runs", 4)
    a100, h200 = (study.runs for study in studies)
    slow = a100.loc[a100["devices"] == 4, "wall_seconds"].tolist()
    fast = h200.loc[h200["devices"] == 1, "wall_seconds"].tolist()
    bounds = welch_bounds(slow, fast)
    assert (rival.ratio.at_least, rival.ratio.at_most) == pytest.approx(bounds, rel=1e-6)
    # the cost differs from the time by what an hour costs, which has no scatter: 4 x 1.2 against 2.5
    cost = found.points.ratio("cost", rival.place, Place("h200", "all runs", 1))
    assert cost is not None
    assert (cost.at_least, cost.at_most) == pytest.approx([4.8 / 2.5 * bound for bound in bounds], rel=1e-6)


def test_one_point_that_is_the_best_by_all_aims_is_one_sentence() -> None:
    card = card_of(CASES["fast and cheap"], scatter=0.002)

    assert card.certainty == "Clear"
    assert card.verdict == "Use 1 GPU on h200: 1.31x faster than 4 GPUs on a100, at 0.40x their cost."


@pytest.mark.parametrize(
    ("by", "verdict"),
    [
        ("time", "Use 2 GPUs on h200: 1.53x faster than 4 GPUs on a100, at 1.64x their cost."),
        ("cost", "Use 1 GPU on a100: 0.59x the cost of 1 GPU on h200, and 2.97x slower than it."),
    ],
)
def test_the_aim_of_the_user_decides(by: Aim, verdict: str) -> None:
    truth = CASES["cheap and slow, fast and expensive"]
    card = card_of(truth, scatter=0.001, by=by)

    assert card.verdict == verdict
    assert card.certainty == "Clear"
    assert card.rows[0].aim == by


def test_each_row_names_the_point_of_its_ratio_and_its_unit() -> None:
    card = card_of(CASES["fast and cheap"], scatter=0.002)
    time, cost, _, soonest = card.rows

    assert time.relation.startswith("1.31x faster than 4 GPUs on a100, the fastest there (")
    assert cost.relation.startswith("0.46x the cost of 1 GPU on a100, the cheapest there (")
    assert cost.text == "1.55 in the unit of your prices"
    assert soonest.label == "the earliest end (wait + run)"
    points = collect_points(
        studies_of(CASES["fast and cheap"], np.random.default_rng(3), 0.002, 3), "billing"
    )
    assert partition_card(answer(points)).rows[1].text == "1.55 billing units"


def test_the_card_says_which_counts_ran_on_each_partition() -> None:
    truth = CASES["one out of memory"]
    waiting = Planted({1: None}, outcome="not run yet")
    card = card_of(replace(truth, partitions={**truth.partitions, "later": waiting}))

    assert card.tried == "1, 2 and 4 GPUs on a100; 1 and 2 GPUs on h200; 3 runs of each"


@pytest.mark.parametrize(
    ("name", "measured", "basis"),
    [
        (
            "a tie",
            True,
            "Time and cost are those of a whole run, start-up included. "
            "Energy counts from the first step on.",
        ),
        ("a tie", False, "Time and cost are those of a whole run, start-up included."),
        (
            "more work to the target",
            True,
            "Time, cost and energy are those of the training until 90.0 % accuracy, without start-up.",
        ),
    ],
)
def test_the_basis_names_the_work_of_each_amount(name: str, measured: bool, basis: str) -> None:
    truth = CASES[name]
    if not measured:
        truth = replace(
            truth, partitions={key: replace(each, watts=None) for key, each in truth.partitions.items()}
        )

    assert card_of(truth).basis == f"{basis} Ranges are 95 % intervals."


def test_a_row_that_does_not_have_the_least_amount_says_so() -> None:
    """4 A100 cost 1.1 % more than 1 H200, less than is worth having, and are faster."""
    truth = Truth({"a100": Planted({4: 350.0}), "h200": Planted({1: 300.0}, price=3.4)})
    (row,) = [row for row in card_of(truth, scatter=0.001).rows if row.aim == "cost"]

    assert row.place == "4 GPUs on a100"
    assert row.relation.startswith("the same cost as 1 GPU on h200, within 5 % (")
    assert row.relation.endswith(
        "); the cheapest is 1 GPU on h200, 0.99x the cost, which is equal within 5 %, but slower"
    )
    least = [row for row in card_of(truth, scatter=0.001).rows if row.aim != "cost"]
    assert all("within 5 %, but" not in row.relation for row in least)


def test_the_card_says_whose_waits_count() -> None:
    studies = studies_of(CASES["fast and cheap"], np.random.default_rng(3), 0.005, 3)
    waits = pd.DataFrame({"started": ["2026-03-02T09:00:00+00:00", "2026-03-04T09:00:00+00:00"]})
    a100 = replace(studies[0], results=replace(studies[0].results, queue_waits=waits))
    stated = replace(studies[1].experiment, queue_minutes={1: 5.0})
    h200 = replace(studies[1], experiment=stated, waits={})

    def waits_of(*made: PartitionStudy) -> str:
        return partition_card(answer(collect_points(made))).waits

    assert waits_of(a100, studies[1]) == (
        "Waits in the queue are those of 12 runs of this study (2026-03-02 to 2026-03-04). "
        "They are no promise for later jobs."
    )
    assert "(2026-03-02 to 2026-03-04) and those that the site file states, for 3 runs." in waits_of(
        a100, h200
    )
    without = [replace(each, waits={}) for each in studies]
    assert waits_of(*without) == ""


def test_a_partition_with_several_best_counts_says_which_one_is_compared() -> None:
    truth = Truth({"old": Planted({1: 100.0, 2: 190.0}), "new": Planted({1: 150.0, 2: 290.0})})
    card = card_of(truth)

    assert card.verdict.startswith("Use new: with 2 GPUs, 1.5")
    assert "x faster than 2 GPUs on old, at 0." in card.verdict


def test_points_of_a_partition_are_compared_by_their_amounts_where_its_report_has_no_ratio() -> None:
    """Runs that reached the target on one count of two: the report of the partition has no ratio of both."""
    studies = studies_of(CASES["cheap and slow, fast and expensive"], np.random.default_rng(5), SCATTER, 3)
    points = collect_points(studies)
    place, than = Place("a100", "all runs", 1), Place("a100", "all runs", 4)
    runs = {each: points.points[each].runs["wall_seconds"].tolist() for each in (place, than)}
    for study in points.studies.values():
        study.gains.points.clear()  # type: ignore[attr-defined]  # a dict here

    bounds = welch_bounds(runs[place], runs[than])
    factors: dict[Aim, float] = {"time": 1.0, "cost": 0.25}
    for aim, factor in factors.items():
        ratio = points.ratio(aim, place, than)
        assert ratio is not None
        assert (ratio.at_least, ratio.at_most) == pytest.approx([factor * end for end in bounds], rel=1e-6)


def test_runs_that_miss_the_target_count_for_time_cost_and_their_ratios() -> None:
    a100, h200 = studies_of(CASES["more work to the target"], np.random.default_rng(5), SCATTER, 3)
    runs = h200.results.runs
    missed = (runs["devices"] == 2) & (runs["repeat"] == 3)
    lost = ["epochs_to_accuracy", "time_to_accuracy_seconds"]
    runs.loc[missed, lost] = math.nan
    points = collect_points([a100, h200])
    of_two = runs[runs["devices"] == 2]
    (first, second), (third,) = of_two["train_seconds"][~missed], of_two["train_seconds"][missed]

    place, slow = Place("h200", "all runs", 2), Place("a100", "all runs", 4)
    seconds = math.sqrt(first * second) * (first + second + third) / (first + second)
    for aim, factor in {"time": 1.0, "cost": 2 * 3.0 / 3600}.items():
        found = points.points[place].interval(aim)  # type: ignore[arg-type]
        assert found is not None
        assert found.estimate == pytest.approx(factor * seconds)
        # one of three tries failed: the interval is far wider than the scatter
        assert found.high > 2 * found.estimate
    ratio, interval = points.ratio("time", place, slow), points.points[slow].interval("time")
    assert ratio is not None
    assert interval is not None
    assert ratio.estimate == pytest.approx(seconds / interval.estimate)
    assert ratio.standard_error > 0.2


def test_partitions_that_win_by_different_aims_are_all_named() -> None:
    card = card_of(CASES["cheap and slow, fast and expensive"], scatter=0.001, n=6)

    assert card.verdict.startswith("Use h200 for the shortest time (2 GPUs), the least energy (1 GPU)")
    assert card.verdict.endswith("use 1 GPU on a100 for the lowest cost.")


def test_a_tie_cannot_be_told_and_names_the_repeats_that_would() -> None:
    found = answer_on(CASES["close, 8 % apart"], np.random.default_rng(2), SCATTER, 3)
    card = partition_card(answer(found.points, "time"))

    assert card.verdict.startswith(
        "Cannot tell which gives the shortest time: 4 GPUs on h200 or 4 GPUs on a100"
    )
    assert card.certainty == "Open"
    assert card.action.startswith("To tell which gives the shortest time, have ")
    repeats = found.aims["time"].repeats_needed
    assert repeats is not None
    assert repeats > 3


def test_a_difference_below_the_gain_worth_having_is_called_equal() -> None:
    card = card_of(CASES["a tie"], scatter=0.002, by="time")

    assert "(or, as good, 4 GPUs on " in card.verdict
    assert card.rows[0].status == "equal"


def test_points_without_a_result_are_named_with_the_reason() -> None:
    memory, diverged = card_of(CASES["one out of memory"]), card_of(CASES["one diverges"])

    assert memory.not_compared[0].startswith("1 GPU on a100: no result (3 out-of-memory): ")
    assert diverged.verdict.startswith("Use ")
    assert "no other partition has a result" in diverged.verdict
    assert [line.partition(":")[0] for line in diverged.not_compared] == ["1 GPU on h200", "2 GPUs on h200"]


def test_a_partition_that_has_not_run_yet_makes_the_answer_likely() -> None:
    truth = Truth({"a100": Planted(A100), "h200": Planted({1: None}, outcome="not run yet")})
    card = card_of(truth, by="time", scatter=0.001)

    assert (card.certainty, card.reason) == ("Likely", "h200 has no result yet that can be compared.")


def test_without_prices_cost_is_in_device_hours_and_the_card_says_so() -> None:
    truth = Truth({"a100": Planted(A100, price=None), "h200": Planted({1: 460.0}, price=None)})
    card = card_of(truth)

    (row,) = [row for row in card.rows if row.aim == "cost"]
    assert row.text.endswith(" device-hours")
    assert card.cautions[0].startswith("No price is known")


def test_a_free_partition_is_the_cheapest() -> None:
    truth = CASES["cheap and slow, fast and expensive"]
    free = replace(truth.partitions["a100"], price=0.0)
    card = card_of(replace(truth, partitions={**truth.partitions, "a100": free}), by="cost", scatter=0.001)

    assert card.verdict.startswith("Use 1 GPU on a100: 0.00x the cost of 1 GPU on h200")
    assert (card.rows[0].text, card.rows[0].interval) == ("0", "")


def test_energy_that_one_partition_does_not_measure_leaves_that_aim_open() -> None:
    truth = Truth({"a100": Planted(A100, watts=None), "h200": Planted({1: 460.0}, price=2.5)})
    card = card_of(truth, by="energy")

    assert (
        card.verdict == "Cannot tell which gives the least energy: 1 GPU on h200, but it is unknown on a100."
    )
    assert card.action == "Measure the least energy on a100, or choose by another aim."


def test_a_long_queue_turns_the_order_and_counts_for_the_earliest_end_only() -> None:
    found = answer_on(CASES["long queues"], np.random.default_rng(4), SCATTER, 6)

    assert found.aims["time"].best == Place("h200", "all runs", 2)
    assert found.aims["soonest"].best == Place("a100", "all runs", 4)


@pytest.mark.parametrize(("batch", "cautions"), [(64.0, 1), (math.nan, 0)])
def test_unequal_global_batches_are_a_caution_where_they_are_known(batch: float, cautions: int) -> None:
    studies = []
    for study in studies_of(CASES["fast and cheap"], np.random.default_rng(3), 0.005, 3):
        runs = study.results.runs
        weak = runs.assign(global_batch_size=batch * runs["devices"])
        studies.append(replace(study, results=replace(study.results, runs=weak)))
    card = partition_card(answer(collect_points(studies), "time"))

    found = [line for line in card.cautions if line.startswith("The global batch is ")]
    assert len(found) == cautions
    assert not found or found[0].startswith(
        "The global batch is 64 on 1 GPU on h200 and 256 on 4 GPUs on a100."
    )


def test_single_runs_are_no_clear_answer() -> None:
    card = card_of(CASES["fast and cheap"], n=1, by="time")

    assert card.certainty == "Likely"
    assert card.reason == "A single run does not show how much repeats scatter."
    assert card.rows[0].interval == ""


def test_a_criterion_of_the_user_excludes_points_with_the_reason() -> None:
    truth = CASES["cheap and slow, fast and expensive"]
    truth = replace(truth, spec={"decision": {"deadline_minutes": 60}})
    card = card_of(truth, by="cost", scatter=0.001)

    # 4 A100 take 48.6 minutes; 1 and 2 take longer
    assert card.verdict.startswith("Use 4 GPUs on a100: ")
    assert card.not_compared[0].startswith("1 GPU on a100: up to 169 minutes, more than the 60 allowed")


@pytest.mark.parametrize(
    ("ratio", "error", "state"),
    [
        (1.2, 0.02, "shown"),
        (1.0, 0.01, "not worth it"),
        (1.0, 0.04, "open"),
        # the other point may need less by as much as is worth having
        (0.95, 0.01, "open"),
    ],
)
def test_two_points_are_equal_only_if_neither_may_be_better_by_the_gain(
    ratio: float, error: float, state: str
) -> None:
    assert state_of(Ratio(math.log(ratio), error, math.inf, 3), 0.05) == state


def test_points_are_dominated_only_where_both_intervals_show_it() -> None:
    clear = answer_on(CASES["fast and cheap"], np.random.default_rng(6), SCATTER, 3)
    tie = answer_on(CASES["a tie"], np.random.default_rng(6), SCATTER, 3)

    assert {place.partition for place in clear.dominated} == {"a100"}
    assert len(clear.dominated) == 3
    assert tie.dominated == {}


def test_the_files_hold_every_point_and_the_answer(tmp_path: Path) -> None:
    found = answer_on(CASES["one out of memory"], np.random.default_rng(8), SCATTER, 3)
    write_comparison("study", found, tmp_path)
    table = pd.read_csv(tmp_path / TABLE)
    facts = json.loads((tmp_path / COMPARISON).read_text(encoding="utf-8"))

    assert list(table.columns) == COLUMNS
    assert list(zip(table["partition"], table["devices"], strict=True)) == [
        ("a100", 1), ("a100", 2), ("a100", 4), ("h200", 1), ("h200", 2),
    ]  # fmt: skip
    assert table["n"].tolist() == [0, 0, 3, 3, 3]
    assert math.isnan(table["seconds"].iloc[0])
    best = table.sort_values("seconds").iloc[0]
    assert facts["best"]["time"]["point"] == {"partition": "h200", "series": "all runs", "devices": 2}
    assert facts["best"]["time"]["amount"]["estimate"] == pytest.approx(best["seconds"])
    assert facts["card"]["verdict"] == partition_card(found).verdict


def test_a_measured_wait_counts_for_its_own_run_and_as_the_usual_one_for_a_deadline() -> None:
    study, *others = studies_of(CASES["long queues"], np.random.default_rng(3), SCATTER, 3)
    devices, run = int(study.runs["devices"].iloc[0]), str(study.runs["run"].iloc[0])
    late = study.experiment.spec.model_copy(update={"decision": DecisionRule(deadline_minutes=500)})
    waits = pd.DataFrame({"run": [run], "devices": [devices], "wait_seconds": [60_000.0]})
    experiment = with_measured_waits(replace(study.experiment, spec=late), waits)
    study = replace(study, experiment=experiment, waits=waits_by_run(waits))
    points = collect_points([study, *others]).points

    point = next(point for place, point in points.items() if place[::2] == (study.partition, devices))
    assert point.waits.dropna().tolist() == [60_000.0]
    assert any("in the queue" in miss for miss in point.misses)
