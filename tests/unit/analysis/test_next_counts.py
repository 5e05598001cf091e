"""Which device counts a study measures next, on curves whose answer is known, and what its budget pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from tests.planted_records import leave_history
from tests.planted_study import CHOOSING, SITE, PlantedStudy, overhead
from tests.small_runs import definition
from tests.unit.analysis.planted_tables import decision_on, make_runs

from scalewise.analysis.decision.card import Card
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.decision.walk import NONE
from scalewise.analysis.rounds.chosen_devices import NextRuns, next_runs
from scalewise.analysis.rounds.likely_answers import RunTimes, answers
from scalewise.analysis.rounds.possible_speeds import Candidate, SeriesSoFar
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import DecisionRule, Repeats
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.rounds import FIRST_OF_BASELINE, Round
from scalewise.plan.runs.spending import Spending
from scalewise.records import HISTORY, SUMMARY, Start, later

pytestmark = pytest.mark.slow

PER_NODE = 4
COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
DENSE = (1, 2, 4, *range(8, 129, 8))
SAMPLES, START_UP_SECONDS = 1e6, 60.0
REPEATS = Repeats(min=6, max=10)

RULES = {
    "half": DecisionRule(min_efficiency=0.5),
    "knee": DecisionRule(),
    "knee of large gains": DecisionRule(min_gain=0.2),
    "deadline": DecisionRule(deadline_minutes=20),
    "deadline and efficiency": DecisionRule(deadline_minutes=20, min_efficiency=0.6),
    "device-hours and efficiency": DecisionRule(max_device_hours=5, min_efficiency=0.7),
}

HIGH = DecisionRule(min_efficiency=0.7)

Speeds = Mapping[int, Sequence[float]]
"""Devices -> speed of each run that has one."""


def decide(speeds: Speeds, rule: DecisionRule) -> Decision:
    """Return the decision of the pipeline on runs of these speeds."""
    runs = make_runs({("all runs", devices): found for devices, found in speeds.items()})
    seconds = SAMPLES / runs["throughput_samples_per_second"]
    runs = runs.assign(
        nodes=(runs["devices"] / PER_NODE).clip(lower=1.0),
        train_seconds=seconds,
        wall_seconds=START_UP_SECONDS + seconds,
        device_hours=(START_UP_SECONDS + seconds) * runs["devices"] / 3600,
    )
    return decision_on(runs, rule)


def curve(generator: np.random.Generator, counts: Sequence[int] = COUNTS) -> dict[int, float]:
    """Return speeds with an overhead that rises by some power, jumps at two nodes, and is uneven."""
    level, slope, jump = generator.uniform((0.005, 0.2, 0.0), (0.1, 0.8, 0.5))
    speeds = {}
    for devices in counts:
        overhead = level * (devices**slope - 1) + jump * (devices > PER_NODE)
        speeds[devices] = 100 * devices / (1 + overhead * math.exp(0.2 * generator.standard_normal()))
    return speeds


def decided_by_all(truth: Mapping[int, float], rule: DecisionRule) -> int | None:
    return decide({devices: [speed] * 3 for devices, speed in truth.items()}, rule).devices


@pytest.mark.parametrize("name", RULES)
def test_possible_answers_are_those_of_the_decision_where_speeds_are_known(name: str) -> None:
    rule, generator, counts = RULES[name], np.random.default_rng(3), COUNTS[:6]
    devices = np.array(counts, dtype=np.float64)
    times = RunTimes(START_UP_SECONDS, np.full(len(counts), SAMPLES), devices, np.zeros(len(counts)))
    for _ in range(2):
        speeds = curve(generator, counts)
        logs = np.log([list(speeds.values())])
        (index,) = answers(logs, devices, rule, times).index
        assert (None if index == NONE else counts[index]) == decided_by_all(speeds, rule)
        # the answer of some counts only is that of a study which measured no others
        only = np.array([True, *(generator.random(len(counts) - 1) < 0.5)])
        (index,) = answers(logs, devices, rule, times, only).index
        measured = {each: [speeds[each]] * 3 for each, is_one in zip(counts, only, strict=True) if is_one}
        assert (None if index == NONE else counts[index]) == decide(measured, rule).devices


def test_deadline_is_held_against_a_bound_of_the_next_run_and_its_queue() -> None:
    rule, devices = DecisionRule(deadline_minutes=10), np.array([1.0, 2.0, 4.0])
    times = RunTimes(0.0, np.full(3, 600.0 * 100), devices, np.zeros(3))
    logs = np.log([[99.0, 198.0, 396.0]])
    assert answers(logs, devices, rule, times).index == [1]
    assert answers(logs, devices, rule, replace(times, queue_seconds=np.array([0, 320.0, 0]))).index == [2]
    assert answers(logs, devices, rule, replace(times, next_over_median=2.0)).index == [2]
    assert answers(logs, devices, rule, replace(times, next_over_median=5.0)).index == [NONE]


@dataclass
class SimulatedStudy:
    """A study that chooses among counts whose true speeds are planted.

    Args:
        repeats: Fewest and most of a point.
        scatter: Standard deviation of the logarithm of a run's speed.
        wild: Devices -> factor on the speed of the first run.
        without_speed: Counts whose runs complete without a speed.
        affordable: Whether a run on so many devices can be paid.
    """

    truth: Mapping[int, float]
    rule: DecisionRule
    repeats: Repeats = REPEATS
    scatter: float = 0.005
    wild: Mapping[int, float] = field(default_factory=dict)
    without_speed: Sequence[int] = ()
    affordable: Callable[[int], bool] = lambda _devices: True
    asked: dict[int, int] = field(default_factory=dict)
    rounds: list[NextRuns] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(5)
        self._runs = {
            devices: (speed * np.exp(self.scatter * generator.standard_normal(self.repeats.max))).tolist()
            for devices, speed in self.truth.items()
        }
        for devices, factor in self.wild.items():
            self._runs[devices][0] *= factor
        self.asked = dict.fromkeys(self.truth, 0) | {min(self.truth): FIRST_OF_BASELINE}

    def speeds(self) -> dict[int, list[float]]:
        return {
            devices: self._runs[devices][:n]
            for devices, n in self.asked.items()
            if n and devices not in self.without_speed
        }

    def next(self) -> NextRuns:
        speeds = self.speeds()
        base = min(self.truth)
        known = bool(speeds.get(base))
        decision = decide(speeds, self.rule) if known else _no_decision()
        series = SeriesSoFar(
            series="all runs",
            candidates=[
                Candidate(devices, max(1, devices // PER_NODE), float(devices), 32 * devices)
                for devices in self.truth
            ],
            asked=self.asked,
            speeds=speeds,
            train_seconds={devices: [SAMPLES / each for each in found] for devices, found in speeds.items()},
            other_seconds={devices: [START_UP_SECONDS] * len(found) for devices, found in speeds.items()},
            decision=decision,
            ended_by_steps=False,
        )
        return next_runs(series, self.rule, "strong", self.repeats, self.affordable)

    def run(self) -> int | None:
        """Continue until nothing more is requested, and return the answer."""
        while True:
            found = self.next()
            self.rounds.append(found)
            measured = self.speeds()
            more = False
            for devices, (why, n) in found.wanted.items():
                assert not (why == "may be the answer" and devices in measured)
                if why == "may be the answer":
                    assert self.affordable(devices)
                wanted = min(n, self.repeats.max)
                more |= wanted > self.asked[devices]
                self.asked[devices] = max(self.asked[devices], wanted)
            if not more:
                return found.choice.devices
            assert len(self.rounds) <= self.repeats.max * len(self.truth), "it does not end"


def _no_decision() -> Decision:
    return Decision(
        "study", None, None, Card("No answer yet."), alternatives=[], options=[], cautions=[], clear=False
    )


def test_every_study_ends_with_enough_repeats_of_the_answer_of_all_counts_and_measures_fewer() -> None:
    generator, same, measured = np.random.default_rng(7), 0, 0
    for number, rule in enumerate(RULES.values()):
        repeats = REPEATS if number % 2 else Repeats(min=3, max=5)
        truth = curve(generator, COUNTS[2:] if number == 0 else COUNTS[:8])
        study = SimulatedStudy(truth, rule, repeats)
        answer = study.run()
        assert all(n <= repeats.max for n in study.asked.values())
        assert study.asked[min(truth)] >= repeats.min
        if answer is not None:
            assert study.asked[answer] >= repeats.min
        same += answer == decided_by_all(study.truth, rule)
        measured += sum(n > 0 for n in study.asked.values())
    assert same >= len(RULES) - 1
    assert measured <= 0.6 * len(RULES) * len(COUNTS[:8])


def test_a_dense_grid_is_not_measured_count_by_count() -> None:
    # efficiency falls to 0.4 on 128 devices, and to 0.5 between 80 and 88
    study = SimulatedStudy({n: 100 * n / (1 + 0.012 * (n - 1)) for n in DENSE}, RULES["half"])
    answer = study.run()
    assert answer is not None
    assert abs(answer - 80) <= 8
    scouted = [
        each for each in study.rounds if "may be the answer" in {why for why, _ in each.wanted.values()}
    ]
    assert len(scouted) <= 8


def test_few_runs_are_spent_where_no_other_count_or_none_at_all_can_be_the_answer() -> None:
    study = SimulatedStudy({devices: 100.0 * devices**0.1 for devices in COUNTS}, HIGH)
    assert study.run() == 1
    assert sum(n for devices, n in study.asked.items() if devices > 1) <= 6
    late = SimulatedStudy(curve(np.random.default_rng(1)), DecisionRule(deadline_minutes=0.5))
    assert late.run() is None
    assert sum(n > 0 for n in late.asked.values()) <= 3


def test_dip_at_two_nodes_does_not_hide_what_lies_behind_it() -> None:
    efficiency = {1: 1.0, 2: 0.97, 4: 0.93, 8: 0.6, 12: 0.75, 16: 0.74, 24: 0.6, 32: 0.55, 48: 0.5, 64: 0.45}
    truth = {devices: 100 * devices * each for devices, each in efficiency.items()}
    assert SimulatedStudy(truth, HIGH).run() == 16


def test_wild_run_of_what_would_be_the_answer_is_made_again() -> None:
    truth = {devices: 100 * devices / (1 + 0.004 * (devices - 1)) for devices in COUNTS}
    study = SimulatedStudy(truth, HIGH, wild={64: 0.8})
    assert study.run() == 64
    assert any(each.wanted.get(64) == ("undecided", 2) for each in study.rounds)


def test_counts_that_gave_no_speed_are_passed_over() -> None:
    truth = {devices: 99.0 * devices for devices in COUNTS}
    study = SimulatedStudy(truth, RULES["half"], without_speed=(64, 48))
    assert study.run() == 32
    assert max(study.asked[64], study.asked[48]) <= 1, "one run each showed that there is none"


def test_a_study_without_a_baseline_or_any_count_requests_nothing() -> None:
    failing = SimulatedStudy(curve(np.random.default_rng(1)), RULES["half"], without_speed=(1,)).next()
    assert (failing.wanted, failing.choice.devices) == ({}, None)
    series = SeriesSoFar("all runs", [], {}, {}, {}, {}, _no_decision(), False)
    found = next_runs(series, RULES["half"], "weak", REPEATS)
    assert (found.wanted, found.choice.other_answer) == ({}, 1)
    first = SimulatedStudy(curve(np.random.default_rng(1)), RULES["half"])
    first.asked = dict.fromkeys(first.truth, 0)
    assert first.next().wanted == {1: ("baseline", FIRST_OF_BASELINE)}, "before any run"


def test_counts_that_cannot_be_paid_are_not_requested() -> None:
    study = SimulatedStudy(
        {devices: 99.0 * devices for devices in COUNTS}, RULES["half"], affordable=lambda n: n <= 16
    )
    study.run()
    assert max(devices for devices, n in study.asked.items() if n) <= 16
    assert study.rounds[-1].choice.other_answer > 0.5
    assert {point.devices for point in study.rounds[-1].choice.unmeasured} >= {24, 32, 48, 64}


# --- the budget -----------------------------------------------------------------------------------------


ONE_MINUTE_RUNS = CHOOSING.replace("runtime_minutes: 10", "runtime_minutes: 1")
"""Runs take 35 s of their minute, and the answer, 16 devices, is measured 3 times."""
OF_A_MINUTE = 1 / 60
"""Device-hours of the most that a run may take on one device."""


def with_keys(text: str, keys: str) -> str:
    return text.replace("steps: 300", f"steps: 300\n    {keys}")


def limited(budget: float, text: str = ONE_MINUTE_RUNS) -> str:
    return with_keys(text, f"budget: {{device_hours: {budget:.6f}}}")


def requested(judged: Round) -> dict[str, int]:
    return {
        each.point: each.next_asked - each.asked for each in judged.points if each.next_asked > each.asked
    }


def spent(judged: Round) -> float:
    assert judged.spent_device_hours is not None
    return judged.spent_device_hours


def most(judged: Round) -> float:
    """Device-hours if all runs that a round requests start at once, and each takes all of its time."""
    devices = {point: int(point.split(".")[0].removeprefix("d")) for point in requested(judged)}
    return sum(devices[point] * more * OF_A_MINUTE for point, more in requested(judged).items())


KILLED = None
"""The seconds of a start that was killed after it had begun: it may have taken its limit of a minute."""


def leave_starts(folder: Path, shape: str, *seconds: float | None) -> None:
    starts = []
    for number, taken in enumerate(seconds):
        began = later("2026-03-01T00:00:00+00:00", 1000 * number)
        ended_at = None if taken is KILLED else later(began, taken)
        starts.append(Start(started_at=began, limit_seconds=60, ended_at=ended_at))
    run = definition().model_copy(update={"shape": Shape.parse(shape)})
    leave_history(folder, run, *starts)


def test_runs_of_a_round_that_start_at_once_and_take_all_their_time_keep_to_the_budget(
    tmp_path: Path,
) -> None:
    text = with_keys(ONE_MINUTE_RUNS, "sweep: {gradient_as_bucket_view: [false, true]}")
    text = text.replace("up_to: 16", "up_to: 8")
    points: set[str] = set()
    for budget in (0.3, 0.6):
        study = PlantedStudy(tmp_path / str(budget), limited(budget, text), overhead(0.04))
        for judged in study.play():
            assert spent(judged) + most(judged) <= budget + 1e-9, judged
            points |= requested(judged).keys()
    # a larger budget reaches the most expensive count
    assert {"8" in point for point in points} == {True, False}


def test_a_rest_that_pays_for_one_of_two_repeats_buys_that_one(tmp_path: Path) -> None:
    free = PlantedStudy(tmp_path / "free", ONE_MINUTE_RUNS, overhead(0.04)).play()
    (before,) = (each for each in free if requested(each) == {"d16": 2})
    budget = spent(before) + 1.5 * 16 * OF_A_MINUTE
    rounds = PlantedStudy(tmp_path / "limited", limited(budget), overhead(0.04)).play()

    assert requested(rounds[before.number - 1]) == {"d16": 1}
    last = rounds[-1]
    assert requested(last) == {}
    assert {each.point: each.verdict for each in last.points}["d16"] == "over the budget"
    assert spent(before) < spent(last) <= budget


@pytest.mark.parametrize("further", [[], [KILLED, KILLED]], ids=["one job", "put back twice"])
def test_jobs_that_were_put_back_into_the_queue_are_paid_from_the_budget(
    tmp_path: Path, further: list[float | None]
) -> None:
    # two runs of the baseline, and one on 8 devices with all of its time
    budget = 2 * 35.4 / 3600 + 8.5 * OF_A_MINUTE
    study = PlantedStudy(tmp_path, limited(budget), overhead(0.04))
    for run in study.make_runs():
        leave_starts(study.folder / "runs" / run, "1x1", *further, 35.4)
    judged = study.judge()

    assert judged.spent_device_hours == pytest.approx(2 * (35.4 + 60 * len(further)) / 3600)
    assert ("d8" in requested(judged)) == (not further)
    assert spent(judged) + most(judged) <= budget


def test_spending_is_of_all_jobs_of_all_runs_as_they_are_billed(tmp_path: Path) -> None:
    played = PlantedStudy(tmp_path / "played", ONE_MINUTE_RUNS, overhead(0.04))
    played.make_runs()
    runs = tmp_path / "runs"
    leave_starts(runs / "d2.r1", "1x2", 100.0, 50.0)
    leave_starts(runs / "d8.r1", "2x4", 10.0)  # it failed, or still runs
    (runs / "d16.r1").mkdir()  # nothing is known of it
    leave_starts(runs / "d4.r1", "1x4", 30.0)
    (runs / "d4.r1" / HISTORY).write_text("{", encoding="utf-8")
    # without a history: from its start to its end
    (runs / "d1.r1").mkdir()
    summary = (played.folder / "runs" / "d1.r1" / SUMMARY).read_text(encoding="utf-8")
    (runs / "d1.r1" / SUMMARY).write_text(summary, encoding="utf-8")

    found = Spending.of(runs, {2: 4.0})

    seconds = found.seconds["d1.r1"]
    assert 30 < seconds < 60
    assert dict(found.seconds) == {"d1.r1": seconds, "d2.r1": 150.0, "d8.r1": 10.0}
    # 2 devices are billed as the 4 of their node
    assert found.device_hours == pytest.approx((seconds + 4 * 150 + 8 * 10) / 3600)


# --- a study that goes from a list of device counts to a choice among them ------------------------------

LIST = CHOOSING.replace("{up_to: 16}", "[1, 8]")


@pytest.mark.parametrize(
    ("text", "site", "counted"),
    [
        (CHOOSING, SITE, {"d1": 3, "d8": 3}),
        (CHOOSING, {**SITE, "devices_per_node": 8}, {"d1": 3}),
        (with_keys(CHOOSING, "seed: 7"), SITE, {}),
    ],
    ids=["equal", "other nodes", "other settings"],
)
def test_runs_of_the_list_are_not_made_again_unless_they_were_made_in_another_way(
    tmp_path: Path, text: str, site: dict[str, object], counted: dict[str, int]
) -> None:
    PlantedStudy(tmp_path, LIST, overhead(0.1)).make_runs()
    judged = PlantedStudy(tmp_path, text, overhead(0.1), site).judge()
    assert {point.point: point.completed for point in judged.points if point.completed} == counted


def test_runs_that_are_made_and_runs_that_are_missing_are_of_the_same_series(tmp_path: Path) -> None:
    """The options of a sweep stand in another order in the plan than in the records, which sort them."""
    text = with_keys(CHOOSING, "sweep: {precision: [fp32, bf16], gradient_as_bucket_view: [false, true]}")
    study = PlantedStudy(tmp_path, text, overhead(0.1))
    study.make_runs(most=5)
    judged = study.judge()
    assert sum(point.completed for point in judged.points) == 5
    assert len(judged.choices) == 4
    runs = collect("gpt", study.planned.experiment, study.folder / "runs").runs
    assert runs["series"].nunique() == 4
