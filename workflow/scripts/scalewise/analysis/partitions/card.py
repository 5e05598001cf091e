"""The answer across partitions as a card: which partition to use, why, and how sure that is.

The terminal, the page and partitions.json show the same fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from scalewise.analysis.accuracy import accuracy_lost
from scalewise.analysis.comparison.confounding import SESSION_GAP_HOURS, sessions
from scalewise.analysis.conditions import NEVER_MORE, differences, named
from scalewise.analysis.decision.card import options_text
from scalewise.analysis.decision.card_figures import range_text
from scalewise.analysis.partitions.answer import (
    DECIDED,
    AimAnswer,
    PartitionAnswer,
    Rival,
    Status,
    state_of,
)
from scalewise.analysis.partitions.points import Aim, PartitionPoints, Place
from scalewise.analysis.partitions.wording import CLOCKS, GOALS, LABELS, SENTENCES, UNITS, sentence
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS, Interval
from scalewise.analysis.statistics.ratios import Ratio
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    HOUR,
    MINUTE,
    counts_listed,
    format_3sig,
    format_ratio,
    goal_text,
    listed,
    pluralize,
    points_text,
)

Certainty = Literal["Clear", "Likely", "Doubtful", "Open"]

OF_DEVICES = frozenset({"device model", "CPU model", "accelerator"})
"""Conditions in which partitions are meant to differ; the limits of a GPU's power and clocks are others."""

FREE_BELOW = 1e-6
"""A lower cost is written as 0."""

MOST_NAMED = 3
"""Points that may be as good, in one sentence; the table has all."""


@dataclass(frozen=True)
class Row:
    """The best point by one aim.

    Args:
        aim: The aim.
        label: Name of the aim, such as ``the shortest time``.
        place: The point in words; several if the runs leave the device count open.
        text: Amount with its unit.
        interval: 95 % interval in the unit of ``text``; empty if unknown.
        relation: The best of the other partitions in comparison with it, and the point with the least amount
            if it is another one.
        status: Whether the partition is shown to be the best.
    """

    aim: Aim
    label: str
    place: str
    text: str
    interval: str
    relation: str
    status: Status


@dataclass(frozen=True)
class PartitionCard:
    """The answer across partitions, in fields.

    Args:
        verdict: Partition to use and the reason, in a sentence or two.
        certainty: Certainty of the verdict.
        reason: Sentence on the doubt; empty for a clear answer.
        rows: The best point by each aim, the one that decides first.
        tried: Device counts of each partition that have run, and the number of runs of each.
        basis: Work of the amounts.
        rule: Sentence on what counts as a difference.
        waits: Source of the waits in the queue; empty if none counts.
        action: Next step of the user; empty if there is none.
        not_compared: Points that cannot be chosen, and why, a sentence each.
        cautions: Weaknesses of the answer, a sentence each.
    """

    verdict: str
    certainty: Certainty
    reason: str = ""
    rows: list[Row] = field(default_factory=list)
    tried: str = ""
    basis: str = ""
    rule: str = ""
    waits: str = ""
    action: str = ""
    not_compared: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)


def partition_card(found: PartitionAnswer) -> PartitionCard:
    """Return the card of an answer across partitions."""
    return _Writer(found).card()


