"""The decision of an experiment: devices and options to use, in a sentence that the measured points carry."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from scalewise.analysis.decision import cautions, wording
from scalewise.analysis.decision.criteria import candidates, closest, evaluate
from scalewise.analysis.statistics.significance import ENOUGH_REPEATS
from scalewise.plan.config.experiment import DecisionRule

SAME_TRAINING = {"gradient_as_bucket_view", "cpus_per_device"}
"""Options that change how fast a training runs, not what it trains."""

NUMBERS = (
    "baseline_devices", "speedup", "speedup_low", "speedup_high", "speedup_confidence",
    "parallel_efficiency", "parallel_efficiency_low", "parallel_efficiency_high", "n", "speedup_n",
    "throughput_samples_per_second", "throughput_samples_per_second_low",
    "throughput_samples_per_second_high", "wall_seconds", "wall_seconds_low", "wall_seconds_high",
    "device_hours", "queue_minutes",
)  # fmt: skip
"""Columns of scaling.csv that ``Decision.numbers`` holds of the chosen point."""


@dataclass(frozen=True)
class Decision:
    """The answer of an experiment.

    Args:
        devices: Number of devices to use; None where nothing can be said, or no point meets the criteria.
        series: Options to use: the name of a series in scaling.csv.
        sentence: The answer.
        alternatives: Other points of the same series, a sentence each; the chosen one too where its own
            sentence tells times alone. Then time to accuracy.
        options: Gains of the options, a sentence each.
        cautions: Weaknesses of the answer, a sentence each.
        criterion: The sentence that says by which criterion the devices were chosen.
        limits: Bottlenecks, a sentence each.
        startup: Points whose start takes long, a sentence each; no throughput or efficiency holds it.
        beyond: Predictions of points that were not measured, a sentence each.
        numbers: ``NUMBERS`` of the chosen point, None for what is not known; empty without such a point.
    """

    experiment: str
    devices: int | None
    series: str | None
    sentence: str
    alternatives: list[str]
    options: list[str]
    cautions: list[str]
    criterion: str = ""
    limits: list[str] = field(default_factory=list)
    startup: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    numbers: dict[str, float | int | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def decide(
    experiment: str,
    scaling: pd.DataFrame,
    options: pd.DataFrame,
    rule: DecisionRule,
    *,
    target: float | None = None,
    differences: Sequence[str] = (),
    queue_minutes: Mapping[int, float] | None = None,
    swept: Collection[str] | None = None,
) -> Decision:
    """The devices that meet the rule best, and are faster than fewer.

    Series compete only where their options leave the training itself alone; else the first of the
    configuration is decided on, and the others are shown beside it.

    Args:
        experiment: Name of the experiment.
        scaling: Output of ``scaling_table``.
        options: Output of ``option_table``.
        rule: The criteria; without any, the knee.
        target: Test accuracy to reach, if any.
        differences: Further cautions on the runs, a sentence each.
        queue_minutes: Devices -> usual wait in the queue, where the site gives it.
        swept: Keys of the options that series differ in; by default those in ``options``.
    """
    points = evaluate(scaling, rule, queue_minutes)
    if points.empty:
        notes = "; ".join(dict.fromkeys(note for note in scaling["note"] if note))
        sentence = f"No decision: {notes or 'no run has completed'}."
        return Decision(
            experiment, None, None, sentence, alternatives=[], options=[], cautions=list(differences)
        )
    first = str(scaling.loc[scaling["series"].isin(points["series"]), "series"].iloc[0])
    if not set(options["option"] if swept is None else swept) <= SAME_TRAINING:
        points = points[points["series"] == first]
    chosen = candidates(points, rule)
    best = _choose_series(chosen, points, first) if len(chosen) else None
    shown = closest(points, rule) if best is None else best
    series = points[points["series"] == shown["series"]]
    planned = scaling[scaling["series"] == shown["series"]].sort_values("devices")
    numbers = {} if best is None else {name: _plain(best[name]) for name in NUMBERS}
    if best is not None and not queue_minutes:
        numbers["queue_minutes"] = None
    if best is None:
        sentence, described = wording.no_answer(shown, points, rule), series
    else:
        sentence = wording.answer(best, series, rule, target)
        times_alone = rule.deadline_minutes is not None or rule.max_device_hours is not None
        described = series if times_alone else series[series["devices"] != best["devices"]]
    return Decision(
        experiment=experiment,
        devices=None if best is None else int(best["devices"]),
        series=str(shown["series"]),
        sentence=sentence,
        alternatives=[
            *(wording.alternative(point, series, rule, target) for _, point in described.iterrows()),
            *wording.to_target(series, target),
        ],
        options=[wording.option_gain(row) for _, row in options.iterrows()],
        cautions=[
            *([] if best is None else cautions.of_choice(best, series, rule)),
            *cautions.of_points(series, planned, target),
            *differences,
        ],
        criterion=wording.criterion_text(rule, best, series),
        numbers=numbers,
    )


def _choose_series(chosen: pd.DataFrame, points: pd.DataFrame, first: str) -> pd.Series:
    """The fastest series where its interval is clear of the first one's at equal devices, else the first.

    Args:
        chosen: A point of each series that has one.
        points: All that have a speedup.
        first: Series of the configuration that has any.
    """
    by = "throughput_samples_per_second"
    fastest = chosen.sort_values([by, "wall_seconds"], ascending=[True, False], na_position="first").iloc[-1]
    own = chosen[chosen["series"] == first]
    if own.empty:
        return fastest
    beside = points[(points["series"] == first) & (points["devices"] == fastest["devices"])]
    enough = ENOUGH_REPEATS
    clear = (beside[f"{by}_high"] < fastest[f"{by}_low"]) & (beside["n"] >= enough)
    return fastest if len(beside) and clear.all() and fastest["n"] >= enough else own.iloc[0]


def _plain(value: Any) -> float | int | None:
    """A number for JSON: None where it is not known, whole where it is."""
    if pd.isna(value):
        return None
    number = float(value)
    return int(number) if number.is_integer() else number
