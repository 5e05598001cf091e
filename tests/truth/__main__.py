"""Print the tables of docs/statistics.md: how often decisions, intervals and causes are wrong.

    python -m tests.truth

Studies with a known truth are simulated, and go the way of real ones from the table of their runs on. A
decision is silently wrong if it loses more than the gain worth having (``decision.min_gain``) against the
right one, and neither the answer nor a caution says that it may. The exit status is 1 if a rate misses its
target. It takes half an hour on two cores; seeds are fixed, so the numbers are the same each time.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

sys.path[:0] = [str(Path(__file__).parents[2] / "workflow" / "scripts")]

# ruff: noqa: E402  the path comes first
from tests.truth.causes import FALSE, FOUND, cause_rates
from tests.truth.partitions import CASES
from tests.truth.partitions import verdicts as verdicts_on_partitions
from tests.truth.splits import CASES as SPLIT_CASES
from tests.truth.splits import verdicts as verdicts_on_splits
from tests.truth.studies import (
    DOUBLED,
    SERIES,
    STUDIES,
    Circumstances,
    Planted,
    answer,
    judge,
    run_table,
)
from tests.truth.systematic import RIGHT, WRONG
from tests.truth.systematic import verdicts as systematic_verdicts

from scalewise.analysis.comparison.confounding import confounding_sentences, trend_sentences
from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.decision.choice import verdict
from scalewise.analysis.decision.decision import decide
from scalewise.analysis.laws import fit_laws
from scalewise.analysis.next_runs import Findings, doubts
from scalewise.analysis.partitions.points import AIMS
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.analysis.statistics.ratios import ratio_of
from scalewise.plan.config.experiment import DecisionRule, Repeats

SCATTERS = (0.01, 0.03, 0.1)
REPEATS = (3, 6, 10)
STUDIES_A_CELL = 100
DISTURBED_A_CELL = 50
"""Studies that are disturbed, or that go on until their decision is clear."""
CAUSES_A_CELL = 40
DRAWS = 20_000
"""Samples for the coverage of an interval that needs no study around it."""

MOST_WRONG = 0.05
"""Silently wrong decisions that are tolerated if repeats scatter by at most 3 %, and false sentences."""
UP_TO_SCATTER = 0.03
SYSTEMATIC = ((0.01, 3), (0.03, 3), (0.03, 6))
"""Scatter and repeats of studies in which something else than noise decides, 60 of each."""
SYSTEMATIC_A_CELL = 60
MOST_CLEAR_AND_WRONG = 0.02
"""The same, of studies in which something else than noise decides."""
SEED = 20260131
ADAPTIVE = Repeats(min=3, max=10)

Draw = Callable[[np.random.Generator, int], np.ndarray]


def _skewed(generator: np.random.Generator, n: int) -> np.ndarray:
    """Runs that are sometimes slow and never fast."""
    return 1 - generator.exponential(1, n)


def _heavy(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.standard_t(3, n) / math.sqrt(3)


def _disturbed(generator: np.random.Generator, n: int) -> np.ndarray:
    """One run in ten is slower by five times the scatter."""
    return generator.standard_normal(n) - 5 * (generator.random(n) < 0.1)


SHAPES: Mapping[str, Draw] = {
    "lognormal": lambda generator, n: generator.standard_normal(n),
    "skewed": _skewed,
    "heavy tails": _heavy,
    "one run in ten slower by 5 scatters": _disturbed,
    "uniform": lambda generator, n: generator.uniform(-1, 1, n) * math.sqrt(3),
    "two modes": lambda generator, n: generator.choice([-1.0, 1.0], n) + 0.2 * generator.standard_normal(n),
}
UNEQUAL = {
    "3 runs at 10 % against 20 at 1 %": ((3, 0.1), (20, 0.01)),
    "3 at 3 % against 3 at 1 %": ((3, 0.03), (3, 0.01)),
    "3 at 3 % against 6 at 3 %": ((3, 0.03), (6, 0.03)),
}
CIRCUMSTANCES: Mapping[str, Circumstances] = {
    "speed falls by 10 % over the study": Circumstances(trend=-0.1),
    "every count on nodes of its own, 3 % apart": Circumstances(sticky_nodes=0.03),
    "the most devices two days later, all 5 % faster": Circumstances(other_day=0.05),
    "three times the scatter on the most devices": Circumstances(scatter_of_most=3.0),
    "skewed noise": Circumstances(tail=_skewed),
    "heavy tails (t, 3 degrees of freedom)": Circumstances(tail=_heavy),
    "one run in ten slower by 5 scatters": Circumstances(tail=_disturbed),
}
DISTURBED = ("no gain at all", "efficiency far from 0.7", "the knee")
"""Studies that are looked at under each of them."""


@dataclass(frozen=True)
class Cell:
    """Studies of one kind.

    Args:
        study: Key of ``STUDIES``.
        scatter: Standard deviation of the logarithm of a run's speed.
        n: Repeats; None for repeats until the decision is clear.
        circumstances: Key of ``CIRCUMSTANCES``; empty for none.
    """

    study: str
    scatter: float
    n: int | None
    circumstances: str = ""

    @property
    def studies(self) -> int:
        return DISTURBED_A_CELL if self.circumstances or self.n is None else STUDIES_A_CELL

    @property
    def counts(self) -> bool:
        """Whether the target for silently wrong decisions holds for these studies."""
        return self.scatter <= UP_TO_SCATTER


def main() -> int:
    cells = [Cell(study, scatter, n) for study in STUDIES for scatter in SCATTERS for n in (*REPEATS, None)]
    cells += [
        Cell(study, scatter, n, how)
        for how in CIRCUMSTANCES
        for study in DISTURBED
        for scatter in SCATTERS[:2]
        for n in REPEATS
    ]
    compared, split = product(CASES, REPEATS[:2]), product(SPLIT_CASES, REPEATS[:2])
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        causes = {
            "false cause": pool.submit(cause_rates, tuple(FALSE), CAUSES_A_CELL),
            "found": pool.submit(cause_rates, tuple(FOUND), CAUSES_A_CELL),
        }
        across, splits = (
            {(case, n): pool.submit(rates, verdicts_on, case, n) for case, n in each}
            for verdicts_on, each in ((verdicts_on_partitions, compared), (verdicts_on_splits, split))
        )
        systematic = {
            (kind, *cell): pool.submit(systematic_verdicts, study, *cell, SYSTEMATIC_A_CELL)
            for kind, study in {**WRONG, **RIGHT}.items()
            for cell in SYSTEMATIC
        }
        found = dict(zip(cells, pool.map(verdicts, cells), strict=True))
        of_partitions = {cell: each.result() for cell, each in across.items()}
        of_splits = {cell: each.result() for cell, each in splits.items()}
        of_systematic = {cell: each.result() for cell, each in systematic.items()}
    ns, of = [f"n = {n}" for n in REPEATS], ", ".join(map(str, REPEATS))
    _show(
        "Shown to be worth its devices",
        ["true gain", *(f"{s:.0%}, {n}" for s in SCATTERS for n in ns)],
        power(),
    )
    _show("Decisions", ["study", "scatter", *ns, "until clear"], decisions(found))
    _show("Disturbed studies", ["what disturbs it", "study", "scatter", *ns], disturbed_decisions(found))
    _show(
        "Not noise alone",
        ["study", *(f"{scatter:.0%}, n = {n}" for scatter, n in SYSTEMATIC)],
        systematic_rows(of_systematic),
    )
    _show(
        "Speedup of 8 devices", ["circumstances", f"covers, n = {of}", f"cautioned, n = {of}"], confounded()
    )
    _show("Ratios", ["noise", f"covers, n = {of}", f"equal called faster, n = {of}"], ratios())
    _show("Amdahl's serial fraction", ["counts scatter", f"covers, n = {of}"], laws())
    options = {number: false_options(number) for number in (1, 4, 16)}
    _show("Equal options", ["comparisons", "false"], [[str(k), f"{v:.1%}"] for k, v in options.items()])
    swapped, excess = swapped_series(6)
    _show("Six equal series", ["another chosen", "excess"], [[f"{swapped:.1%}", f"{excess:+.1%}"]])
    rates = {kind: each.result() for kind, each in causes.items()}
    _show("Causes", ["truth", "scatter", *ns], cause_rows(rates))
    _show(
        "Partitions",
        ["truth", "n", *AIMS],
        [
            [case, str(n), *(_answers(counts, f"{aim}: ") for aim in AIMS)]
            for (case, n), counts in of_partitions.items()
        ],
    )
    _show(
        "Splits",
        ["truth", *ns[:2]],
        [[case, *(_answers(of_splits[case, n]) for n in REPEATS[:2])] for case in SPLIT_CASES],
    )

    # what is checked, its rate, and the highest that is tolerated
    checks = [
        (f"{cell}", share(counts, "wrong"), MOST_WRONG) for cell, counts in found.items() if cell.counts
    ]
    checks += [
        (f"{cell}, by {aim}", counts[f"{aim}: wrong"] / STUDIES_A_CELL, MOST_WRONG)
        for cell, counts in of_partitions.items()
        for aim in AIMS
    ]
    checks += [
        (f"{cell}", counts["wrong"] / STUDIES_A_CELL, MOST_WRONG) for cell, counts in of_splits.items()
    ]
    checks += [
        (f"{cell}, clear and wrong", counts["wrong, clear"] / SYSTEMATIC_A_CELL, MOST_CLEAR_AND_WRONG)
        for cell, counts in of_systematic.items()
    ]
    # the standard error of 200 studies is 1.5 %
    checks += [(f"{number} equal options", rate, 2 * MOST_WRONG) for number, rate in options.items()]
    checks.append(("equal series", swapped, 2 * MOST_WRONG))
    missed = [f"{name}: {rate:.1%} is over {limit:.0%}" for name, rate, limit in checks if rate > limit]
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def _show(title: str, headings: Sequence[str], rows: Iterator[list[str]] | Sequence[list[str]]) -> None:
    lines = [headings, ["---"] * len(headings), *rows]
    print(f"\n{title}\n", *(f"| {' | '.join(line)} |" for line in lines), sep="\n", flush=True)


def rates(verdicts_on: Callable[..., list[str]], case: str, n: int) -> Counter[str]:
    """Number of verdicts on drawn studies of a case, which have n repeats."""
    generator = np.random.default_rng(SEED)
    found: Counter[str] = Counter()
    for _ in range(STUDIES_A_CELL):
        found.update(verdicts_on(case, generator, UP_TO_SCATTER, n))
    return found


def verdicts(cell: Cell) -> Counter[str]:
    """Number of studies with each verdict, and ``runs``, the number of all their runs."""
    planted, how = STUDIES[cell.study], CIRCUMSTANCES.get(cell.circumstances, Circumstances())
    generator = np.random.default_rng(SEED)
    counts: Counter[str] = Counter()
    for _ in range(cell.studies):
        if cell.n is None:
            runs = adaptive_runs(planted, generator, cell.scatter, how)
        else:
            runs = run_table(planted, generator, cell.scatter, cell.n, how)
        counts[judge(planted, answer(planted, runs))] += 1
        counts["runs"] += len(runs)
    return counts


def adaptive_runs(
    planted: Planted, generator: np.random.Generator, scatter: float, how: Circumstances
) -> pd.DataFrame:
    """The runs of a study whose repeats go on until its decision is clear."""
    every = run_table(planted, generator, scatter, ADAPTIVE.max, how)
    asked = dict.fromkeys(planted.rates, ADAPTIVE.min)
    while True:
        runs = every[every["repeat"] <= every["devices"].map(asked)]
        undecided = answer(planted, runs).undecided
        wanted = {devices: asked[devices] + more for devices, more in undecided.items()}
        following = doubts(asked, Findings(None, {}, wanted=wanted), ADAPTIVE)
        if not following:
            return runs
        asked |= following


def share(counts: Counter[str], verdict: str) -> float:
    return counts[verdict] / sum(count for each, count in counts.items() if each != "runs")


def _wrong(counts: Counter[str]) -> str:
    """Silently wrong / wrong but reported, in per cent; the rest is right or near."""
    return f"{100 * share(counts, 'wrong'):.0f} / {100 * share(counts, 'reported'):.0f}"


def decisions(found: Mapping[Cell, Counter[str]]) -> Iterator[list[str]]:
    """Wrong decisions of studies that nothing disturbs."""
    for study in STUDIES:
        for scatter in SCATTERS:
            clear = found[Cell(study, scatter, None)]
            runs = f"({clear['runs'] / DISTURBED_A_CELL:.0f} runs)"
            cells = [_wrong(found[Cell(study, scatter, n)]) for n in REPEATS]
            yield [study, f"{scatter:.0%}", *cells, f"{_wrong(clear)} {runs}"]


def disturbed_decisions(found: Mapping[Cell, Counter[str]]) -> Iterator[list[str]]:
    """Wrong decisions of studies that something disturbs."""
    for how in CIRCUMSTANCES:
        for study in DISTURBED:
            for scatter in SCATTERS[:2]:
                cells = [_wrong(found[Cell(study, scatter, n, how)]) for n in REPEATS]
                yield [how, study, f"{scatter:.0%}", *cells]


def systematic_rows(found: Mapping[tuple[str, float, int], Counter[str]]) -> Iterator[list[str]]:
    """Clear answers that are right / answers that are not clear / clear answers that are wrong."""
    for kind in dict.fromkeys(cell[0] for cell in found):
        cells = [found[kind, scatter, n] for scatter, n in SYSTEMATIC]
        shares = [
            (each["right, clear"], each["right"] + each["wrong"], each["wrong, clear"]) for each in cells
        ]
        yield [kind, *(" / ".join(map(str, each)) for each in shares)]


def _answers(counts: Counter[str], head: str = "") -> str:
    """Answers that are right, open and silently wrong, in per cent."""
    return " / ".join(
        str(round(100 * counts[head + verdict] / STUDIES_A_CELL))
        for verdict in ("right", "cannot tell", "wrong")
    )


def _joined(rates: Sequence[float], digits: int = 0) -> str:
    return ", ".join(f"{100 * rate:.{digits}f}" for rate in rates) + " %"


def ratios() -> Iterator[list[str]]:
    """How often the 95 % interval of a ratio holds the true one, and how often equal samples differ."""
    for name, draw in SHAPES.items():
        covered, false = zip(*(coverage(n, 0.03, n, 0.03, draw) for n in REPEATS), strict=True)
        yield [name, _joined(covered, 1), _joined(false, 1)]
    for name, ((m, above), (n, below)) in UNEQUAL.items():
        held, faster = coverage(m, above, n, below, SHAPES["lognormal"])
        yield [name, _joined([held], 1), _joined([faster], 1)]


def drawn_shares(studies: int, judged: Callable[[np.random.Generator], Sequence[bool]]) -> list[float]:
    """Shares of drawn studies for which each of some statements is true."""
    generator = np.random.default_rng(SEED)
    found: list[float] = np.mean([judged(generator) for _ in range(studies)], axis=0).tolist()
    return found


def coverage(m: int, above: float, n: int, below: float, draw: Draw) -> list[float]:
    """The share of 95 % intervals that hold a true ratio of 1, and of samples called faster at all."""

    # where the noise is not symmetric, equal samples have equal medians all the same
    def judged(generator: np.random.Generator) -> tuple[bool, bool]:
        ratio = ratio_of(
            np.exp(above * draw(generator, m)).tolist(), np.exp(below * draw(generator, n)).tolist()
        )
        assert ratio is not None, "no sample is empty"
        return ratio.at_least <= 1 <= ratio.at_most, ratio.at_least > 1

    return drawn_shares(DRAWS, judged)


def power() -> Iterator[list[str]]:
    """How often more devices are shown to be worth having, by their true gain, if 5 % is required."""
    for gain in (0.0, 0.05, 0.1, 0.2):
        shown = [_shown(gain, scatter, n) for scatter in SCATTERS for n in REPEATS]
        yield [f"{gain:.0%}", *(f"{rate:.1%}" for rate in shown)]


def _shown(gain: float, scatter: float, n: int) -> float:
    """The share of samples that show a true gain."""

    def judged(generator: np.random.Generator) -> tuple[bool]:
        more = (1 + gain) * np.exp(scatter * generator.standard_normal(n))
        fewer = np.exp(scatter * generator.standard_normal(n))
        ratio = ratio_of(more.tolist(), fewer.tolist())
        assert ratio is not None, "no sample is empty"
        return (verdict(ratio, 1 + DecisionRule().min_gain) == "shown",)

    return drawn_shares(DRAWS // 4, judged)[0]


def confounded() -> Iterator[list[str]]:
    """Coverage of a speedup's 95 % interval under circumstances, and how often a caution reports them."""
    planted = STUDIES["efficiency far from 0.7"]
    further = {
        "runs spread over equal nodes": Circumstances(),
        # only a person who knows the site can see these: each run is on another node anyway
        "every count in a rack of its own, 3 % apart": Circumstances(sticky_nodes=0.03, nodes_to_a_count=8),
    }

    def judged(generator: np.random.Generator, n: int, how: Circumstances) -> tuple[bool, bool]:
        known = known_columns(run_table(planted, generator, 0.01, n, how))
        ratio = gains(known).of("throughput", (SERIES, 8), (SERIES, 1))
        assert ratio is not None, "every run has a throughput"
        holds = ratio.at_least <= planted.rates[8] / planted.rates[1] <= ratio.at_most
        return holds, bool([*confounding_sentences(known), *trend_sentences(known)])

    for name, how in {**further, **CIRCUMSTANCES}.items():
        found = [drawn_shares(STUDIES_A_CELL, partial(judged, n=n, how=how)) for n in REPEATS]
        covered, cautioned = zip(*found, strict=True)
        yield [name, _joined(covered), _joined(cautioned)]


