"""The answer across partitions: the best by each aim, what is open, its page, and the rounds of each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pandas as pd
import pytest
from tests.truth import partitions as truths
from tests.truth.clusters import PlantedPartition, Study, best, play
from tests.truth.partitions import A100, CASES, Planted, Truth, answer_on, judge, studies_of
from tests.unit.analysis.planted_tables import read_json
from tests.unit.analysis.reference import welch_bounds
from tests.unit.analysis.report_page import Page, cells

from scalewise.analysis.partitions.answer import PartitionAnswer, answer, state_of
from scalewise.analysis.partitions.card import PartitionCard, partition_card
from scalewise.analysis.partitions.compare import COLUMNS, TABLE, write_comparison
from scalewise.analysis.partitions.points import Aim, PartitionStudy, Place, collect_points
from scalewise.analysis.queue_waits import waits_by_run, with_measured_waits
from scalewise.analysis.report.partition_page import draw_partitions, write_partition_report
from scalewise.analysis.rounds.choice_summary import ChoiceSummary
from scalewise.analysis.rounds.contenders import AIMS, Contender, chance_to_win
from scalewise.analysis.rounds.judge_round import StudySoFar, chance_among, choose
from scalewise.analysis.statistics import Ratio
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.plan_file import COMPARISON
from scalewise.plan.runs.rounds import OTHER_ANSWER
from scalewise.plan.terminal.card_lines import WIDTH, partition_lines
from scalewise.plan.terminal.choice_lines import round_story
from scalewise.plan.terminal.final_message import decisions

SCATTER = 0.03


def planted_studies(case: str, scatter: float = SCATTER, n: int = 3) -> list[PartitionStudy]:
    return studies_of(CASES[case], np.random.default_rng(5), scatter, n)


@pytest.mark.parametrize("name", CASES)
def test_answers_are_right_or_open_and_a_difference_of_half_is_shown_by_three_runs(name: str) -> None:
    truth = CASES[name]
    found = answer_on(truth, np.random.default_rng(11), SCATTER, 3)

    verdicts = {aim: judge(truth, found, aim) for aim in found.aims}
    assert "wrong" not in verdicts.values()
    assert truths.falsely_dominated(truth, found) == 0
    if name not in {"a tie", "close, 8 % apart"}:
        assert (verdicts["time"], found.aims["time"].partition_status) == ("right", "clear")
    if name == "long queues":
        # the queue counts for the earliest end only
        assert found.aims["time"].best == Place("h200", "all runs", 2)
        assert found.aims["soonest"].best == Place("a100", "all runs", 4)


def test_the_ratio_of_partitions_is_that_of_welch_on_the_runs_of_both() -> None:
    studies = planted_studies("fast and cheap")
    found = answer(collect_points(studies))
    rival, h200 = found.aims["time"].runner_up, Place("h200", "all runs", 1)

    assert rival is not None
    assert found.aims["time"].best == h200
    assert rival.place == Place("a100", "all runs", 4)
    slow, fast = (
        study.runs.loc[study.runs["devices"] == devices, "wall_seconds"].tolist()
        for study, devices in zip(studies, (4, 1), strict=True)
    )
    bounds = welch_bounds(slow, fast)
    assert (rival.ratio.at_least, rival.ratio.at_most) == pytest.approx(bounds, rel=1e-6)
    # the cost differs from the time by what an hour costs, which has no scatter: 4 x 1.2 against 2.5
    cost = found.points.ratio("cost", rival.place, h200)
    assert cost is not None
    assert (cost.at_least, cost.at_most) == pytest.approx([4.8 / 2.5 * bound for bound in bounds], rel=1e-6)
    # slower and more expensive by both intervals
    assert {place.partition for place in found.dominated} == {"a100"}
    assert len(found.dominated) == 3
    assert answer(collect_points(planted_studies("a tie"))).dominated == {}


# --- the card -------------------------------------------------------------------------------------------


def changed(case: str, partition: str = "", spec: Mapping[str, Any] | None = None, **planted: Any) -> Truth:
    truth = CASES[case]
    partitions = {
        name: replace(each, **planted) if partition in {"", name} else each
        for name, each in truth.partitions.items()
    }
    return Truth(partitions, spec or truth.spec)


def card_of(
    truth: Truth, n: int = 3, scatter: float = 0.01, *, days_later: Mapping[str, float]
) -> PartitionCard:
    """Return the card of drawn runs, each partition's made some days after the first one's."""
    studies = studies_of(truth, np.random.default_rng(3), scatter, n)
    for study in studies:
        runs = study.results.runs
        begun = pd.Timestamp("2026-03-01T09:00:00Z") + pd.Timedelta(days=days_later.get(study.partition, 0))
        starts = [(begun + pd.Timedelta(minutes=5 * place)).isoformat() for place in range(len(runs))]
        study.results.runs["started_at"] = starts
    return partition_card(answer(collect_points(studies), by="cost"))


@pytest.mark.parametrize(("days", "certainty"), [(0, "Clear"), (0.1, "Clear"), (7, "Doubtful")])
def test_partitions_that_were_measured_days_apart_are_not_clear(days: float, certainty: str) -> None:
    truth = Truth({"a100": Planted({1: 100.0}), "h200": Planted({1: 200.0}, price=1.5)})
    card = card_of(truth, days_later={"h200": days})
    assert card.certainty == certainty
    assert any("ran more than 6 hours apart" in each for each in card.cautions) == (days == 7)


@pytest.mark.parametrize(
    ("n", "status", "certainty"), [(1, "likely", "Likely"), (2, "likely", "Likely"), (3, "clear", "Clear")]
)
def test_no_row_is_clear_with_fewer_than_three_runs(n: int, status: str, certainty: str) -> None:
    truth = Truth({"a100": Planted({1: 100.0}), "h200": Planted({1: 200.0}, price=1.5)})
    card = card_of(truth, n, days_later={})
    assert {row.status for row in card.rows if row.aim in ("time", "cost")} == {status}
    assert card.certainty == certainty
    assert ("to" in card.rows[0].relation.rpartition("(")[2]) == (n == 3)


@pytest.mark.parametrize(
    ("efficiency", "certainty"), [(0.5, "Clear"), (0.695, "Likely"), (0.705, "Likely"), (0.95, "Clear")]
)
def test_a_criterion_that_the_runs_leave_open_is_not_clear(efficiency: float, certainty: str) -> None:
    """By time, 2 devices of h200 are the fastest if their efficiency is 0.7."""
    planted = {"a100": Planted({1: 100.0}), "h200": Planted({1: 200.0, 2: 400 * efficiency})}
    truth = Truth(planted, {"decision": {"min_efficiency": 0.7, "by": "time"}, "scaling": "strong"})
    studies = studies_of(truth, np.random.default_rng(3), 0.01, 3)
    card = partition_card(answer(collect_points(studies), by="time"))
    assert card.certainty == certainty


CHEAP_OR_FAST = CASES["cheap and slow, fast and expensive"]
WAITING = Truth({"a100": Planted(A100), "h200": Planted({1: None}, outcome="not run yet")})
OF_RUNS = "Time and cost are those of a whole run, start-up included. "
RANGES = "Ranges are 95 % intervals."


CARDS: dict[str, tuple[Truth, dict[str, Any], dict[str, str]]] = {
    "one point is the best by all aims": (CASES["fast and cheap"], {"scatter": 0.002}, {
        "certainty": "Clear",
        "verdict": "Use 1 GPU on h200: 1.31x faster than 4 GPUs on a100, at 0.40x their cost.",
        "rows.0.relation": "1.31x faster than 4 GPUs on a100, the fastest there (*",
        "rows.1.relation": "0.46x the cost of 1 GPU on a100, the cheapest there (*",
        "rows.1.text": "1.55 in the unit of your prices",
        "rows.3.label": "the earliest end (wait + run)"}),
    "billing units": (CASES["fast and cheap"], {"scatter": 0.002, "unit": "billing"}, {
        "rows.1.text": "1.55 billing units"}),
    "time decides": (CHEAP_OR_FAST, {"by": "time", "scatter": 0.001}, {
        "certainty": "Clear", "rows.0.aim": "time",
        "verdict": "Use 2 GPUs on h200: 1.53x faster than 4 GPUs on a100, at 1.64x their cost."}),
    "cost decides": (CHEAP_OR_FAST, {"by": "cost", "scatter": 0.001}, {
        "rows.0.aim": "cost",
        "verdict": "Use 1 GPU on a100: 0.59x the cost of 1 GPU on h200, and 2.97x slower than it."}),
    "other partitions by other aims": (CHEAP_OR_FAST, {"scatter": 0.001, "n": 6}, {
        "verdict": "Use h200 for the shortest time (2 GPUs), the least energy (1 GPU)*; "
        "use 1 GPU on a100 for the lowest cost."}),
    "counts without a result": (
        Truth({**CASES["one out of memory"].partitions, "later": WAITING.partitions["h200"]}), {}, {
        "tried": "1, 2 and 4 GPUs on a100; 1 and 2 GPUs on h200; 3 runs of each",
        "not_compared.0": "1 GPU on a100: no result (3 out-of-memory): *"}),
    "a partition without a result": (CASES["one diverges"], {}, {
        "verdict": "Use *no other partition has a result*",
        "not_compared.0": "1 GPU on h200: *", "not_compared.1": "2 GPUs on h200: *"}),
    "a partition that has not run yet": (WAITING, {"by": "time", "scatter": 0.001}, {
        "certainty": "Likely", "reason": "h200 has no result yet that can be compared."}),
    "a difference below the gain worth having": (CASES["a tie"], {"by": "time", "scatter": 0.002}, {
        "verdict": "*(or, as good, 4 GPUs on *", "rows.0.status": "equal",
        "basis": f"{OF_RUNS}Energy counts from the first step on. {RANGES}"}),
    "energy unknown": (changed("a tie", watts=None), {}, {"basis": OF_RUNS + RANGES}),
    "energy of one partition unknown": (changed("fast and cheap", "a100", watts=None), {"by": "energy"}, {
        "verdict": "Cannot tell which gives the least energy: 1 GPU on h200, but it is unknown on a100.",
        "action": "Measure the least energy on a100, or choose by another aim."}),
    "a target": (CASES["more work to the target"], {}, {
        "basis": "Time, cost and energy are those of the training until 90.0 % accuracy, without start-up. "
        + RANGES}),
    # 4 A100 cost 1.1 % more than 1 H200, less than is worth having, and are faster
    "not the least cost": (
        Truth({"a100": Planted({4: 350.0}), "h200": Planted({1: 300.0}, price=3.4)}), {"scatter": 0.001}, {
        "rows.0.relation": "*)", "rows.1.place": "4 GPUs on a100",
        "rows.1.relation": "the same cost as 1 GPU on h200, within 5 % (*); the cheapest is 1 GPU on h200, "
        "0.99x the cost, which is equal within 5 %, but slower"}),
    "several best counts": (
        Truth({"old": Planted({1: 100.0, 2: 190.0}), "new": Planted({1: 150.0, 2: 290.0})}), {}, {
        "verdict": "Use new: with 2 GPUs, 1.5*x faster than 2 GPUs on old, at 0.*"}),
    "cannot tell": (CASES["close, 8 % apart"], {"by": "time", "scatter": 2 * SCATTER}, {
        "verdict": "Cannot tell which gives the shortest time: 4 GPUs on h200 or 4 GPUs on a100*",
        "certainty": "Open", "action": "To tell which gives the shortest time, have [1-9]*"}),
    "no prices": (changed("fast and cheap", price=None), {}, {
        "rows.1.text": "* device-hours", "cautions.0": "No price is known*"}),
    "a free partition": (
        changed("cheap and slow, fast and expensive", "a100", price=0.0), {"by": "cost", "scatter": 0.001}, {
        "verdict": "Use 1 GPU on a100: 0.00x the cost of 1 GPU on h200*",
        "rows.0.text": "0", "rows.0.interval": ""}),
    "single runs": (CASES["fast and cheap"], {"by": "time", "n": 1}, {
        "reason": "A single run does not show how much repeats scatter.",
        "certainty": "Likely", "rows.0.interval": ""}),
    # 4 A100 take 48.6 minutes; 1 and 2 take longer
    "a criterion excludes points": (
        changed("cheap and slow, fast and expensive", spec={"decision": {"deadline_minutes": 60}}),
        {"by": "cost", "scatter": 0.001}, {
        "verdict": "Use 4 GPUs on a100: *",
        "not_compared.0": "1 GPU on a100: up to 169 minutes, more than the 60 allowed*"}),
}  # fmt: skip
"""Planted partitions, the aim and the noise, and patterns of fields of the card."""


@pytest.mark.parametrize("name", CARDS)
def test_the_card_on_planted_partitions(name: str) -> None:
    truth, how, fields = CARDS[name]
    studies = studies_of(truth, np.random.default_rng(3), how.get("scatter", 0.01), how.get("n", 3))
    points = collect_points(studies, *([how["unit"]] if "unit" in how else []))
    card = asdict(partition_card(answer(points, how.get("by"))))

    assert max(map(len, partition_lines({"experiment": "digits", "card": card}))) <= WIDTH
    for path, pattern in fields.items():
        value: Any = card
        for key in path.split("."):
            value = value[int(key)] if key.isdigit() else value[key]
        assert fnmatchcase(value, pattern), path


def test_the_card_says_whose_waits_count() -> None:
    studies = planted_studies("fast and cheap")
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
    assert " and those that the site file states, for 3 runs." in waits_of(a100, h200)
    assert waits_of(*(replace(each, waits={}) for each in studies)) == ""


@pytest.mark.parametrize(("batch", "cautions"), [(64.0, 1), (math.nan, 0)])
def test_unequal_global_batches_are_a_caution_where_they_are_known(batch: float, cautions: int) -> None:
    studies = []
    for study in planted_studies("fast and cheap", 0.005):
        runs = study.results.runs
        weak = runs.assign(global_batch_size=batch * runs["devices"])
        studies.append(replace(study, results=replace(study.results, runs=weak)))
    card = partition_card(answer(collect_points(studies), "time"))

    said = "The global batch is 64 on 1 GPU on h200 and 256 on 4 GPUs on a100."
    assert sum(line.startswith(said) for line in card.cautions) == cautions
    assert sum(line.startswith("The global batch is ") for line in card.cautions) == cautions


# --- the amounts of a point -----------------------------------------------------------------------------


def test_a_stated_wait_is_added_to_each_run_and_the_table_has_the_median_of_measured_ones(
    tmp_path: Path,
) -> None:
    studies = planted_studies("fast and cheap", 0.005)
    runs = [run for run in studies[0].waits if run.startswith("d1.")]
    measured = replace(studies[0], waits=dict(zip(runs, (10.0, 20.0, 900.0), strict=True)))
    stated = replace(studies[1].experiment, queue_minutes={1: 5.0})
    points = collect_points([measured, replace(studies[1], experiment=stated, waits={})])
    point = points.points[Place("h200", "all runs", 1)]

    added = np.subtract(point.amounts("soonest"), point.amounts("time"))
    assert added.tolist() == pytest.approx([300.0] * 3)
    write_comparison("study", answer(points), tmp_path)
    table = pd.read_csv(tmp_path / TABLE).set_index(["partition", "devices"])
    assert table["queue_seconds"]["a100", 1] == 20
    assert table["queue_n"]["a100", 1] == 3


def test_a_measured_wait_counts_for_its_own_run_and_as_the_usual_one_for_a_deadline() -> None:
    study, *others = planted_studies("long queues")
    devices, run = int(study.runs["devices"].iloc[0]), str(study.runs["run"].iloc[0])
    late = study.experiment.spec.model_copy(update={"decision": DecisionRule(deadline_minutes=500)})
    waits = pd.DataFrame({"run": [run], "devices": [devices], "wait_seconds": [60_000.0]})
    experiment = with_measured_waits(replace(study.experiment, spec=late), waits)
    study = replace(study, experiment=experiment, waits=waits_by_run(waits))
    point = collect_points([study, *others]).points[Place(study.partition, "all runs", devices)]

    assert point.waits.dropna().tolist() == [60_000.0]
    assert any("in the queue" in miss for miss in point.misses)


def test_points_of_a_partition_are_compared_by_their_amounts_where_its_report_has_no_ratio() -> None:
    """Runs that reached the target on one count of two: the report of the partition has no ratio of both."""
    points = collect_points(planted_studies("cheap and slow, fast and expensive"))
    place, than = Place("a100", "all runs", 1), Place("a100", "all runs", 4)
    slow, fast = (points.points[each].runs["wall_seconds"].tolist() for each in (place, than))
    bounds = welch_bounds(slow, fast)
    for study in points.studies.values():
        study.gains.points.clear()  # type: ignore[attr-defined]  # a dict here

    factors: dict[Aim, float] = {"time": 1.0, "cost": 0.25}
    for aim, factor in factors.items():
        ratio = points.ratio(aim, place, than)
        assert ratio is not None
        assert (ratio.at_least, ratio.at_most) == pytest.approx([factor * end for end in bounds], rel=1e-6)


def test_runs_that_miss_the_target_count_for_time_cost_and_their_ratios() -> None:
    a100, h200 = planted_studies("more work to the target")
    runs = h200.results.runs
    missed = (runs["devices"] == 2) & (runs["repeat"] == 3)
    runs.loc[missed, ["epochs_to_accuracy", "time_to_accuracy_seconds"]] = math.nan
    points = collect_points([a100, h200])
    first, second, third = runs.loc[runs["devices"] == 2, "train_seconds"]

    place, slow = Place("h200", "all runs", 2), Place("a100", "all runs", 4)
    seconds = math.sqrt(first * second) * (first + second + third) / (first + second)
    for aim, factor in {"time": 1.0, "cost": 2 * 3.0 / 3600}.items():
        found = points.points[place].interval(aim)  # type: ignore[arg-type]
        assert found is not None
        assert found.estimate == pytest.approx(factor * seconds)
        assert found.n == 3
        assert found.high > 1.5 * found.estimate, "a share of two of three is known badly"
    ratio, interval = points.ratio("time", place, slow), points.points[slow].interval("time")
    assert ratio is not None
    assert interval is not None
    assert ratio.estimate == pytest.approx(seconds / interval.estimate)
    assert ratio.at_most > 1.5 * ratio.estimate


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
    assert state_of(Ratio(ratio, math.log(ratio), error, math.inf, 3), 0.05) == state


# --- the files, the page and the terminal ---------------------------------------------------------------


def write_page(found: PartitionAnswer, folder: Path, title: str = "Digits") -> str:
    """Write the comparison of a study with its figures and its report; return the report."""
    write_comparison("digits", found, folder)
    draw_partitions(folder)
    own = {name: study.results.decision for name, study in found.points.studies.items()}
    write_partition_report(folder, own, title=title)
    return (folder / "report.html").read_text(encoding="utf-8")


def planted(case: str) -> PartitionAnswer:
    """Return the answer on a planted case with little noise."""
    return answer(collect_points(planted_studies(case, 0.005)))


def test_the_page_begins_with_the_answer_escapes_names_and_is_the_same_for_equal_data(tmp_path: Path) -> None:
    found, title = planted("fast and cheap"), "<script>alert(1)</script>"
    html = write_page(found, tmp_path / "1", title)
    page = Page(html)
    texts = [text for _, text in page.after_heading()]

    assert texts[0].startswith("Use 1 GPU on h200: 1.3")
    assert texts[1] == "How sure: clear"
    assert texts.index("the shortest time") < texts.index("All points")
    links = [values["href"] for tag, values in page.elements if tag == "a" and "href" in values]
    assert links[1:] == ["../study%40a100/report.html", "../study%40h200/report.html"]
    assert "<script>alert" not in html
    assert "&lt;script&gt;" in html

    figures = tmp_path / "1/figures"
    root = fromstring((figures / "time_cost.svg").read_text(encoding="utf-8"))
    assert "dominated" in ["".join(each.itertext()) for each in root.iter() if each.tag.endswith("text")]
    # three points that are dominated are grey, and the mark of the legend
    assert [each.get("stroke") for each in root.iter()].count("#999999") >= 3
    traces = read_json(figures / "traces.json")
    assert traces["time_devices"]["series"] == ["a100", "h200"]

    assert write_page(found, tmp_path / "2", title) == html, "equal data make equal files"
    for name in ("time_cost.svg", "time_cost.pdf", "time_devices.svg"):
        assert (tmp_path / "2/figures" / name).read_bytes() == (figures / name).read_bytes()


def test_files_and_page_have_every_point_and_mark_the_best_and_the_failed(tmp_path: Path) -> None:
    found = planted("one out of memory")
    html = write_page(found, tmp_path)
    table = pd.read_csv(tmp_path / TABLE)
    facts = read_json(tmp_path / COMPARISON)

    assert list(table.columns) == COLUMNS
    points = [["a100", "1"], ["a100", "2"], ["a100", "4"], ["h200", "1"], ["h200", "2"]]
    assert table[["partition", "devices"]].astype(str).to_numpy().tolist() == points
    assert table["n"].tolist() == [0, 0, 3, 3, 3]
    assert math.isnan(table["seconds"].iloc[0])
    best = facts["best"]["time"]
    assert best["point"] == {"partition": "h200", "series": "all runs", "devices": 2}
    assert best["amount"]["estimate"] == pytest.approx(table["seconds"].min())
    assert facts["card"]["verdict"] == partition_card(found).verdict

    rows = [row.strip("|") for row in cells(html, "All points")]
    assert [row.split("|")[:2] for row in rows if "no result" not in row][1:] == points
    assert any("1 GPU on a100: no result (3 out-of-memory)" in row for row in rows)
    assert html.count('<tr class="failed">') == 2
    assert '<tr class="chosen">' in html


@pytest.mark.parametrize(
    ("wait_minutes", "steps"),
    [(600.0, None), (None, None), (600.0, 50)],
    ids=["jobs wait", "without Slurm", "steps end runs"],
)
def test_waits_are_on_the_page_only_if_jobs_wait_for_whole_runs(
    tmp_path: Path, wait_minutes: float | None, steps: int | None
) -> None:
    truth = changed("long queues", spec={"steps": steps} if steps else None, wait_minutes=wait_minutes)
    html = write_page(answer_on(truth, np.random.default_rng(3), 0.005, 3), tmp_path)
    shown = html.partition('id="page.what-if-data"')[0]

    waits = wait_minutes is not None and steps is None
    assert ('name="wait.a100"' in html) is waits
    assert ("<dt>Waits</dt>" in html) is waits
    assert ("wait and run" in shown.lower()) is waits
    assert ("earliest end" in shown) is waits


def test_points_of_a_partition_without_a_price_are_not_judged_by_cost(tmp_path: Path) -> None:
    a100, h200 = planted_studies("cheap and slow, fast and expensive", 0.005)
    html = write_page(answer(collect_points([replace(a100, price=None), h200])), tmp_path)
    judged = {row.split("|")[1]: row.split("|")[-2] for row in cells(html, "All points")[1:]}

    assert judged == {"a100": "–", "h200": "may be worth choosing"}


def test_an_experiment_without_any_result_has_a_page_that_states_that(tmp_path: Path) -> None:
    nothing = Truth({name: Planted(dict.fromkeys(A100)) for name in ("a100", "h200")})
    html = write_page(answer_on(nothing, np.random.default_rng(1), 0.01, 3), tmp_path)

    assert "No partition can be recommended." in html
    assert "no result (3 out-of-memory)" in html
    assert "no point has a known time" in html


def test_the_end_of_a_study_shows_the_answer_across_partitions_first(tmp_path: Path) -> None:
    found = planted("fast and cheap")
    write_comparison("digits", found, tmp_path / "digits")
    named = [
        {**study.results.decision, "experiment": f"digits@{name}"}
        for name, study in found.points.studies.items()
    ]
    (tmp_path / "decision.json").write_text(json.dumps(named), encoding="utf-8")
    (tmp_path / "report.html").touch()

    text = decisions(tmp_path)
    assert text.startswith("digits: Use 1 GPU on h200: ")
    assert text.index("digits: ") < text.index("digits@a100: ")


# --- which partitions are measured further --------------------------------------------------------------


CHEAP = PlantedPartition(100, most=8, price=1.0)
FAST = PlantedPartition(250, most=8, price=5.0)
BETTER = PlantedPartition(250, most=8, price=2.0)
FAR_BETTER = PlantedPartition(2000, most=8, price=2.0)


def chosen_studies(by: Aim | None = None, **partitions: PlantedPartition) -> list[Study]:
    generator = np.random.default_rng(3)
    rule = DecisionRule(min_efficiency=0.5, by=by)
    return [Study.drawn(name, each, rule, 0.01, generator) for name, each in partitions.items()]


def stopped(made: Sequence[Study]) -> list[str]:
    return [study.name for study in made if study.rounds[-1].is_outdone]


@pytest.mark.slow
def test_a_partition_that_is_slower_and_more_expensive_is_measured_no_further_than_its_baseline() -> None:
    made = chosen_studies(old=CHEAP, new=FAR_BETTER)
    play(made)

    assert stopped(made) == ["old"]
    old, new = made
    assert {devices for devices, n in old.repeats().items() if n} == {1}
    assert len(new.rounds) > 1
    for aim in AIMS:
        assert best(made, aim, measured=True) == best(made, aim, measured=False)

    # terminal and report give the reason
    so_far = old.so_far()
    summary = ChoiceSummary.of(so_far.experiment, old.rounds, so_far.found.runs, "all runs", so_far.spending)
    why = "another partition is better: the chance that this one gives the answer across partitions is"
    assert summary is not None
    assert summary.outdone is not None
    assert summary.outdone <= OTHER_ANSWER
    assert why in summary.sentences()[-1]
    assert why in summary.open_sentences()[0]
    assert summary.action() == ""
    assert ChoiceSummary.from_dict(summary.as_dict()) == summary
    assert any(why in line for line in round_story(old.rounds[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "partitions", "without"),
    [
        ("time", {"cheap": CHEAP, "fast": FAST}, ["cheap"]),
        ("cost", {"cheap": CHEAP, "fast": FAST}, ["fast"]),
        (None, {"cheap": CHEAP, "fast": FAST}, []),
        ("soonest", {"near": CHEAP, "far": replace(BETTER, queue_minutes=600)}, ["far"]),
        # the energy of a run is unknown before it ends
        ("energy", {"old": CHEAP, "new": BETTER}, []),
    ],
)
def test_a_partition_is_measured_further_while_it_may_be_the_best(
    by: Aim | None, partitions: dict[str, PlantedPartition], without: list[str]
) -> None:
    made = chosen_studies(by, **partitions)
    play(made)

    assert stopped(made) == without
    if by == "energy":
        assert [study.rounds[-1].wins for study in made] == [None, None]


@pytest.mark.slow
def test_equal_partitions_never_stop_each_other() -> None:
    made = chosen_studies(a=CHEAP, b=replace(CHEAP, rate=100.5))
    play(made)

    assert len(stopped(made)) <= 1


def test_the_chance_of_a_partition_is_that_of_the_draws_in_which_it_wins_by_the_gain() -> None:
    of = [np.array([10.0, 10.0, 10.0, 10.0]), np.array([9.0, 9.8, 11.0, 12.0])]
    contenders = [Contender(dict.fromkeys(AIMS, seconds)) for seconds in of]

    # the first one's median is the least; the second one wins by 5 % in one draw of four
    assert chance_to_win(0, contenders, AIMS, 0.05) == 1.0
    assert chance_to_win(1, contenders, AIMS, 0.05) == 0.25
    assert chance_to_win(1, contenders, AIMS, 0.0) == 0.5


@pytest.mark.slow
def test_partitions_share_what_is_left_of_one_budget() -> None:
    a, b = chosen_studies("energy", a=CHEAP, b=CHEAP)
    # half of the rest pays a run of 4 devices, and none of 8
    rest = a.device_hours(a.repeats()) + b.device_hours(b.repeats()) + 15

    def with_budget(study: Study) -> StudySoFar:
        so_far = study.so_far()
        return replace(so_far, terms=replace(so_far.terms, budget=rest, run_minutes=60))

    shared, alone = choose(with_budget(a), 1, [with_budget(b)]), choose(with_budget(a), 1)
    paid, paid_alone = (
        sum((point.next_asked - point.asked) * int(point.point[1:]) for point in judged.points)
        for judged in (shared, alone)
    )
    assert 0 < paid <= 7.5
    assert shared.spent_by_sisters == pytest.approx(b.device_hours(b.repeats()))
    assert paid_alone > paid


@pytest.mark.slow
def test_a_partition_without_a_measured_baseline_is_not_judged_by_others() -> None:
    a, b = chosen_studies(old=CHEAP, new=BETTER)
    a.asked = dict.fromkeys(a.asked, 0)

    assert chance_among(a.so_far(), [b.so_far()]) is None
    assert chance_among(b.so_far(), [a.so_far()]) == 1.0
