"""The findings of rounds in words, for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scalewise.plan.config.experiment import Repeats
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import counts_listed, percent_in_digits
from scalewise.plan.runs.rounds import JudgedPoint, Round, Verdict
from scalewise.plan.runs.run_definition import NO_OPTIONS, parse_point_name
from scalewise.plan.terminal.choice_lines import REASONS, round_story

ASKS_FOR_MORE = {"too wide", "undecided", "other session", "disturbed"}
"""Verdicts after which more repeats follow."""

STOPPING = (
    "Repeats were added to points whose interval was still too wide. Intervals that are looked at like this "
    "cover the true value somewhat less often than in 95 %: in a simulation in 94 % if every point had 6 "
    "repeats from the start, and in 90 to 96 % if it had 3."
)
"""A report's sentence on the confidence, where repeats were added."""

STOPPING_AT_DECISION = (
    "Repeats were added where the decision was not clear. A decision that is looked at again and again is "
    "wrong somewhat more often than one that is looked at once; docs/statistics.md has the rates."
)
"""A report's sentence on the confidence, where repeats were added until the decision was clear."""


def round_lines(judged: Round) -> list[str]:
    """The findings of a round for the terminal: a line for each point, or series where counts are chosen."""
    if judged.choices:
        return list(round_story(judged))
    return [
        f"{judged.experiment}: {point.point}: {_finding(point, judged.rule)}: {_consequence(point)}"
        for point in judged.points
    ]


def repeat_sentences(rounds: Sequence[Round]) -> list[str]:
    """A report's sentences on the points that got more repeats, why, and those that are still too wide.

    Args:
        rounds: Output of ``scalewise.plan.runs.rounds.known_rounds``; no round gives no sentence.
    """
    if not rounds:
        return []
    if rounds[-1].choices:
        return list(_chosen_sentences(rounds))
    asked_at: dict[str, JudgedPoint] = {}
    for judged in rounds:
        for point in judged.points:
            if point.verdict in ASKS_FOR_MORE:
                asked_at.setdefault(point.point, point)
    last, rule = rounds[-1], rounds[-1].rule
    sentences = list(_sentences(last, asked_at))
    if rule.until_interval is None:
        return [*sentences, STOPPING_AT_DECISION] if asked_at else sentences
    narrow = sum(point.verdict == "narrow enough" and point.point not in asked_at for point in last.points)
    if narrow:
        points = "1 point is" if narrow == 1 else f"{narrow} points are"
        sentences.append(
            f"{points} within {percent_in_digits(rule.until_interval)} of the throughput after the first "
            f"{rule.min} repeats."
        )
    return [*sentences, STOPPING] if asked_at else sentences


def _chosen_sentences(rounds: Sequence[Round]) -> Iterator[str]:
    """The reasons for the runs of a study that chooses its device counts, equal points in one sentence.

    No round asks for what the study begins with, the baseline, nor for what an earlier one has left.
    """
    reasons: dict[str, set[Verdict]] = {}
    for judged in rounds:
        for point in judged.points:
            if point.next_asked > point.asked:
                reasons.setdefault(point.point, set()).add(point.verdict)
    alike: dict[tuple[str, str, str], list[int]] = {}
    places = {point.point: parse_point_name(point.point) for point in rounds[-1].points}
    for point in rounds[-1].points:
        devices, series = places[point.point]
        is_baseline = devices == min(count for count, other in places.values() if other == series)
        found = reasons.get(point.point, {"baseline"} if is_baseline else set())
        why = next((why for verdict, why in REASONS.items() if verdict in found), "from an earlier study")
        runs = count_devices(point.completed, "run")
        if not point.completed:
            runs = f"{count_devices(point.asked, 'run')} without a result"
        if point.asked:
            alike.setdefault((series, why, runs), []).append(devices)
    for (series, why, runs), counts in sorted(alike.items(), key=lambda item: min(item[1])):
        one = len(counts) == 1
        of = "" if series == NO_OPTIONS else f" of {series}"
        reason = why.format(them="it" if one else "them")
        yield f"{counts_listed(counts, 'device')}{of}: {runs}{'' if one else ' each'} ({reason})."
    asked = set().union(*reasons.values()) if reasons else set()
    if "undecided" in asked:
        yield STOPPING_AT_DECISION
    elif "too wide" in asked:
        yield STOPPING


def _sentences(last: Round, asked_at: Mapping[str, JudgedPoint]) -> Iterator[str]:
    for point in last.points:
        if point.verdict == "too few completed":
            yield f"{point.point}: {_finding(point, last.rule)}, so no more are made."
        elif point.point in asked_at:
            first = asked_at[point.point]
            more = point.next_asked - first.asked
            its = "of its " if first.verdict == "too wide" and first.half_width_fraction is not None else ""
            yield (
                f"{point.point}: {more} more {'repeat' if more == 1 else 'repeats'} because {its}"
                f"{_finding(first, last.rule)}; {_now(point, last.rule)}."
            )
        elif point.verdict == "most repeats":
            yield f"{point.point}: {_finding(point, last.rule)}; {_consequence(point)}."


def _now(point: JudgedPoint, rule: Repeats) -> str:
    if point.verdict in ASKS_FOR_MORE or point.half_width_fraction is None:
        return "they have not all finished"
    if point.verdict == "decided":
        return "now the decision is clear"
    if rule.until_interval is None:
        return "the decision is still open with the most repeats"
    width = percent_in_digits(point.half_width_fraction)
    end = "narrow enough" if point.verdict == "narrow enough" else "still too wide with the most repeats"
    return f"now {width} (n = {point.completed}), {end}"


def _finding(point: JudgedPoint, rule: Repeats) -> str:
    if point.verdict == "disturbed":
        return f"fewer than {rule.min} of its {point.asked} repeats were undisturbed"
    if point.half_width_fraction is None:
        return f"{point.completed} of {point.asked} repeats completed, which is too few for an interval"
    if point.verdict == "other session":
        return f"its {point.completed} repeats share no session with a count that was added later"
    width, target = point.half_width_fraction, rule.until_interval
    if target is None:
        if point.verdict == "decided":
            return f"{point.completed} repeats, and the decision needs no more of them"
        return f"{point.completed} repeats leave the decision open"
    for digits in range(2, 7):
        shown, limit = percent_in_digits(width, digits), percent_in_digits(target, digits)
        if shown != limit or width == target:
            break
    return (
        f"half-width {shown} of the throughput (n = {point.completed}), "
        f"{'more than' if width > target else 'at most'} {limit}"
    )


def _consequence(point: JudgedPoint) -> str:
    if point.verdict in ASKS_FOR_MORE:
        first, last = point.asked + 1, point.next_asked
        return f"repeat {first} follows" if first == last else f"repeats {first} to {last} follow"
    return {
        "narrow enough": "enough",
        "decided": "enough",
        "most repeats": f"{point.asked} are the most, no more follow",
        "too few completed": "no more follow",
    }[point.verdict]
