"""Clusters of several partitions with planted speeds: a study that chooses its device counts on all of them.

Each partition's rounds go the way of a real study: ``conclude``, then ``choose`` with the other partitions
before the same round, until none requests more. The right answer is that of the true speeds: by time and by
the soonest end the best of the partitions' answers, by cost the cheapest count that misses no criterion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.conclusion import Conclusion, conclude
from scalewise.analysis.decision.walk import NONE
from scalewise.analysis.rounds.contenders import AIMS, Aim
from scalewise.analysis.rounds.judge_round import ChoiceTerms, StudySoFar, choose
from scalewise.analysis.rounds.likely_answers import RunTimes, answers
from scalewise.analysis.rounds.repeats import judge
from scalewise.analysis.tables import RUN_COLUMNS, Tables
from scalewise.plan.config.experiment import AnyExperiment, DecisionRule, Repeats, read_experiment
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.rounds import Round, first_repeats
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.plan.runs.runs import points
from scalewise.plan.runs.spending import Spending

SAMPLES = 1e6
START_UP_SECONDS = 60.0
NOWHERE = Path("no-results")
REPEATS = Repeats(min=3, max=10)


@dataclass(frozen=True)
class PlantedPartition:
    """GPUs of one kind.

    Args:
        rate: Samples/s of one device.
        overhead: Part of a step on two devices, over the baseline's step.
        per_node: Devices of a node.
        most: Devices of the largest run.
        jump: Factor on the overhead from one node to two.
        rise: Power by which it rises with the devices.
        price: Of one device for one hour.
        queue_minutes: Wait of every job.
    """

    rate: float
    overhead: float = 0.05
    per_node: int = 4
    most: int = 64
    jump: float = 2.0
    rise: float = 0.3
    price: float = 1.0
    queue_minutes: float = 0.0

    @property
    def counts(self) -> list[int]:
        """Device counts that fill nodes, fewest first."""
        within = [2**power for power in range(10) if 2**power <= self.per_node]
        return within + [
            self.per_node * nodes for nodes in (2, 3, 4, 6, 8, 12, 16) if self.per_node * nodes <= self.most
        ]

    def shape(self, devices: int) -> Shape:
        return Shape(max(devices // self.per_node, 1), min(devices, self.per_node))

    def true_speed(self, devices: int) -> float:
        if devices == 1:
            return self.rate
        jump = self.jump if devices > self.per_node else 1.0
        return float(self.rate * devices / (1 + self.overhead * (devices / 2) ** self.rise * jump))

    def seconds(self, devices: int, speed: float) -> float:
        return START_UP_SECONDS + SAMPLES / speed


@dataclass
class Study:
    """A study on one partition, with the speed of every run that it can make."""

    name: str
    partition: PlantedPartition
    experiment: AnalysisSpec
    speeds: Mapping[int, Sequence[float]]
    asked: dict[str, int] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)

    @classmethod
    def drawn(
        cls,
        name: str,
        partition: PlantedPartition,
        rule: DecisionRule,
        scatter: float,
        generator: np.random.Generator,
    ) -> Study:
        """Draw the speeds of all runs, with a standard deviation of their logarithms."""
        spec = read_experiment(
            {
                "model": "cnn",
                "dataset": "digits",
                "scaling": "weak",
                "batch_size_per_device": 32,
                "devices": {"among": partition.counts},
                "repeats": REPEATS.model_dump(),
                "decision": rule.model_dump(),
                "epochs": 1,
            }
        )
        queue = {devices: partition.queue_minutes for devices in partition.counts if partition.queue_minutes}
        noise = {each: np.exp(scatter * generator.standard_normal(REPEATS.max)) for each in partition.counts}
        speeds = {each: (partition.true_speed(each) * noise[each]).tolist() for each in partition.counts}
        return cls(name, partition, AnalysisSpec(name, spec, queue), speeds, dict(first_repeats(spec)))

    @property
    def spec(self) -> AnyExperiment:
        return self.experiment.spec

    def repeats(self) -> dict[int, int]:
        return {point.world_size: self.asked[point.name] for point in points(self.spec)}

    def seconds(self, devices: int, repeat: int) -> float:
        return self.partition.seconds(devices, self.speeds[devices][repeat - 1])

    def device_hours(self, repeats: Mapping[int, int]) -> float:
        return sum(
            devices * self.seconds(devices, repeat) / 3600
            for devices, n in repeats.items()
            for repeat in range(1, n + 1)
        )

    def conclusion(self) -> Conclusion:
        rows = [
            {
                "experiment": self.name,
                "run": f"d{devices}.r{repeat}",
                "series": NO_OPTIONS,
                "devices": devices,
                "nodes": float(self.partition.shape(devices).nodes),
                "devices_per_node": float(self.partition.shape(devices).devices_per_node),
                "repeat": repeat,
                "outcome": "completed",
                "reason": "",
                "fingerprint": "all alike",
                THROUGHPUT: self.speeds[devices][repeat - 1],
                "train_seconds": self.seconds(devices, repeat) - START_UP_SECONDS,
                "wall_seconds": self.seconds(devices, repeat),
                "device_hours": devices * self.seconds(devices, repeat) / 3600,
            }
            for devices, n in self.repeats().items()
            for repeat in range(1, n + 1)
        ]
        return conclude(
            self.experiment,
            Tables(pd.DataFrame(rows).reindex(columns=RUN_COLUMNS), pd.DataFrame(columns=["run"]), []),
        )

    def so_far(self) -> StudySoFar:
        """The study as a round reads it."""
        repeats = self.repeats()
        seconds = {
            f"d{devices}.r{repeat}": self.seconds(devices, repeat)
            for devices, n in repeats.items()
            for repeat in range(1, n + 1)
        }
        shapes = {str(each): self.partition.shape(each) for each in repeats}
        terms = ChoiceTerms(shapes, {}, price=self.partition.price)
        spending = Spending(seconds, self.device_hours(repeats))
        return StudySoFar(self.experiment, terms, self.asked, self.conclusion(), spending, NOWHERE)

    def full_grid(self) -> float:
        """Device-hours of all counts, with repeats until the decision is clear."""
        study = replace(self, asked=dict.fromkeys(self.asked, REPEATS.min))
        while True:
            found = study.conclusion()
            judged = judge(study.name, 1, found.runs, REPEATS, found.decision)
            if not judged.requests_more:
                return study.device_hours(study.repeats())
            study.asked = {point.point: point.next_asked for point in judged.points}

    def takes(self, counts: Sequence[int], *, aim: Aim, measured: bool) -> dict[int, float]:
        """What a training takes on each count that may be the answer by an aim, by its true speed.

        Args:
            measured: Choose by the runs that were made, and not by the true speeds.
        """
        repeats, rule = self.repeats(), self.spec.decision
        speeds = np.array(
            [
                float(np.exp(np.mean(np.log(self.speeds[each][: repeats[each]]))))
                if measured
                else self.partition.true_speed(each)
                for each in counts
            ]
        )
        devices = np.array(counts, dtype=float)
        times = RunTimes(
            START_UP_SECONDS,
            np.full(len(counts), SAMPLES),
            devices,
            np.full(len(counts), 60 * self.partition.queue_minutes),
        )
        given = answers(np.log(speeds)[None], devices, rule, times)
        answer = int(given.index[0])
        said = np.flatnonzero(given.met[0]).tolist() if aim == "cost" else [answer] if answer != NONE else []
        found = {}
        for index in said:
            count = counts[index]
            seconds = self.partition.seconds(count, self.partition.true_speed(count))
            amounts: dict[Aim, float] = {
                "time": seconds,
                "cost": seconds * count * self.partition.price / 3600,
                "soonest": seconds + 60 * self.partition.queue_minutes,
            }
            found[count] = amounts[aim]
        return found


RULES = {
    "efficiency 0.5": DecisionRule(min_efficiency=0.5),
    "efficiency 0.8": DecisionRule(min_efficiency=0.8),
    "the knee": DecisionRule(),
    "a deadline": DecisionRule(deadline_minutes=20),
    "device-hours": DecisionRule(max_device_hours=3.5),
}


def drawn_cluster(rule: DecisionRule, scatter: float, seed: int) -> list[Study]:
    """Draw two to four partitions, of GPUs, networks, prices and queues that differ, and the runs' speeds."""
    generator = np.random.default_rng(seed)
    studies = []
    for number in range(int(generator.integers(2, 5))):
        rate = float(np.exp(generator.normal(np.log(100), 0.5)))
        partition = PlantedPartition(
            rate,
            overhead=float(np.exp(generator.normal(np.log(0.06), 0.7))),
            per_node=int(generator.choice([2, 4, 8])),
            most=int(generator.choice([16, 32, 64])),
            jump=float(generator.uniform(1, 3)),
            rise=float(generator.uniform(0.1, 0.6)),
            # dearer GPUs are faster, not in proportion
            price=float(np.exp(generator.normal(0, 0.5))) * (rate / 100) ** 0.7,
            queue_minutes=float(generator.choice([0, 0, 5, 60])),
        )
        studies.append(Study.drawn(f"p{number}", partition, rule, scatter, generator))
    return studies


