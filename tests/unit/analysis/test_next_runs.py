"""Which runs a study makes next, on curves whose answer is known, and what its budget pays."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.planted_study import CHOOSING, Law, PlantedStudy, experiments
from tests.unit.analysis.decision_cases import RATES, of
from tests.unit.analysis.planted import ONLY

from scalewise.analysis.judge_round import Limits, judge
from scalewise.analysis.next_runs import Findings, next_runs
from scalewise.config.experiment import DecisionRule, Repeats
from scalewise.plan.rounds import FIRST_OF_BASELINE, Round, device_hours
from scalewise.records import RECORD

COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
REPEATS = Repeats(min=3, max=10)
HIGH = DecisionRule(min_efficiency=0.7)


@dataclass
class Simulated:
    """A study without scatter.

    Args:
        truth: Device count -> efficiency.
    """

    truth: Mapping[int, float]
    rule: DecisionRule
    requests: list[dict[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runs = dict.fromkeys(self.truth, 0) | {min(self.truth): FIRST_OF_BASELINE}

    def findings(self) -> Findings:
        rule = self.rule
        speeds = {devices: devices * self.truth[devices] for devices, n in self.runs.items() if n}
        misses = {
            devices
            for devices, speed in speeds.items()
            if (rule.min_efficiency and self.truth[devices] < rule.min_efficiency)
            or (rule.deadline_minutes and 1 / speed > rule.deadline_minutes)
            or (rule.max_device_hours and devices / speed > rule.max_device_hours)
        }
        met = [devices for devices in sorted(speeds) if devices not in misses]
        beaten = {a for a in met for b in met if speeds[b] > (1 + rule.min_gain) * speeds[a]}
        best = next((each for each in met if rule.deadline_minutes or each not in beaten), None)
        return Findings(best, speeds, frozenset(misses), fewest=1 / (rule.deadline_minutes or math.inf))

    def play(self) -> int | None:
        """Make runs until none is requested, and return the answer."""
        while wanted := next_runs(list(self.truth), self.runs, self.findings(), self.rule, REPEATS):
            self.requests.append(wanted)
            self.runs |= wanted
        return self.findings().best


def efficiencies(*values: float) -> dict[int, float]:
    return dict(zip(COUNTS, values, strict=True))


ALL_GOOD = efficiencies(*[1.0] * 10)
FALLING = {devices: 1 / (1 + 0.02 * (devices - 1)) for devices in COUNTS}


@pytest.mark.parametrize(
    ("truth", "rule", "answer", "searched"),
    [
        pytest.param(FALLING, HIGH, 16, [2, 4, 8, 16, 32, 24], id="doubles until two miss"),
        pytest.param(ALL_GOOD, HIGH, 64, [2, 4, 8, 16, 32, 64], id="the largest"),
        pytest.param(
            efficiencies(1, 0.97, 0.93, 0.6, 0.75, 0.74, 0.6, 0.55, 0.5, 0.45),
            HIGH, 16, [2, 4, 8, 16, 32, 24],
            id="a dip at two nodes",
        ),
        pytest.param(
            efficiencies(1, 0.97, 0.93, 0.5, 0.72, 0.6, 0.5, 0.5, 0.4, 0.4),
            HIGH, 12, [2, 4, 8, 16, 12, 24],
            id="between two that miss",
        ),
        pytest.param(
            efficiencies(1, 0.9, 0.8, 0.3, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3), HIGH, 4, [2, 4, 8],
            id="one that misses by far",
        ),
        pytest.param(
            {devices: min(1, 12 / devices) for devices in COUNTS}, DecisionRule(min_efficiency=0.3),
            12, [2, 4, 8, 16, 32, 24, 12],
            id="fewer are as fast",
        ),
        pytest.param(
            FALLING, DecisionRule(max_device_hours=1.4), 16, [2, 4, 8, 16, 32, 24],
            id="a most of device-hours",
        ),
        pytest.param(ALL_GOOD, DecisionRule(deadline_minutes=1 / 11), 12, [12], id="a deadline"),
        pytest.param(
            efficiencies(1, 0.97, 0.93, 0.3, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3),
            DecisionRule(deadline_minutes=1 / 4.5), 12, [8, 16, 12],
            id="a deadline after a dip",
        ),
        pytest.param(
            ALL_GOOD, DecisionRule(deadline_minutes=1 / 65), None, [], id="a deadline that no ideal keeps"
        ),
        pytest.param(
            {devices: devices**-0.99 for devices in COUNTS}, DecisionRule(deadline_minutes=0.1),
            None, [12, 24],
            id="a deadline that none keeps",
        ),
    ],
)  # fmt: skip
def test_the_search_finds_the_answer_with_one_run_a_count(
    truth: dict[int, float], rule: DecisionRule, answer: int | None, searched: list[int]
) -> None:
    study = Simulated(truth, rule)
    assert study.play() == answer
    new = [next(iter(each)) for each in study.requests if len(each) == 1 and 1 in each.values()]
    assert new == searched
    # the answer and its baseline get their repeats together, the others keep their single run
    rests_on = {1, answer} if answer else {1}
    assert {devices for devices, n in study.runs.items() if n == REPEATS.min} == rests_on
    assert study.requests[-1].keys() == rests_on


@pytest.mark.parametrize(("repeats", "misses"), [(1, {1, 2}), (6, {1, 2, 4})])
def test_a_single_run_that_keeps_the_deadline_is_repeated_before_more_devices_are_tried(
    repeats: int, misses: set[int]
) -> None:
    # 4 devices take 35.3 minutes, but the next run might take more than 35.5
    analysis = of(RATES, repeats=repeats).analysis(DecisionRule(deadline_minutes=35.5))
    assert analysis.answer.devices == 8
    found = judge(analysis, ONLY)
    assert found.misses == misses
    # 102 device-minutes on 1 device, within 35.5 minutes and the gain worth having
    assert found.fewest == pytest.approx(102 / 35.5 / 1.05, rel=0.02)


def test_a_doubt_that_100_runs_would_not_settle_gets_no_round_and_one_sentence() -> None:
    close = DecisionRule(min_efficiency=0.7501)
    analysis = of(RATES).analysis(close)
    assert judge(analysis, ONLY).wanted == {}
    assert analysis.answer.certainty == "likely"
    (told,) = [each for each in analysis.answer.cautions if "0.7501" in each[0]]
    assert told[1].startswith("More repeats do not tell")
    # one run does not show how close they are
    assert judge(of(RATES, repeats=1).analysis(close), ONLY).wanted.keys() == {1, 4}


def test_no_requests_exceed_a_budget_whatever_their_runs_take() -> None:
    generator = np.random.default_rng(7)
    for _ in range(300):
        minutes = int(generator.integers(1, 60))
        budget, spent = minutes / 60 * math.exp(generator.uniform(0, 6)), 0.0
        # an allocation of whole nodes holds more devices than a small run uses
        held = dict.fromkeys((1, 2), 4.0) if generator.random() < 0.5 else {}
        for _ in range(20):
            limits = Limits(budget, spent, minutes, held)
            for devices in COUNTS:
                for _ in range(limits.pay(devices, int(generator.integers(0, 4)))):
                    # of some runs the time limit is all that ends them
                    taken = 60 * minutes * min(generator.uniform(0.1, 1.2), 1)
                    spent += device_hours(taken, devices, held)
        assert spent <= budget * (1 + 1e-12)


# --- rounds of planted studies ------------------------------------------------------------------------


OF_A_MINUTE = 1 / 60
"""Device-hours of the most that a run may take on one device."""


def spent(judged: Round) -> float:
    assert judged.spent_device_hours is not None
    return judged.spent_device_hours


def most(judged: Round) -> float:
    """Device-hours if all runs that a round requests start at once, and each takes all of its time."""
    devices = {point: int(point.split(".")[0].removeprefix("d")) for point in judged.further}
    return sum(devices[point] * more * OF_A_MINUTE for point, more in judged.further.items())


@pytest.mark.parametrize("failed_seconds", [0.0, 120.0], ids=["one job", "failed twice"])
def test_tries_that_failed_are_paid_from_the_budget(tmp_path: Path, failed_seconds: float) -> None:
    # two runs of the baseline, and one on 2 devices with all of its time
    budget = 2 * 35.4 / 3600 + 4.5 * OF_A_MINUTE
    keys = CHOOSING | {"runtime_minutes": 1, "budget": {"device_hours": round(budget, 6)}}
    study = PlantedStudy(tmp_path, experiments(gpt=keys), Law(rate=900.0, serial=0.02, scatter=0.004).speed)
    for run in study.make_runs():
        path = study.folder / "runs" / run / RECORD
        record = json.loads(path.read_text(encoding="utf-8"))
        record["provenance"]["failed_seconds"] = failed_seconds
        path.write_text(json.dumps(record), encoding="utf-8")
    judged = study.judge()

    assert spent(judged) >= 2 * failed_seconds / 3600
    assert ("d2" in judged.further) == (not failed_seconds)
    assert spent(judged) + most(judged) <= budget
