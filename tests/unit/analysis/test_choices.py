"""What is chosen among device counts, options, partitions and ways to split devices, and how sure that is."""

import pytest
from tests.truth.answers import rates
from tests.truth.kinds import KINDS
from tests.unit.analysis.decision_cases import CASES, FOUR, RATES, Case, rule
from tests.unit.analysis.planted import ONLY, START_UP, Planted, make_runs, make_spec, make_tables, spread

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.answer import Answer
from scalewise.analysis.choose import Candidate, Check, Chooser
from scalewise.analysis.points import Place
from scalewise.analysis.statistics import Sample
from scalewise.analysis.study import Analysis, Part, conclude


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_case_gets_its_right_answer(case: Case) -> None:
    answer = case.study.analysis(case.rule).answer
    assert answer.devices == case.devices
    assert answer.is_clear == case.clear, answer.reason
    if case.devices is not None:
        assert answer.series == case.series


# ---- the chooser by itself ------------------------------------------------------------------------------


def candidate(devices: int, seconds: list[float], *checks: Check) -> Candidate:
    return Candidate(Place("", ONLY, devices), (float(devices),), {"time": Sample.of(seconds)}, checks)


def test_an_open_criterion_is_a_doubt_only_if_it_changes_the_choice() -> None:
    def asked(by_mean: bool) -> Check:
        return Check("min_efficiency", "open", by_mean, "" if by_mean else "efficiency 0.69", 7)

    def doubts(fast: float, *, by_mean: bool) -> list[tuple[object, int | None]]:
        found = [candidate(1, spread(100.0)), candidate(4, spread(fast), asked(by_mean))]
        return [
            (each.candidate.key.devices, each.repeats)
            for each in Chooser(found, "time", 0.05).choose().doubts
        ]

    assert doubts(30.0, by_mean=True) == [(4, 7)]
    assert doubts(30.0, by_mean=False) == [(4, 7)]
    assert doubts(120.0, by_mean=False) == doubts(120.0, by_mean=True) == []


# ---- criteria -------------------------------------------------------------------------------------------


def test_required_efficiencies_are_answered_one_by_one() -> None:
    # efficiencies 1, 0.95, 0.75, 0.5
    answer = FOUR.analysis(rule(min_efficiency=0.7)).answer
    assert dict(answer.required) == {
        "0.5": "8 GPUs", "0.6": "4 GPUs", "0.7": "4 GPUs", "0.8": "2 GPUs", "0.9": "2 GPUs",
    }  # fmt: skip


# ---- partitions and splits ------------------------------------------------------------------------------


PARTITIONS = {"a100": {1: 100.0, 2: 195.0, 4: 370.0, 8: 640.0}, "h200": {1: 200.0, 2: 380.0, 4: 690.0}}
PRICES = {"a100": 2.0, "h200": 3.0}
"""Efficiencies of 0.8 on 8 and 0.86 on 4. A million samples take 2 x 8 / 640 and 3 x 4 / 690 of price."""


def on_partitions(by: str | None) -> Analysis:
    decision = {"min_efficiency": 0.7} | ({} if by is None else {"by": by})
    parts, tables = [], []
    for name, speeds in PARTITIONS.items():
        spec = AnalysisSpec("x", make_spec(sorted(speeds), decision=decision), accelerator="cuda")
        parts.append(Part(name, spec, price=PRICES[name], unit="price"))
        tables.append(make_tables(make_runs({(ONLY, d): spread(rate) for d, rate in speeds.items()})))
    return conclude("x", parts, tables)


@pytest.mark.parametrize(("by", "place"), [("time", ("h200", 4)), ("cost", ("h200", 1)), (None, ("h200", 4))])
def test_partitions_compete_by_the_amount_that_counts(by: str | None, place: tuple[str, int]) -> None:
    answer = on_partitions(by).answer
    assert (answer.partition, answer.devices) == place
    rows = {row.label: row.verdict for row in answer.candidates}
    assert len(rows) == 7
    assert "best for time" in rows["4 GPUs on h200"]
    assert "best for cost" in rows["1 GPU on h200"]


@pytest.mark.parametrize(("least", "devices"), [(None, 4), (0.8, 4), (0.9, 2), (0.97, 1)])
def test_each_way_to_split_the_devices_keeps_the_efficiency_that_is_required(
    least: float | None, devices: int
) -> None:
    # two at a time on 4 devices take 1,834 s, at an efficiency of 0.83; one by one on 8 they take 2,240 s
    speeds = {1: 100.0, 2: 190.0, 4: 350.0, 8: 600.0}
    study = Planted({(ONLY, d): spread(rate, 0.002) for d, rate in speeds.items()})
    answer = study.analysis(rule(min_efficiency=least), trainings=2).answer
    assert (answer.devices, answer.is_clear) == (devices, True)
    assert ("efficiency" in answer.rule) == (least is not None)


# ---- the form of the answer -----------------------------------------------------------------------------


def test_an_answer_is_read_back_from_json_as_it_was() -> None:
    answer = on_partitions("time").answer
    assert Answer.from_json(answer.to_json()).to_json() == answer.to_json()


def test_every_figure_of_an_answer_is_by_the_clock_that_decides() -> None:
    """With a deadline whole runs decide: the speed, the efficiency and the cost are theirs."""
    answer = FOUR.analysis(rule(deadline_minutes=40)).answer
    walls = {devices: START_UP + 600_000 / rate for devices, rate in RATES.items()}
    values = {each.label: each.value for each in answer.figures}
    assert answer.clock == "runs"
    assert values["Speed"] == pytest.approx(walls[1] / walls[4], rel=1e-3)
    assert values["Efficiency"] == pytest.approx(walls[1] / walls[4] / 4, rel=1e-3)
    assert values["Cost"] == pytest.approx(4 * walls[4] / 3600, rel=1e-3)
    assert f"{walls[1] / walls[4]:.2f}x" in answer.sentence


# --- simulated studies: python -m tests.truth draws more -----------------------------------------------


DRAWN = 6
LEAST_RIGHT = {
    "quiet": 6,
    "quiet, no gain": 5,
    "two equal options": 5,
    "an option twice as fast": 6,
    "the first repeat is cold": 6,
    "shuffled blocks, speed rises by 15 %": 2,
}
"""Studies that must get their answer, not only no wrong one."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_no_answer_is_clear_and_wrong_and_a_quiet_study_is_right_and_clear(kind: str) -> None:
    found = rates(kind, scatter=0.01, n=3, studies=DRAWN)
    assert found.total() == DRAWN
    assert found["wrong"] <= 1
    assert found["right"] >= LEAST_RIGHT.get(kind, 0)