class _Writer:
    def __init__(self, found: PartitionAnswer) -> None:
        self.found, self.points = found, found.points
        self.noun, self.gain = found.points.noun, 100 * found.points.min_gain
        aims = [each for each in found.aims.values() if each.best is not None]
        self.aims = sorted(aims, key=lambda each: each.aim != found.by)
        self.deciding = [each for each in self.aims if found.by in (None, each.aim)]

    def card(self) -> PartitionCard:
        excluded = [
            sentence("misses", self.noun, place=self.place(place), misses=", ".join(point.misses))
            for place, point in self.points.points.items()
            if point.misses
        ]
        not_compared = [*excluded, *self.points.not_compared.values(), *self.points.left_out]
        if not self.deciding:
            key = "none allowed" if self.points.points else "none measured"
            if self.points.candidates and self.found.by:
                key = "no answer"
            reason = sentence(key, devices=self.plural)
            return PartitionCard(SENTENCES["no answer"], "Open", reason, not_compared=not_compared)
        certainty, reason = self.certainty()
        return PartitionCard(
            verdict=self.verdict(),
            certainty=certainty,
            reason=reason,
            rows=[self.row(each) for each in self.aims],
            tried=self.tried(),
            basis=self.basis(),
            rule=sentence("rule", gain=self.gain),
            waits=self.waits() if "soonest" in self.found.aims else "",
            action=self.action(),
            not_compared=not_compared,
            cautions=list(self.cautions()),
        )

    # --- the verdict

    def verdict(self) -> str:
        decided = [each for each in self.deciding if each.partition_status in DECIDED]
        partitions: dict[str, list[AimAnswer]] = {}
        for each in decided:
            assert each.best is not None
            partitions.setdefault(each.best.partition, []).append(each)
        sentences = []
        if len(partitions) == 1 and len(decided) == len(self.deciding):
            sentences.append(self.use(self.places(decided), decided[0]))
        elif partitions:
            uses = [
                sentence("use for", place=self.places(group), goals=listed(self.goals(group)))
                for group in partitions.values()
            ]
            sentences.append(f"Use {'; use '.join(uses)}.")
        still_open: dict[str, list[str]] = {}
        for each in self.deciding:
            if each not in decided:
                still_open.setdefault(self.open_text(each), []).append(GOALS[each.aim])
        sentences += [
            sentence("cannot tell", goal=listed(goals), places=places) for places, goals in still_open.items()
        ]
        return " ".join(sentences)

    def places(self, answers: Sequence[AimAnswer]) -> str:
        """Return the points of one partition in words; only the partition if they differ."""
        found = {self.best_places(each): each for each in answers}
        if len(found) > 1:
            return next(each.best.partition for each in answers if each.best is not None)
        (place,) = found
        equals = [
            rival.place
            for each in answers
            for rival in [each.runner_up]
            if rival is not None and rival.state == "not worth it" and len(answers) == 1
        ]
        return place + "".join(sentence("as good", place=self.place(each)) for each in equals)

    def goals(self, answers: Sequence[AimAnswer]) -> list[str]:
        """Return what the points of one partition are best for, each with its device count if they differ."""
        counts = [self.best_places(each).partition(" on ")[0] for each in answers]
        goals = [GOALS[each.aim] for each in answers]
        if len(set(counts)) == 1:
            return goals
        return [f"{goal} ({count})" for goal, count in zip(goals, counts, strict=True)]

    def use(self, place: str, by: AimAnswer) -> str:
        """Return the sentence on a point that is the best by all aims that decide."""
        rival = by.runner_up
        if rival is None or by.best is None:
            return sentence("use", place=place, reasons=SENTENCES["only"])
        reasons = self.relation(by, rival)
        if place == by.best.partition:
            reasons = self.with_count(by.best) + reasons
        other: Aim = "time" if by.aim == "cost" else "cost"
        ratio = self.points.ratio(other, rival.place, by.best)
        if ratio is not None and by.aim != other:
            key = "at cost" if other == "cost" else f"in time {_side(ratio)}"
            is_one = rival.place.devices == 1
            words = {"their": "its" if is_one else "their", "them": "it" if is_one else "them"}
            reasons += sentence(key, ratio=ratio.estimate, inverse=1 / ratio.estimate, **words)
        return sentence("use", place=place, reasons=reasons)

    def with_count(self, place: Place) -> str:
        """Return the device count that a comparison is about if its sentence names only the partition."""
        options = options_text(place.series, self.points.options)
        return sentence("with", self.noun, devices=place.devices, options=options)

    def relation(self, by: AimAnswer, rival: Rival) -> str:
        """Return how the best point compares with a rival, without the interval."""
        values: dict[str, Any] = {
            "than": self.place(rival.place),
            "ratio": rival.ratio.estimate,
            "inverse": 1 / rival.ratio.estimate,
            "gain": self.gain,
        }
        if rival.state == "not worth it":
            return sentence(f"{by.aim} equal", **values)
        return sentence(by.aim if by.aim in SENTENCES else f"{by.aim} {_side(rival.ratio)}", **values)

    def open_text(self, each: AimAnswer) -> str:
        """Return the points between which the runs cannot tell, as alternatives."""
        assert each.best is not None
        if each.unknown:
            unknown = sentence("unmeasured", partitions=listed(each.unknown))
            return f"{self.place(each.best)}, but it is {unknown}"
        others = [place for place in each.open_places if place.partition != each.best.partition]
        named_ones = [self.place(each.best), *(self.place(place) for place in others[: MOST_NAMED - 1])]
        more = len(others) - (MOST_NAMED - 1)
        return alternatives([*named_ones, *([f"{more} others"] if more > 0 else [])])

    def best_places(self, each: AimAnswer) -> str:
        """Return the best point in words, with the counts of its partition that may be as good."""
        assert each.best is not None
        best = each.best
        rivals = [place for place in each.open_places if place.partition == best.partition]
        same = [place for place in rivals if place.series == best.series]
        if len(same) < len(rivals) or len(same) >= MOST_NAMED:
            return best.partition
        *fewer, last = sorted({best.devices, *(place.devices for place in same)})
        counts = [*map(str, fewer), count_devices(last, self.noun)]
        return self.place(best).replace(count_devices(best.devices, self.noun), " or ".join(counts), 1)

    def place(self, place: Place) -> str:
        """Return a point in words."""
        return place_text(self.points, place)

    # --- the rows

    def row(self, each: AimAnswer) -> Row:
        assert each.best is not None
        interval = self.points.points[each.best].interval(each.aim)
        assert interval is not None, "the best point has an amount"
        text, ends = amount_text(each.aim, interval, self.points.unit)
        status = each.partition_status
        if status in DECIDED and each.count_status == "cannot tell":
            place = self.best_places(each)
        else:
            place = self.place(each.best)
        return Row(each.aim, LABELS[each.aim], place, text, ends, self.row_relation(each), status)

    def row_relation(self, each: AimAnswer) -> str:
        """Return how the best point compares with the best of the others, and if another one needs less."""
        unknown = sentence("unmeasured", partitions=listed(each.unknown)) if each.unknown else ""
        rival, least = each.runner_up, each.least
        compared = ("" if unknown else SENTENCES["only"]) if rival is None else self.compared(each, rival)
        less = ""
        if least is not None:
            ratio = least.ratio.estimate
            values: dict[str, Any] = {
                "ratio": 1 / ratio,
                "inverse": ratio,
                "equal": sentence("within", gain=self.gain),
            }
            less = sentence(f"less {each.aim}", than=self.place(least.place), **values)
        return "; ".join(filter(None, [compared, less, unknown]))

    def compared(self, each: AimAnswer, rival: Rival) -> str:
        """Return how the best point compares with one of another partition, with the interval."""
        ratio = rival.ratio
        low, high = ratio.at_least, ratio.at_most
        if rival.state == "open":
            text = sentence(f"open {each.aim}", than=self.place(rival.place), ratio=ratio.estimate)
        else:
            text = self.relation(each, rival)
            # without any open one, it has the least mean of its partition
            if rival.state == "shown" and self.has_others(each, rival):
                text += SENTENCES[f"first by {each.aim}"]
            if each.aim in SENTENCES and rival.state == "shown":
                low, high = 1 / ratio.at_most, 1 / ratio.at_least
        ends = "" if ratio.n < ENOUGH_REPEATS else range_text(low, high, format_ratio)
        return f"{text} ({ends})" if ends else text

    def has_others(self, each: AimAnswer, rival: Rival) -> bool:
        """Return whether the partition of a rival has other points."""
        return sum(other.place.partition == rival.place.partition for other in each.rivals) > 1

    # --- what it rests on

    def certainty(self) -> tuple[Certainty, str]:
        statuses = {each.partition_status for each in self.deciding}
        if "cannot tell" in statuses:
            decided = statuses & set(DECIDED)
            return ("Likely", SENTENCES["some aims"]) if decided else ("Open", "")
        for partition, study in self.points.studies.items():
            card: Mapping[str, Any] = study.results.decision["card"]
            if card["certainty"] == "Doubtful":
                return "Doubtful", sentence("doubtful", partition=partition, reason=card["reason"])
        for best, than in self.compared_pairs():
            if self.ran_apart(best, than):
                return "Doubtful", self.apart_text(best, than)
        if self.unfinished():
            return "Likely", sentence("unfinished", partition=listed(self.unfinished()))
        fewest = min(
            (rival.ratio.n for each in self.deciding for rival in each.rivals), default=ENOUGH_REPEATS
        )
        if fewest < ENOUGH_REPEATS:
            return "Likely", SENTENCES["single" if fewest < 2 else "few"]
        if criterion := next(self.open_criteria(), ""):
            return "Likely", criterion
        open_counts = [each for each in self.deciding if each.count_status == "cannot tell"]
        if open_counts:
            goals = listed([GOALS[each.aim] for each in open_counts])
            return "Likely", sentence("open counts", devices=self.plural, goals=goals)
        return "Clear", ""

    def open_criteria(self) -> Iterator[str]:
        """Yield the points that meet the criteria or miss them by their means only, if that decides."""
        for each in self.deciding:
            assert each.best is not None
            if self.points.points[each.best].is_open:
                yield sentence("may miss", place=self.place(each.best))
            for place, point in self.points.points.items():
                ratio = self.points.ratio(each.aim, place, each.best)
                may_win = ratio is not None and state_of(ratio, self.points.min_gain) != "shown"
                if point.misses and point.is_open and may_win:
                    yield sentence("may meet", place=self.place(place), misses=", ".join(point.misses))

    def compared_pairs(self) -> list[tuple[Place, Place]]:
        """Return the best point by each aim that decides, with the runner-up of another partition."""
        return sorted(
            {
                (each.best, each.runner_up.place)
                for each in self.deciding
                if each.best is not None and each.runner_up is not None
            }
        )

    def ran_apart(self, best: Place, than: Place) -> bool:
        """Return whether two points have no runs of one session, if it is known when they ran."""
        runs = {place.partition: self.points.studies[place.partition].runs for place in (best, than)}
        if any("started_at" not in each for each in runs.values()):
            return False
        together = pd.concat(list(runs.values()), keys=list(runs), names=["partition"])
        numbers = sessions(together)
        own = [
            set(numbers[place.partition].reindex(self.points.points[place].runs.index).dropna())
            for place in (best, than)
        ]
        return all(own) and own[0].isdisjoint(own[1])

    def apart_text(self, best: Place, than: Place) -> str:
        return sentence("apart", place=self.place(best), than=self.place(than), hours=SESSION_GAP_HOURS)

    @property
    def plural(self) -> str:
        return count_devices(2, self.noun).removeprefix("2 ")

    def unfinished(self) -> list[str]:
        """Return partitions without any point to compare that further tries may give one."""
        have = {place.partition for place in self.points.points}
        found = []
        for partition, study in self.points.studies.items():
            outcomes = set(study.runs["outcome"]) - {"completed"}
            if partition not in have and outcomes - NEVER_MORE:
                found.append(partition)
        return found

    def tried(self) -> str:
        runs = sorted({len(self.points.points[place].amounts("time")) for place in self.points.candidates})
        number = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
        series = {place.series for place in self.points.order}
        counts = []
        for partition, study in self.points.studies.items():
            ended = study.runs[study.runs["series"].isin(series) & (study.runs["outcome"] != "not run yet")]
            if len(ended):
                devices = counts_listed({int(each) for each in ended["devices"]}, self.noun)
                counts.append(f"{devices} on {partition}")
        text = sentence("tried", counts="; ".join(counts), runs=pluralize(number, "run"))
        return text + (sentence("series", number=len(series)) if len(series) > 1 else "")

    def basis(self) -> str:
        shown = {each.aim for each in self.aims}
        is_whole = self.points.clock == "total time"
        amounts = [
            aim for aim in ("time", "cost", "energy") if aim in shown and not (is_whole and aim == "energy")
        ]
        target = next(iter(self.points.studies.values())).experiment.target
        goal = "" if target is None else goal_text(target)
        clock = CLOCKS[self.points.clock].replace("{target}", goal)
        sentences = [clock.replace("{amounts}", listed(amounts).capitalize())]
        if is_whole and "energy" in shown:
            sentences.append(SENTENCES["energy from"])
        return " ".join([*sentences, SENTENCES["ranges"]])

    def waits(self) -> str:
        """Return a sentence on whose waits count for the earliest end."""
        counts = {"measured waits": 0, "stated waits": 0}
        for place in self.points.candidates:
            known = self.points.points[place].runs["run"][self.points.points[place].waits.notna()]
            measured = known.astype(str).isin(self.points.studies[place.partition].waits.keys()).sum()
            counts["measured waits"] += int(measured)
            counts["stated waits"] += len(known) - int(measured)
        sources = [
            sentence(key, runs=pluralize(str(number), "run"), days=self.days())
            for key, number in counts.items()
            if number
        ]
        return sentence("waits", sources=listed(sources))

    def action(self) -> str:
        for each in self.deciding:
            if each.unknown:
                return sentence("measure", goal=GOALS[each.aim], partitions=listed(each.unknown))
            if each.open_places and each.best is not None:
                places = listed([self.place(place) for place in [each.best, *each.open_places][:MOST_NAMED]])
                if (repeats := each.repeats_needed) is None:
                    return sentence("too close", places=places)
                return sentence("repeats", repeats=repeats, places=places, goal=GOALS[each.aim])
        return ""

    def cautions(self) -> Iterator[str]:
        if self.points.unit == "device-hours":
            yield sentence("no price", self.noun)
        elif without := [name for name, study in self.points.studies.items() if study.price is None]:
            yield sentence("some prices", partitions=listed(without))
        for best, than in self.compared_pairs():
            if self.ran_apart(best, than):
                yield f"{self.apart_text(best, than)} {SENTENCES['again']}"
            yield from self.pair_cautions(best, than)

    def days(self) -> str:
        """Return the days on which the jobs with a known wait started; empty if they are unknown."""
        waits = [study.results.queue_waits for study in self.points.studies.values()]
        started = sorted(str(each)[:10] for table in waits for each in table["started"].dropna())
        return f" ({' to '.join(dict.fromkeys([started[0], started[-1]]))})" if started else ""

    def pair_cautions(self, best: Place, than: Place) -> Iterator[str]:
        point, other = self.points.points[best], self.points.points[than]
        names: dict[str, Any] = {"place": self.place(best), "than": self.place(than)}
        batches = [each.runs.reindex(columns=["global_batch_size"]).max().iloc[0] for each in (point, other)]
        known = all(pd.notna(batch) for batch in batches)
        if self.points.clock != "time to target" and known and batches[0] != batches[1]:
            yield sentence("other batch", batch=batches[0], other=batches[1], **names)
        if lost := accuracy_lost(point.row, other.row):
            yield sentence("accuracy", points=points_text(lost), **names)
        sides = [
            self.points.studies[place.partition].conditions.get(str(each.runs["fingerprint"].iloc[0]), {})
            if "fingerprint" in each.runs
            else {}
            for place, each in ((best, point), (than, other))
        ]
        differing = [
            each
            for each in differences(*sides)
            if each.field not in OF_DEVICES and "limit" not in each.field and "clock" not in each.field
        ]
        if all(sides) and differing:
            yield sentence("conditions", differences=named(differing), **names)