@dataclass(frozen=True)
class ClusterRates:
    """What studies on drawn clusters came to.

    Args:
        shares: Device-hours of each study over those of every count, with repeats until all is clear.
        answers: Number of answers, one by each aim of each study that has any.
        others: Those that lose more than the gain worth having against the right answer.
        stopped: Partitions that were measured no further, of all.
    """

    shares: list[float]
    answers: int
    others: int
    stopped: float


def cluster_rates(criterion: str, scatter: float, studies: int) -> ClusterRates:
    """Play studies by one of ``RULES`` on as many drawn clusters."""
    rule = RULES[criterion]
    shares: list[float] = []
    answers = others = stopped = partitions = 0
    for seed in range(studies):
        cluster = drawn_cluster(rule, scatter, seed)
        play(cluster)
        spent = sum(study.device_hours(study.repeats()) for study in cluster)
        shares.append(spent / sum(study.full_grid() for study in cluster))
        stopped += sum(study.rounds[-1].is_outdone for study in cluster)
        partitions += len(cluster)
        for aim in AIMS:
            right = best(cluster, aim, measured=False)
            if right is not None:
                given = best(cluster, aim, measured=True)
                answers += 1
                others += given is None or given > right * (1 + rule.min_gain) * (1 + 1e-9)
    return ClusterRates(shares, answers, others, stopped / partitions)


def best(studies: Sequence[Study], aim: Aim, *, measured: bool) -> float | None:
    """What a training truly takes by the answer of all partitions, seconds or cost; None without an answer.

    Args:
        measured: The answer of the runs that were made, and not of the true speeds.
    """
    takes: list[float] = []
    for study in studies:
        repeats = study.repeats()
        counts = [each for each in study.partition.counts if repeats[each] or not measured]
        takes += study.takes(counts, aim=aim, measured=measured).values()
    return min(takes, default=None)


def play(studies: Sequence[Study]) -> None:
    """Make rounds until no study requests more; each sees the other partitions."""
    number, going = 1, list(studies)
    before = {study.name: study.so_far() for study in studies}
    while going:
        judged = {
            study.name: choose(
                before[study.name], number, [before[each.name] for each in studies if each is not study]
            )
            for study in going
        }
        for study in list(going):
            following = judged[study.name]
            study.rounds.append(following)
            if following.requests_more:
                study.asked = {point.point: point.next_asked for point in following.points}
                before[study.name] = study.so_far()
            else:
                going.remove(study)
        number += 1
