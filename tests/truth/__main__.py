"""Print the table of docs/statistics.md: how often an answer is right, clear and wrong, or cannot tell.

    python -m tests.truth [--studies N] [KIND ...]

Each kind of planted study is drawn with fixed seeds and goes the way of a real one from the table of its runs
on. The exit status is 1 if more than 2 % of a cell's answers are clear and wrong. Kinds are named by their
beginning; all of them take some minutes on two cores.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "workflow" / "scripts")]

# ruff: noqa: E402  the path comes first
from tests.truth.answers import Verdict, rates
from tests.truth.kinds import KINDS

CELLS = ((0.01, 3), (0.03, 3), (0.03, 6), (0.03, 10))
"""Scatter of a run's speed and repeats."""
STUDIES = 100
MOST_CLEAR_AND_WRONG = 0.02

Cell = tuple[str, float, int]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.truth")
    parser.add_argument("kinds", nargs="*", help="beginnings of the names of kinds; all by default")
    parser.add_argument("--studies", type=int, default=STUDIES, help="studies drawn for each cell")
    asked = parser.parse_args()
    kinds = [kind for kind in KINDS if not asked.kinds or kind.startswith(tuple(asked.kinds))]
    cells: list[Cell] = [(kind, scatter, n) for kind in kinds for scatter, n in CELLS]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        drawn = [pool.submit(rates, kind, scatter, n, asked.studies) for kind, scatter, n in cells]
        found = {cell: each.result() for cell, each in zip(cells, drawn, strict=True)}
    show(kinds, found, asked.studies)
    missed = [
        f"missed: {kind}, {scatter:.0%}, n = {n}: {counts['wrong']} of {asked.studies} are clear and wrong"
        for (kind, scatter, n), counts in found.items()
        if counts["wrong"] > MOST_CLEAR_AND_WRONG * asked.studies
    ]
    print(*missed, sep="\n", file=sys.stderr)
    return 1 if missed else 0


def show(kinds: list[str], found: Mapping[Cell, Counter[Verdict]], studies: int) -> None:
    """Print a row for each kind: right / clear and wrong / cannot tell, in per cent."""
    print(f"| study | {' | '.join(f'{scatter:.0%}, n = {n}' for scatter, n in CELLS)} |")
    print(f"|---|{'---|' * len(CELLS)}")
    for kind in kinds:
        counts = [found[kind, scatter, n] for scatter, n in CELLS]
        verdicts: tuple[Verdict, ...] = ("right", "wrong", "cannot tell")
        shares = [
            " / ".join(f"{100 * each[verdict] / studies:.0f}" for verdict in verdicts) for each in counts
        ]
        print(f"| {kind} | {' | '.join(shares)} |")


if __name__ == "__main__":
    sys.exit(main())