def place_text(points: PartitionPoints, place: Place) -> str:
    """Return a point in words: ``4 GPUs on a100``."""
    options = options_text(place.series, points.options)
    return sentence("place", points.noun, devices=place.devices, partition=place.partition, options=options)


def alternatives(words: Sequence[str]) -> str:
    """Join words: ``1``, ``1 or 4``, ``1, 4 or 8``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _side(ratio: Ratio) -> str:
    return "better" if ratio.estimate >= 1 else "worse"


def amount_text(aim: Aim, interval: Interval, unit: str) -> tuple[str, str]:
    """Return an amount with its unit, and its interval in the same unit: ``3.21 h``, ``3.10 to 3.33``.

    Args:
        aim: Quantity of the amount.
        interval: Seconds, cost or kWh.
        unit: Unit of costs, a key of ``UNITS``.
    """
    factor, name = 1.0, f" {UNITS[unit]}" if aim == "cost" else " kWh"
    if aim in ("time", "soonest"):
        seconds = interval.estimate
        factor, name = (
            (1, " s") if seconds < 2 * MINUTE else (MINUTE, " min") if seconds < 2 * HOUR else (HOUR, " h")
        )
    low, high = (end / factor for end in (interval.low, interval.high))
    if aim == "cost" and interval.estimate < FREE_BELOW:
        return "0", ""
    ends = "" if math.isnan(low) else range_text(low, high, format_3sig)
    return f"{format_3sig(interval.estimate / factor)}{name}", ends
