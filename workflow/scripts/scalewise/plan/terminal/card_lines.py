"""The answers of a study as cards of plain text, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 80
MAX_CAUTIONS = 3

Answer = Mapping[str, Any]
"""An element of decision.json."""


def answer_lines(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the card of each experiment; if there are several, first a table with a row for each."""
    if len(answers) > 1:
        yield from _overview(answers)
        yield ""
    for place, answer in enumerate(answers):
        if place:
            yield ""
        yield from card_lines(answer)


def card_lines(answer: Answer) -> Iterator[str]:
    """Yield the card of one experiment."""
    card = answer["card"]
    yield from _wrapped("", f"{answer['experiment']}: {card['verdict']} {certainty_text(card)}", indent=0)
    yield from _wrapped("", card["reason"])
    label, text, interval = (
        max((len(each[key]) for each in card["figures"]), default=0) for key in ("label", "text", "interval")
    )
    for figure in card["figures"]:
        ends = f"({figure['interval']})" if figure["interval"] else ""
        line = f"  {figure['label']:{label}}  {figure['text']:{text}}  {ends:{interval + 2}}"
        if len(line) + 2 + len(figure["note"]) <= WIDTH:
            yield f"{line}  {figure['note']}".rstrip()
        else:
            yield line.rstrip()
            yield from _wrapped("", figure["note"], indent=label + 4)
    yield from _wrapped("", card["basis"])
    yield from _wrapped("Rule", card["rule"])
    yield from _wrapped("Next count", card["next"])
    yield from _wrapped("Slowed by", card["limit"])
    for line in card["options"]:
        yield from _wrapped("Option", line)
    yield from _wrapped("CPUs", " ".join((answer.get("cpus") or {}).get("sentences", [])[:2]))
    yield from _wrapped("Trainings", " ".join((answer.get("splits") or {}).get("sentences", [])[:2]))
    for line in answer["other_trainings"]:
        yield from _wrapped("Also", line)
    yield from _wrapped("To do", card["action"])
    if card["paste"]:
        yield f"              {card['paste']}"
    cautions = answer["cautions"]
    for line in cautions[:MAX_CAUTIONS]:
        yield from _wrapped("Caution", line)
    if len(cautions) > MAX_CAUTIONS:
        yield f"  {len(cautions) - MAX_CAUTIONS} more in the report."


def partition_lines(answer: Answer) -> Iterator[str]:
    """Yield the card of an experiment across its partitions.

    Args:
        answer: Contents of partitions.json.
    """
    card = answer["card"]
    yield from _wrapped("", f"{answer['experiment']}: {card['verdict']} {certainty_text(card)}", indent=0)
    yield from _wrapped("", card["reason"])
    for row in card["rows"]:
        ends = f" ({row['interval']})" if row["interval"] else ""
        amount = f"{row['text']}{ends}".replace(" ", "\N{NO-BREAK SPACE}")
        yield from _wrapped("", f"For {row['label']}: {row['place']}, {amount}", hanging=4)
        status = row["status"].replace(" ", "\N{NO-BREAK SPACE}")
        yield from _wrapped("", f"{row['relation']} [{status}]", indent=6)
    yield from _wrapped("Tried", card["tried"])
    yield from _wrapped("Basis", f"{card['basis']} {card['rule']}".strip())
    yield from _wrapped("Waits", card["waits"])
    yield from _wrapped("To do", card["action"])
    for line in card["not_compared"]:
        yield from _wrapped("Left out", line)
    for line in card["cautions"]:
        yield from _wrapped("Caution", line)


def certainty_text(card: Mapping[str, Any]) -> str:
    """Return ``[clear]``; nothing for an open answer, as its verdict says that it is open."""
    return "" if card["certainty"] == "Open" else f"[{card['certainty'].lower()}]"


def _overview(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a table with a row for each experiment; long names have a line above their answer."""
    rows = [("Experiment", "How sure", "Answer")]
    rows += [
        (each["experiment"], each["card"]["certainty"].lower(), each["card"]["verdict"]) for each in answers
    ]
    most = max(len(row[2]) for row in rows)
    name = max(min(len(row[0]), max(WIDTH - most - 12, 10)) for row in rows)
    for row in rows:
        if len(row[0]) > name:
            yield row[0]
        yield f"{row[0] if len(row[0]) <= name else '':{name}}  {row[1]:8}  {row[2]}"


def _wrapped(label: str, text: str, indent: int = 2, hanging: int = 0) -> list[str]:
    """Return the lines of a text, indented as far as its first word.

    Args:
        label: A column before the text; may be empty.
        text: One line; empty for none.
        indent: Columns before both.
        hanging: Further columns before each line but the first.
    """
    if not text:
        return []
    first = " " * indent + (f"{label:10}  " if label else "")
    lines = textwrap.wrap(
        text.replace(" %", "\N{NO-BREAK SPACE}%"),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * (len(first) + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