def laws(studies: int = 2 * STUDIES_A_CELL) -> Iterator[list[str]]:
    """Coverage of Amdahl's serial fraction, where all device counts scatter alike and where one does not."""
    for what, factor in (("alike", 1.0), ("three times as much on the most devices", 3.0)):
        shares = []
        for n in REPEATS:
            generator = np.random.default_rng(SEED)
            covered = fitted = 0
            for _ in range(studies):
                rates = {
                    devices: (
                        (100 / (0.05 + 0.95 / devices))
                        * np.exp(0.02 * (factor if devices == 16 else 1) * generator.standard_normal(n))
                    ).tolist()
                    for devices in DOUBLED
                }
                law = fit_laws(SERIES, rates, "strong")[0]
                if not law.refused:
                    fraction = law.parameters["serial_fraction"]
                    fitted += 1
                    covered += fraction.low <= 0.05 <= fraction.high
            shares.append(covered / fitted)
        yield [what, _joined(shares)]


def false_options(comparisons: int, studies: int = 2 * STUDIES_A_CELL) -> float:
    """The share of studies in which one of several equal values of an option is called faster or slower."""
    names = [f"v{value}" for value in range(comparisons + 1)]
    planted = Planted({1: 100.0}, DecisionRule())
    false = 0
    for study in range(studies):
        generator = np.random.default_rng(SEED + study)
        drawn = [run_table(planted, generator, 0.03, 3, Circumstances()) for _ in names]
        runs = [each.assign(loader=name, series=name) for name, each in zip(names, drawn, strict=True)]
        table = option_table(pd.concat(runs, ignore_index=True), {"loader": names})
        false += bool((table["p_adjusted"] <= 0.05).any())
    return false / studies


