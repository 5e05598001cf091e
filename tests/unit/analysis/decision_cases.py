"""A table of studies, rules and right answers.

The answers follow from the planted speeds by arithmetic, and were not copied from what a program said.
"""

from dataclasses import dataclass
from typing import Any

from tests.unit.analysis.planted import ONLY, START_UP, Planted, spread

from scalewise.config.experiment import DecisionRule


@dataclass(frozen=True)
class Case:
    """A study, a rule, and the answer.

    Args:
        devices: The answer; None where no point meets the rule.
        clear: The runs leave no other answer open.
    """

    title: str
    study: Planted
    rule: DecisionRule
    devices: int | None
    clear: bool = True
    series: str = ONLY


def of(rates: dict[int, float], by: float = 0.01, repeats: int = 3, series: str = ONLY) -> Planted:
    return Planted({(series, devices): spread(rate, by, repeats) for devices, rate in rates.items()})


def both(one: Planted, other: Planted, **further: object) -> Planted:
    return Planted({**one.points, **other.points}, **further)  # type: ignore[arg-type]


def with_outcomes(study: Planted, devices: int, *outcomes: str) -> Planted:
    """The study with further runs of a point that ended without a result."""
    point = (ONLY, devices)
    return Planted({**study.points, point: [*study.points[point], *outcomes]})


RATES = {1: 100.0, 2: 190.0, 4: 300.0, 8: 400.0}
FOUR = of(RATES)
"""Speedups 1, 1.9, 3, 4; efficiencies 1, 0.95, 0.75, 0.5; speedup x efficiency 1, 1.8, 2.25, 2. Whole runs of
102, 54.6, 35.3 and 27 minutes, and 1.7, 1.82, 2.36 and 3.6 device-hours; the slowest of three repeats takes
1 % more."""

EXACT = of(RATES, by=0)
IDEAL_TO_FOUR = of({1: 100, 2: 200, 4: 400, 8: 400}, by=0)
DIP = of({1: 100, 2: 190, 4: 120, 8: 400})
NOISY = of({1: 100, 2: 180, 4: 190}, by=0.08)
SINGLE = of(RATES, repeats=1)
HALF_FAILED = with_outcomes(FOUR, 4, "failed", "failed", "failed")
HALF_NOT_RUN_YET = with_outcomes(FOUR, 4, *["not run yet"] * 3)
FASTEST_OF_FEW_FAILED = {
    point: [*rates, *(["failed"] * 3 if point[1] == 2 else [])]
    for point, rates in of({1: 100, 2: 300, 4: 290, 8: 500}).points.items()
}
UNKNOWN_WALLS = Planted(FOUR.points, walls=False)
WHOLE_NODES = Planted(FOUR.points, billed={1: 4, 2: 4, 4: 4, 8: 8})
"""6.8, 3.64, 2.36 and 3.6 device-hours are paid."""
BUSY = Planted(FOUR.points, queue_minutes={1: 0, 2: 20, 4: 30, 8: 120})

EPOCHS_GROW = Planted(
    FOUR.points,
    target=0.97,
    epochs={(ONLY, devices): [needed] * 3 for devices, needed in {1: 3, 2: 3, 4: 4, 8: 9}.items()},
)
"""Times to the target over the baseline's: 1.9, 3 x 3/4 = 2.25, 4 x 3/9 = 1.33."""
TARGET_BY_LUCK = Planted(
    FOUR.points,
    target=0.97,
    epochs={(ONLY, 1): [3, 3, 3], (ONLY, 2): [3, 3, 3], (ONLY, 4): [3, 3, None], (ONLY, 8): [None] * 3},
)
TARGET_NOT_REACHED = Planted(FOUR.points, target=0.99)


FIRST_WITHOUT_BASELINE = Planted(
    {("off", 1): ["failed"] * 3, ("off", 2): spread(500), ("on", 1): spread(100), ("on", 2): spread(180)}
)
FIRST_WITHOUT_RUN = Planted(
    {
        ("large", 1): ["out-of-memory"] * 3,
        **of({1: 100, 2: 190}, series="middle").points,
        **of({1: 300, 2: 590}, series="small").points,
    },
    swept=["global_batch_size"],
)

VIEW_OFF = of({1: 1157.0, 2: 2150.0, 4: 3900.0, 8: 6300.0, 16: 8200.0}, series="view off")
VIEW_ON = of({1: 953.0, 2: 1880.0, 4: 3650.0, 8: 6900.0, 16: 10500.0}, series="view on")
"""On 16 devices the view has an efficiency of 0.69 by its own baseline and of 0.57 by the faster one."""

SLOW, FAST = of(RATES, series="slow"), of({at: 1.2 * rate for at, rate in RATES.items()}, series="fast")
SLIGHTLY_FASTER = of({at: 1.001 * rate for at, rate in RATES.items()}, by=0.03, series="fast")
FAST_FROM_SINGLE_RUNS = of({at: 1.2 * rate for at, rate in RATES.items()}, repeats=1, series="fast")
MANY_ALIKE = Planted(
    {
        (f"s{index}", devices): [rate * factor * each for each in (0.99, 1.0, 1.01)]
        for index, factor in enumerate((1.0, 1.0, 1.0, 0.99, 1.0, 1.01, 1.0, 1.018))
        for devices, rate in RATES.items()
    }
)
"""A lead of 1.8 % has p 0.044 in one comparison at a scatter of 1 %; in seven it is shown no more."""


def rule(**criteria: Any) -> DecisionRule:
    """A rule of these criteria; without any, an efficiency of 0.7."""
    return DecisionRule(**criteria)


MINUTES_ON_FOUR = (START_UP + 600_000 / 300) / 60
"""Of a run on 4 devices of ``EXACT``."""

