"""Timings in turn, their medians and spreads, and the table that they end in."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
Pair = tuple[list[float], list[float]]
"""Values of ours and of what it is compared with, round by round."""

HEADINGS = ("what", "ours", "reference", "ratio median (min to max)", "n", "target")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        what: Names it.
        ours: The measured value, or the reason that there is none.
        reference: The value of what ours is compared with.
        ratio: Ours over the reference, with its spread.
        n: Number of rounds; 0 if nothing was measured.
        target: Empty if the line only informs.
        met: Whether the target was reached.
    """

    what: str
    ours: str
    reference: str = ""
    ratio: str = ""
    n: int = 0
    target: str = ""
    met: bool = True


def show(values: Sequence[float], unit: str = "", digits: int = 2) -> str:
    """Return median, least and most: ``1.23 s (1.10 to 1.40)``."""
    middle, least, most = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle}{f' {unit}' if unit else ''} ({least} to {most})"


def interleave(
    ours: Callable[[], object],
    reference: Callable[[], object],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
    around_reference: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Pair:
    """Time two pieces of work in turn, so that a machine that drifts drifts for both.

    Args:
        ours: One pass of ours.
        reference: One pass of what it is compared with.
        rounds: Pairs to make; which of the two goes first alternates.
        clock: CPU time of this process, which others lengthen least; ``time.perf_counter`` if a device or
            other processes work.
        around_reference: Entered before each pass of the reference and left after it, off the clock.

    Returns:
        The seconds of each pass of ours and of the reference.
    """
    found: Pair = ([], [])
    ways = ((ours, nullcontext, found[0]), (reference, around_reference, found[1]))
    for turn in range(rounds):
        for work, around, seconds in ways[:: -1 if turn % 2 else 1]:
            with around():
                began = clock()
                work()
                seconds.append(clock() - began)
    return found


def each(pair: Pair, of: Callable[[float], float]) -> Pair:
    """Return a function of each value."""
    return [of(value) for value in pair[0]], [of(value) for value in pair[1]]


def compare(
    what: str,
    pair: Pair,
    unit: str = "",
    *,
    digits: int = 2,
    ratio_digits: int = 2,
    least: float | None = None,
    most: float | None = None,
) -> Row:
    """Return a line with the ratios of two ways, pair by pair.

    Args:
        what: Names it.
        pair: Values of both.
        unit: Of the values.
        digits: Of the values.
        ratio_digits: Of the ratio.
        least: Median ratio to reach; None only informs.
        most: Median ratio to keep to.
    """
    ratios = [ours / reference for ours, reference in zip(*pair, strict=True)]
    target = f"at least {least:g}" if least else f"at most {most:g}" if most else ""
    return Row(
        what,
        show(pair[0], unit, digits),
        show(pair[1], unit, digits),
        show(ratios, digits=ratio_digits),
        len(ratios),
        target,
        met=(least or 0.0) <= median(ratios) <= (most or float("inf")),
    )


def machine_line() -> str:
    """Return the machine, the day and the versions of a table's figures."""
    # torch is large, and a child's peak memory starts at its parent's
    from scalewise.config.site import cpu_model  # noqa: PLC0415
    from scalewise.ranks.monitoring.environments import source_version  # noqa: PLC0415

    # a borrowed machine with a GPU may lack what only plans
    packages = (name for name in ("torch", "torchvision", "snakemake") if find_spec(name))
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"commit {source_version(ROOT / 'workflow' / 'scripts')[:7] or 'unknown'}",
        *_gpu(),
        f"{cpu_model()}, {os.cpu_count()} cores",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in packages),
    ]
    return ", ".join(parts)


def _gpu() -> list[str]:
    import pynvml  # noqa: PLC0415  as above
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return []
    pynvml.nvmlInit()
    driver = f"driver {pynvml.nvmlSystemGetDriverVersion()}"
    return [torch.cuda.get_device_name(0), driver, f"CUDA {torch.version.cuda}"]


def markdown(rows: Sequence[Row]) -> str:
    """Return the table, aligned to be read as text too."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in cells]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    target = row.target + ("" if row.met else ": MISSED")
    return row.what, row.ours, row.reference, row.ratio, str(row.n), target
