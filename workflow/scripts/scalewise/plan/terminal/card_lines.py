"""The answers of a study as cards of plain text, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 80
MAX_CAUTIONS = 3

Answer = Mapping[str, Any]
"""Contents of answer.json, an element of decision.json."""


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
    sure = "" if answer["certainty"] == "open" else f" [{answer['certainty']}]"
    yield from _wrapped("", f"{answer['experiment']}: {answer['verdict']}{sure}", indent=0)
    yield from _wrapped("", answer["reason"])
    label, text = (
        max((len(each[key]) for each in answer["figures"]), default=0) for key in ("label", "text")
    )
    for figure in answer["figures"]:
        line = f"  {figure['label']:{label}}  {figure['text']:{text}}"
        if len(line) + 2 + len(figure["note"]) <= WIDTH:
            yield f"{line}  {figure['note']}".rstrip()
        else:
            yield line.rstrip()
            yield from _wrapped("", figure["note"], indent=label + 4)
    yield from _wrapped("Basis", answer["basis"])
    yield from _wrapped("Rule", answer["rule"])
    yield from _wrapped("Next count", answer["next_larger"])
    yield from _wrapped("Slowed by", answer["limit"])
    for line in answer["options"]:
        yield from _wrapped("Option", line)
    for row in answer["candidates"]:
        if "best for" in row["verdict"]:
            amounts = ", ".join(filter(None, (row["time"], row["cost"], row["energy"])))
            yield from _wrapped("Candidate", f"{row['label']}: {amounts} [{row['verdict']}]")
    for line in answer["others"]:
        yield from _wrapped("Also", line)
    yield from _wrapped("Spent", answer["spent"])
    yield from _wrapped("To do", answer["to_do"])
    if answer["command"]:
        yield f"              {answer['command']}"
    cautions = [sentence for sentence, _ in answer["cautions"] if sentence != answer["reason"]]
    for line in cautions[:MAX_CAUTIONS]:
        yield from _wrapped("Caution", line)
    if len(cautions) > MAX_CAUTIONS:
        yield f"  {len(cautions) - MAX_CAUTIONS} more in the report."


def _overview(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a table with a row for each experiment; long names have a line above their answer."""
    rows = [("Experiment", "How sure", "Answer")]
    rows += [(each["experiment"], each["certainty"], each["verdict"]) for each in answers]
    most = max(len(row[2]) for row in rows)
    name = max(min(len(row[0]), max(WIDTH - most - 12, 10)) for row in rows)
    for row in rows:
        if len(row[0]) > name:
            yield row[0]
        yield f"{row[0] if len(row[0]) <= name else '':{name}}  {row[1]:8}  {row[2]}"


def _wrapped(label: str, text: str, indent: int = 2) -> list[str]:
    """Return the lines of a text, indented as far as its first word.

    Args:
        label: A column before the text; may be empty.
        text: One line; empty for none.
        indent: Columns before both.
    """
    if not text:
        return []
    first = " " * indent + (f"{label:10}  " if label else "")
    lines = textwrap.wrap(
        text.replace(" %", "\N{NO-BREAK SPACE}%"),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