CASES = [
    Case("an efficiency that only 1 device has", FOUR, rule(min_efficiency=0.98), 1),
    Case("an efficiency between two points", FOUR, rule(min_efficiency=0.7), 4),
    Case("an efficiency that a point has to the digit", EXACT, rule(min_efficiency=0.75), 4),
    Case("an efficiency within the noise of a point", FOUR, rule(min_efficiency=0.745), 4, clear=False),
    Case("an efficiency just missed within the noise", FOUR, rule(min_efficiency=0.755), 2, clear=False),
    Case("a gain that the runs do not show",
         Planted({(ONLY, 1): [80, 100, 120], (ONLY, 2): [130, 150, 170]}),
         rule(min_efficiency=0.7), 1, clear=False),
    Case("more devices that are as fast are no gain", IDEAL_TO_FOUR, rule(min_efficiency=0.1), 4),
    Case("a gain that is required and not there", FOUR, rule(min_efficiency=0.1, min_gain=0.5), 4),
    Case("a dip is not chosen, and the count after it is held against the best before",
         DIP, rule(min_efficiency=0.1), 8),
    Case("a deadline takes the fewest devices in time", FOUR, rule(deadline_minutes=40), 4),
    Case("a deadline that no count keeps", FOUR, rule(deadline_minutes=20), None, clear=False),
    Case("a deadline that a point keeps to the digit", EXACT, rule(deadline_minutes=MINUTES_ON_FOUR), 4),
    Case("a deadline that the median run keeps and the next may not",
         FOUR, rule(deadline_minutes=35.5), 8, clear=False),
    Case("devices that mostly failed are no rival of more that are a little slower",
         Planted({at: FASTEST_OF_FEW_FAILED[at] for at in ((ONLY, 1), (ONLY, 2), (ONLY, 4))}),
         rule(min_efficiency=0.1), 4, clear=False),
    Case("a queue that makes more devices late", BUSY, rule(deadline_minutes=70), 4),
    Case("device-hours take the fastest that keep to them", FOUR, rule(max_device_hours=2.5), 4),
    Case("device-hours that a count exceeds within the noise",
         FOUR, rule(max_device_hours=1.8), 1, clear=False),
    Case("device-hours that no count keeps to", FOUR, rule(max_device_hours=1.5), None, clear=False),
    Case("device-hours of whole nodes", WHOLE_NODES, rule(max_device_hours=3), 4),
    Case("all three criteria", FOUR, rule(min_efficiency=0.7, deadline_minutes=60, max_device_hours=2), 2),
    Case("noise in which more may be better", NOISY, rule(min_efficiency=0.3), 2, clear=False),
    Case("single runs, by the scatter that they are taken to have",
         SINGLE, rule(min_efficiency=0.7), 4, clear=False),
    Case("a point of which half the runs failed", HALF_FAILED, rule(), 2, clear=False),
    Case("a point of which half the runs are not made yet", HALF_NOT_RUN_YET, rule(), 4),
    Case("unknown walls and a deadline", UNKNOWN_WALLS, rule(deadline_minutes=40), 4, clear=False),
    Case("unknown walls and an efficiency", UNKNOWN_WALLS, rule(min_efficiency=0.7), 4),
    Case("a target decides by the time to it", EPOCHS_GROW, rule(min_efficiency=0.1), 4),
    Case("efficiency to the target", EPOCHS_GROW, rule(min_efficiency=0.6), 2),
    Case("a target that more devices reach less often, of which three runs show little",
         TARGET_BY_LUCK, rule(min_efficiency=0.1), 2, clear=False),
    Case("a target that no run reached", TARGET_NOT_REACHED, rule(min_efficiency=0.7), 4, clear=False),
    Case("another series that is faster", both(SLOW, FAST), rule(min_efficiency=0.7), 4, series="fast"),
    Case("another series that may not be chosen",
         both(SLOW, FAST, swept=["precision"]), rule(min_efficiency=0.7), 4, series="slow"),
    Case("an option with a slow baseline, by the efficiency to the best one",
         both(VIEW_OFF, VIEW_ON), rule(min_efficiency=0.6), 8, series="view on"),
    Case("another series that is faster on fewer devices",
         both(of({1: 100, 2: 180}, series="slow"), of({1: 1000, 2: 1100}, series="fast")),
         rule(min_efficiency=0.7), 1, series="fast"),
    Case("a first series without a baseline competes where it has runs, above the ideal",
         FIRST_WITHOUT_BASELINE, rule(min_efficiency=0.7), 2, clear=False, series="off"),
    Case("a configured training without a run has no answer, whatever the others have",
         FIRST_WITHOUT_RUN, rule(min_efficiency=0.7), None, clear=False),
    Case("another series that is not shown to be faster",
         both(SLOW, SLIGHTLY_FASTER), rule(min_efficiency=0.6), 4, clear=False, series="slow"),
    Case("another series of single runs is chosen, and not clear",
         both(SLOW, FAST_FROM_SINGLE_RUNS), rule(min_efficiency=0.6), 4, clear=False, series="fast"),
    Case("a series that is the only one with a result on more devices",
         both(of({1: 100, 2: 196}, series="off"), of({1: 100, 2: 196, 4: 385}, series="on")),
         rule(min_efficiency=0.7), 4, series="on"),
    Case("another series that needs fewer devices for as much",
         both(of({1: 100, 2: 196, 4: 300}, series="off"), of({1: 150, 2: 298, 4: 299}, series="on")),
         rule(min_efficiency=0.1), 2, series="on"),
    Case("the only series in time", both(SLOW, FAST), rule(deadline_minutes=25), 8, series="fast"),
    Case("the luckiest of eight that are alike is not chosen",
         MANY_ALIKE, rule(min_efficiency=0.6), 4, series="s0"),
]  # fmt: skip
