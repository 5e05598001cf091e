"""Compare the ways to split devices between several trainings: one wide training or several narrow ones.

With G devices and d of them for each training, k = G // d trainings run at a time, and N trainings take
ceil(N / k) rounds. Every training of a split has the same number of devices, also in a last round that is not
full. Only device counts that were measured are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.comparison.gains import (
    SIGNIFICANCE,
    Measure,
    has_reached,
    sample_of,
    side_by_side,
    tries_of,
)
from scalewise.analysis.conclusion import Conclusion
from scalewise.analysis.decision.choice import Verdict
from scalewise.analysis.decision.criteria import SUCCESSFUL_FROM
from scalewise.analysis.decision.sentences import fill
from scalewise.analysis.decision.wording import repeats_text
from scalewise.analysis.partitions.answer import state_of
from scalewise.analysis.scaling import startup_seconds
from scalewise.analysis.statistics import (
    ENOUGH_REPEATS,
    Interval,
    Ratio,
    geometric_interval,
    holm,
    ratio_of,
    runs_to_tell,
    target_interval,
    target_ratio,
)
from scalewise.plan.config.experiment import Experiment
from scalewise.plan.formatting import HOUR, MINUTE, format_3sig, name_devices

Status = Literal["clear", "equal", "cannot tell", "only one", "unknown"]
"""``equal``: shown to differ by less than is worth having. ``only one``: no second split is known."""

State = Literal["best", "shown", "not worth it", "open"]

COLUMNS = [
    "devices", "at_a_time", "rounds", "last_round", "n",
    *(f"{name}{end}" for name in ("training_seconds", "seconds", "device_hours", "ratio")
      for end in ("", "_low", "_high")),
    "state", "note",
]  # fmt: skip
"""Columns of splits.csv. ``ratio`` is the time over that of the best split."""

SENTENCES = {
    "head": "{trainings} trainings on {total:count}: ",
    "one after another": "one after another on {devices:count}",
    "all at once": "all at once on {devices:count} each",
    "some at a time": "{number} at a time on {devices:count} each",
    "finish": "{split} finish in {time}",
    "then": "; {split} in {time}.",
    "then equal": "; {split} in {time}, which is the same within {gain:exact} %.",
    "cannot tell": "the runs cannot tell which finishes first: {split} in {time}, or {other} in {rival}.",
    "cost": "The first costs {hours} device-hours, the second {others}.",
    "only one": ". No other split was measured.",
    "no time": "{trainings} trainings: the time of one is unknown on every device count.",
    "last round": "The last round has fewer trainings ({last} in place of {number}): devices are idle.",
    "whole nodes": "Each training is billed for whole nodes, so fewer run at a time than there are devices.",
    "total time": "A training is one of the measured runs, start-up and evaluation included.",
    "time to target": "A training ends at the target; its start-up is included, evaluation is not.",
    "time to target without start-up": (
        "A training ends at the target; start-up and evaluation are not included, as some runs have not "
        "recorded it."
    ),
    "throughput": (
        "A training is {samples} samples at the measured throughput; start-up and evaluation are not "
        "included."
    ),
    "jobs": "Each training is a separate job. Waits in the queue are not included.",
    "neighbors": (
        "The times are of single runs. Trainings that share a node share its CPUs, memory bandwidth and "
        "storage, and may be slower."
    ),
}
"""Sentences of the answer; ``decision.sentences.fill`` has their form."""

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Split:
    """A way to split the devices.

    Args:
        devices: Devices of each training.
        at_a_time: Trainings that run at a time.
        rounds: Times that so many run one after the other.
        last_round: Trainings of the last of them.
        training: Seconds of one training.
        seconds: Seconds until all trainings are done.
        device_hours: Device-hours of all trainings, as the site bills them.
    """

    devices: int
    at_a_time: int
    rounds: int
    last_round: int
    training: Interval
    seconds: Interval
    device_hours: Interval


@dataclass(frozen=True)
class SplitAnswer:
    """The answer to "One wide training, or several narrow ones?".

    Args:
        trainings: Number of trainings.
        devices: Devices that are split.
        clock: Time of a training: to the target, of a whole run, or of its samples.
        status: Whether the best split is shown to be the best.
        best: Devices of each training in the best split; None if no split is known.
        sentences: The answer in words, the result first.
        rows: Rows of splits.csv; unknown values are None.
    """

    trainings: int
    devices: int
    clock: Measure
    status: Status
    best: int | None
    sentences: Sequence[str]
    rows: Sequence[dict[str, Any]]

    def named(self, noun: str) -> SplitAnswer:
        """Return the answer with its devices by what they are."""
        return replace(self, sentences=[name_devices(each, noun) for each in self.sentences])


def answer_splits(experiment: AnalysisSpec, found: Conclusion) -> SplitAnswer | None:
    """Return the best way to split the measured devices between the trainings that are planned.

    Args:
        experiment: The experiment, the way the plan defined it.
        found: The conclusion on it.

    Returns:
        The answer; None if fewer than two trainings are planned, or no series has an answer.
    """
    trainings, series = experiment.spec.trainings, found.decision.series
    if trainings is None or trainings < 2 or series is None:
        return None
    return _Comparison(experiment, found, series, trainings).answer()


def splits_table(answer: SplitAnswer | None) -> pd.DataFrame:
    """Return the contents of splits.csv, without a row if there is no answer."""
    return pd.DataFrame([] if answer is None else list(answer.rows), columns=COLUMNS)


class _Comparison:
    """The splits of a series.

    Args:
        experiment: The experiment.
        found: The conclusion on it.
        series: Series of the answer.
        trainings: Number of trainings.
    """

    def __init__(self, experiment: AnalysisSpec, found: Conclusion, series: str, trainings: int) -> None:
        self.experiment, self.series, self.trainings = experiment, series, trainings
        self.compared, self.worth = found.compared, found.terms.rule.min_gain
        planned = found.scaling[found.scaling["series"] == series].sort_values("devices")
        self.notes = {int(row["devices"]): _unfit(row) for _, row in planned.iterrows()}
        self.runs = {
            devices: found.compared.points[series, devices]
            for devices, note in self.notes.items()
            if not note and (series, devices) in found.compared.points
        }
        self.clock = self._clock()
        self.starts_known = all(_before_training(runs).notna().all() for runs in self.runs.values())
        known = {devices: self._seconds(runs) for devices, runs in self.runs.items()}
        self.seconds = {devices: values for devices, values in known.items() if len(values)}
        for devices in self.runs.keys() - self.seconds.keys():
            reason = "no run reached the target" if self.clock == "time to target" else "its time is unknown"
            self.notes[devices] = reason
        self.total = max((self._taken(devices) for devices in self.seconds), default=0)

    def answer(self) -> SplitAnswer:
        """Return the answer."""
        splits = {devices: self._split(devices) for devices in self.seconds}
        if not splits:
            said, rows = fill(SENTENCES["no time"], trainings=self.trainings), list(self._rows({}, {}, 0))
            return SplitAnswer(self.trainings, 0, self.clock, "unknown", None, [said], rows)
        best = self._best(splits)
        ratios = {
            devices: ratio for devices in splits if (ratio := self._ratio(splits, devices, best)) is not None
        }
        states = {devices: _state(ratio, self.worth) for devices, ratio in ratios.items()}
        found = set(states.values())
        status: Status = (
            "only one" if not states else "cannot tell" if "open" in found
            else "equal" if "not worth it" in found else "clear"
        )  # fmt: skip
        return SplitAnswer(
            trainings=self.trainings,
            devices=self.total,
            clock=self.clock,
            status=status,
            best=best,
            sentences=list(self._sentences(splits, best, ratios, status)),
            rows=list(self._rows(splits, ratios, best)),
        )

    def _clock(self) -> Measure:
        """Return the time of a training that is compared: of the same work on all device counts."""
        if self.experiment.target is not None and any(has_reached(runs).any() for runs in self.runs.values()):
            return "time to target"
        spec = self.experiment.spec
        if spec.samples_per_training is not None:
            return "throughput"
        # a program may train longer with a larger global batch, or on more data
        equal_work = spec.scaling == "strong" or isinstance(spec, Experiment)
        return "total time" if spec.steps is None and equal_work else "time to target"

    def _seconds(self, runs: pd.DataFrame) -> pd.Series:
        """Return the seconds of a training by each run that knows them."""
        if self.clock == "time to target":
            reached = runs["time_to_accuracy_seconds"].astype(float).where(has_reached(runs))
            found = reached + _before_training(runs) if self.starts_known else reached
        elif self.clock == "throughput":
            found = (self.experiment.spec.samples_per_training or 0) / runs[THROUGHPUT].astype(float)
        else:
            found = runs["wall_seconds"].astype(float)
        return found.dropna()

    def _taken(self, devices: int) -> int:
        """Count the devices that a training keeps from others: those that it is billed for."""
        return math.ceil(max(devices, self.experiment.billed_devices.get(devices, devices)))

    def _split(self, devices: int) -> Split:
        at_a_time = min(self.total // self._taken(devices), self.trainings)
        rounds = math.ceil(self.trainings / at_a_time)
        seconds = self.seconds[devices].tolist()
        tries = tries_of(self.runs[devices], seconds) if self.clock == "time to target" else None
        training = geometric_interval(seconds) if tries is None else target_interval(tries)
        billed = self.experiment.billed_devices.get(devices, devices)
        return Split(
            devices=devices,
            at_a_time=at_a_time,
            rounds=rounds,
            last_round=self.trainings - (rounds - 1) * at_a_time,
            training=training,
            seconds=training.scaled(rounds),
            device_hours=training.scaled(self.trainings * billed / HOUR),
        )

    def _ratio(self, splits: dict[int, Split], devices: int, than: int) -> Ratio | None:
        """Return the time of a split over that of another."""
        if devices == than:
            return None
        sides = side_by_side(self.runs[devices], self.runs[than])
        if self.clock == "time to target":
            tries, others = (tries_of(runs, self._seconds(runs).tolist()) for runs in sides)
            ratio = None if tries is None or others is None else target_ratio(tries, others)
        else:
            one, other = (sample_of(runs, self._seconds) for runs in sides)
            ratio = ratio_of(one, other)
        return None if ratio is None else ratio.scaled(splits[devices].rounds / splits[than].rounds)

    def _best(self, splits: dict[int, Split]) -> int:
        """Return the fastest split; of those shown to be as fast, the one of the fewest device-hours.

        One of several is chosen by its cost, so the p values are adjusted for their number (Holm).
        """
        fastest = min(splits, key=lambda devices: splits[devices].seconds.estimate)
        ratios = {
            devices: ratio
            for devices in splits
            if (ratio := self._ratio(splits, devices, fastest)) is not None
        }
        p_values = holm([1 - ratio.p_above(1 + self.worth) for ratio in ratios.values()])
        equal = [
            devices
            for (devices, ratio), p in zip(ratios.items(), p_values, strict=True)
            if p <= SIGNIFICANCE and state_of(ratio, self.worth) == "not worth it"
        ]
        return min([fastest, *equal], key=lambda devices: splits[devices].device_hours.estimate)

    def _sentences(
        self, splits: dict[int, Split], best: int, ratios: dict[int, Ratio], status: Status
    ) -> Iterator[str]:
        chosen = splits[best]
        head = fill(SENTENCES["head"], trainings=self.trainings, total=self.total)
        states = {devices: _state(ratio, self.worth) for devices, ratio in ratios.items()}
        rivals = [devices for devices in states if status != "cannot tell" or states[devices] == "open"]
        if status == "equal":
            rivals = [devices for devices in rivals if states[devices] == "not worth it"]
        # the widest training is what a user would do without an answer; else the next best
        widest = max(splits)
        other = widest if widest in rivals else min(
            rivals, key=lambda devices: ratios[devices].estimate, default=None
        )  # fmt: skip
        finish = fill(SENTENCES["finish"], split=self._words(chosen), time=_time_text(chosen, chosen))
        if other is None:
            yield f"{head}{finish}{SENTENCES['only one']}"
        else:
            rival = splits[other]
            texts = {"split": self._words(rival), "time": _time_text(rival, chosen)}
            if status == "cannot tell":
                own = {"split": self._words(chosen), "time": _time_text(chosen, rival)}
                rest = {"other": texts["split"], "rival": texts["time"]}
                yield head + fill(SENTENCES["cannot tell"], **own, **rest)
                needed = runs_to_tell(ratios[other], 1 + self.worth)
                yield f"{repeats_text(needed, ratios[other].n)}."
            else:
                finish = fill(SENTENCES["finish"], split=self._words(chosen), time=_time_text(chosen, rival))
                then = SENTENCES["then equal" if status == "equal" else "then"]
                yield head + finish + fill(then, **texts, gain=100 * self.worth)
            hours = [format_3sig(each.device_hours.estimate) for each in (chosen, rival)]
            yield fill(SENTENCES["cost"], hours=hours[0], others=hours[1])
        if 0 < chosen.last_round < chosen.at_a_time:
            yield fill(SENTENCES["last round"], last=chosen.last_round, number=chosen.at_a_time)
        if any(self._taken(devices) > devices for devices in splits):
            yield SENTENCES["whole nodes"]
        without = self.clock == "time to target" and not self.starts_known
        basis = SENTENCES[f"{self.clock} without start-up" if without else self.clock]
        yield fill(basis, samples=f"{self.experiment.spec.samples_per_training or 0:,}")
        yield SENTENCES["jobs"]
        if any(split.at_a_time > 1 for split in splits.values()):
            yield SENTENCES["neighbors"]

    def _words(self, split: Split) -> str:
        if split.at_a_time == 1:
            return fill(SENTENCES["one after another"], devices=split.devices)
        if split.rounds == 1:
            return fill(SENTENCES["all at once"], devices=split.devices)
        few = split.at_a_time < len(NUMBERS)
        number = NUMBERS[split.at_a_time] if few else str(split.at_a_time)
        return fill(SENTENCES["some at a time"], number=number, devices=split.devices)

    def _rows(
        self, splits: dict[int, Split], ratios: dict[int, Ratio], best: int
    ) -> Iterator[dict[str, Any]]:
        for devices, note in self.notes.items():
            row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"devices": devices, "n": 0, "note": note}
            split = splits.get(devices)
            if split is None:
                yield row | {"state": "", "note": note or "no run has completed"}
                continue
            row |= {
                "at_a_time": split.at_a_time,
                "rounds": split.rounds,
                "last_round": split.last_round,
                "n": split.training.n,
                "state": "best" if devices == best else "",
            }
            values = {
                "training_seconds": split.training,
                "seconds": split.seconds,
                "device_hours": split.device_hours,
            }
            if devices in ratios:
                values["ratio"] = ratios[devices].interval()
                row["state"] = _state(ratios[devices], self.worth)
            for name, interval in values.items():
                row |= {key: _plain(value) for key, value in interval.as_columns(name).items()}
            yield row


def _unfit(row: pd.Series) -> str:
    """Return why a device count has no split: too many runs without a result. Empty if it has one."""
    ended = row["n"] + row["n_unsuccessful"]
    if row["n_unsuccessful"] > 0 and row["n"] / ended < SUCCESSFUL_FROM:
        return f"{row['unsuccessful']} of {ended:.0f} runs"
    return ""


def _before_training(runs: pd.DataFrame) -> pd.Series:
    """Seconds of each run before its training, whose time counts from the first step."""
    return startup_seconds(runs) - runs["first_step_seconds"].astype(float)


def _state(ratio: Ratio, worth: float) -> Verdict:
    """Return what is shown of a split; fewer than ``ENOUGH_REPEATS`` runs show nothing."""
    return "open" if ratio.n < ENOUGH_REPEATS else state_of(ratio, worth)


def _time_text(split: Split, other: Split) -> str:
    """Return the time until all are done, in the unit of the longer of two splits: ``5.1 h (4.9 to 5.3)``."""
    longest = max(split.seconds.estimate, other.seconds.estimate)
    factor, unit = (1.0, "s")
    if longest >= 2 * MINUTE:
        factor, unit = (float(MINUTE), "min") if longest < 3 * HOUR else (float(HOUR), "h")
    value, low, high = (
        format_3sig(seconds / factor)
        for seconds in (split.seconds.estimate, split.seconds.low, split.seconds.high)
    )
    return f"{value} {unit}" if math.isnan(split.seconds.low) else f"{value} {unit} ({low} to {high})"


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