def swapped_series(series: int, studies: int = 2 * STUDIES_A_CELL) -> tuple[float, float]:
    """The share of studies that choose another series, and the mean excess of the stated throughput."""
    generator = np.random.default_rng(SEED)
    planted = Planted({1: 100.0, 2: 180.0}, DecisionRule(min_efficiency=0.5))
    swapped, excess = 0, 0.0
    for _ in range(studies):
        runs = pd.concat(
            [
                run_table(planted, generator, 0.03, 3, Circumstances()).assign(series=f"{SERIES} {index}")
                for index in range(series)
            ],
            ignore_index=True,
        )
        known = known_columns(runs)
        compared = gains(known)
        decision = decide(
            "study", scaling_table(known, "strong", None, compared), option_table(known, {}), planted.rule,
            compared=compared, options_of={name: (("loader", name),) for name in known["series"]},
        )  # fmt: skip
        swapped += decision.series != f"{SERIES} 0"
        stated = decision.numbers["throughput_samples_per_second"]
        assert stated is not None, "its points have throughputs"
        assert decision.devices is not None, "every point is efficient enough"
        excess += float(stated) / planted.rates[decision.devices] - 1
    return swapped / studies, excess / studies


def cause_rows(tables: Mapping[str, pd.DataFrame]) -> Iterator[list[str]]:
    """How often a cause is named that is not the truth, and how often the true one is found."""
    for kind, table in tables.items():
        for (truth, scatter), cells in table.groupby(["truth", "scatter"], sort=False):
            yield [f"{kind}: {truth}", f"{scatter:.0%}", *(f"{100 * rate:.1f} %" for rate in cells["rate"])]


if __name__ == "__main__":
    sys.exit(main())
