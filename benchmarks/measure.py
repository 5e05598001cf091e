"""Pairs of timings, their medians and spreads, and the table they end in."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

_HEADINGS = ("what", "ours", "reference", "ratio median (min to max)", "n", "target")


SCRIPTS = Path(__file__).resolve().parents[1] / "workflow" / "scripts"

Clock = Literal["cpu", "wall"]
CLOCKS: tuple[Clock, ...] = ("cpu", "wall")


@dataclass(frozen=True)
class Spent:
    """Seconds that a piece of work took.

    Args:
        wall: on the monotonic clock; grows with whatever else the machine does.
        cpu: of all threads of this process.
    """

    wall: float
    cpu: float


@dataclass(frozen=True)
class Spread:
    """The median of some values and how far they reach."""

    median: float
    least: float
    most: float

    def show(self, unit: str = "", digits: int = 2) -> str:
        """``1.23 s (1.10 to 1.40)``."""
        median, least, most = (f"{value:,.{digits}f}" for value in (self.median, self.least, self.most))
        return f"{median} {unit} ({least} to {most})" if unit else f"{median} ({least} to {most})"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        what: was measured.
        ours: its value.
        reference: what it is held against; empty where a budget is the measure.
        ratio: of the two, with its spread; empty without a reference.
        n: rounds.
        target: empty where the line only informs.
        met: whether the target was reached.
    """

    what: str
    ours: str
    n: int
    reference: str = ""
    ratio: str = ""
    target: str = ""
    met: bool = True


def spread(values: Sequence[float]) -> Spread:
    """Median, least and most of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def spend(work: Callable[[], object]) -> Spent:
    """Do a piece of work and time it."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def interleave(
    ours: Callable[[], object],
    reference: Callable[[], object],
    rounds: int,
    around_ours: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[Spent, Spent]]:
    """Time two pieces of work in turn, so that a machine that drifts drifts for both.

    Args:
        ours: one pass of ours.
        reference: one pass of what it is held against.
        rounds: pairs to make. Who goes first alternates.
        around_ours: entered before each pass of ours and left after it, off the clock.

    Returns:
        the time of ours and of the reference, for each round.
    """

    def spend_ours() -> Spent:
        with around_ours():
            return spend(ours)

    pairs = []
    for turn in range(rounds):
        if turn % 2:
            reference_spent = spend(reference)
            pairs.append((spend_ours(), reference_spent))
        else:
            ours_spent = spend_ours()
            pairs.append((ours_spent, spend(reference)))
    return pairs


def rate_rows(
    what: str,
    pairs: Sequence[tuple[Spent, Spent]],
    our_samples: int,
    reference_samples: int,
    least: float,
    digits: int = 1,
) -> list[Row]:
    """Samples per second and how many times as many ours are, by CPU time and by wall time.

    Judged by CPU time: other processes on the machine lengthen the wall time of whichever side they
    meet. Wall time is quoted too, since it alone would show a side that waits.

    Args:
        what: was measured.
        pairs: times of ours and of the reference.
        our_samples: of a pass of ours.
        reference_samples: of a pass of the reference.
        least: ratio to reach.
        digits: of the ratio.
    """
    return [
        rate_row(
            f"{what}, by {clock} time",
            *(pairs, clock, our_samples, reference_samples),
            least if clock == "cpu" else None,
            digits,
        )
        for clock in CLOCKS
    ]


def rate_row(
    what: str,
    pairs: Sequence[tuple[Spent, Spent]],
    clock: Clock,
    our_samples: int,
    reference_samples: int,
    least: float | None,
    digits: int = 1,
) -> Row:
    """Samples per second and how many times as many ours are, by one clock.

    Args:
        what: was measured.
        pairs: times of ours and of the reference.
        clock: by which.
        our_samples: of a pass of ours.
        reference_samples: of a pass of the reference.
        least: ratio to reach; None only informs.
        digits: of the ratio.
    """
    ours = [our_samples / getattr(mine, clock) for mine, _ in pairs]
    reference = [reference_samples / getattr(other, clock) for _, other in pairs]
    ratio = spread([mine / other for mine, other in zip(ours, reference, strict=True)])
    return Row(
        what=what,
        ours=spread(ours).show(digits=0),
        reference=spread(reference).show(digits=0),
        ratio=ratio.show(digits=digits),
        n=len(pairs),
        target="" if least is None else f"at least {least:g}",
        met=least is None or ratio.median >= least,
    )


def step_row(
    what: str,
    pairs: Sequence[tuple[Spent, Spent]],
    clock: Clock,
    steps: int,
    most: float | None,
    digits: int = 1,
) -> Row:
    """Milliseconds of a step and how many times as long ours is, by one clock.

    Args:
        what: was measured.
        pairs: times of ours and of the reference.
        clock: by which.
        steps: of a pass of either.
        most: ratio to keep to; None only informs.
        digits: of the milliseconds.
    """
    mine, other = ([getattr(pair[side], clock) * 1e3 / steps for pair in pairs] for side in (0, 1))
    ratio = spread([a / b for a, b in zip(mine, other, strict=True)])
    return Row(
        what=what,
        ours=spread(mine).show("ms", digits),
        reference=spread(other).show("ms", digits),
        ratio=ratio.show(digits=4),
        n=len(pairs),
        target="" if most is None else f"at most {most}",
        met=most is None or ratio.median <= most,
    )


def machine_line() -> str:
    """Where and when the figures were taken, and with which versions."""
    from scalewise.ranks.monitoring.environments import source_version  # noqa: PLC0415  it imports torch

    # a borrowed machine with a GPU may lack what only plans
    known = (name for name in ("torch", "torchvision", "snakemake") if find_spec(name))
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"commit {source_version(SCRIPTS)[:7] or 'unknown'}",
        *_gpu(),
        f"{_cpu_model()}, {os.cpu_count()} cores",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in known),
    ]
    return ", ".join(parts)


def _gpu() -> list[str]:
    import torch  # noqa: PLC0415  as above

    from scalewise.ranks.monitoring.monitor import Monitor  # noqa: PLC0415

    if not torch.cuda.is_available():
        return []
    (monitor := Monitor(str(torch.cuda.get_device_properties(0).uuid))).start()
    driver = f"driver {monitor.stop().driver}"
    return [torch.cuda.get_device_name(0), driver, f"CUDA {torch.version.cuda}"]


def markdown(rows: Sequence[Row]) -> str:
    """The table, aligned to be read as text too."""
    cells = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in cells
    ]
    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    target = row.target + ("" if row.met else ": MISSED")
    return row.what, row.ours, row.reference, row.ratio, str(row.n), target


def _cpu_model() -> str:
    """As the package's provenance says it; that module imports torch, which is too large for here."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
