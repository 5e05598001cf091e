"""Cautions: a sentence for each weakness of a decision, with its cure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from scalewise.analysis.accuracy import accuracy_lost
from scalewise.analysis.analysis_spec import MEASURED_WAITS, THROUGHPUT, WITH_NO_GRAD
from scalewise.analysis.comparison.gains import Measure
from scalewise.analysis.decision.choice import OpenQuestion
from scalewise.analysis.decision.criteria import may_be_in_time, may_exceed, of_target
from scalewise.analysis.decision.sentences import sentence
from scalewise.analysis.decision.wording import cure_text, open_text
from scalewise.analysis.disturbed import named_runs
from scalewise.analysis.scaling import OF_WALLS
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS
from scalewise.analysis.statistics.ratios import ASSUMED_SCATTER
from scalewise.plan.config.experiment import ACCEPTED_LOSS, DecisionRule
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    Goal,
    format_3sig,
    format_exact,
    format_ratio,
    goal_text,
    percent,
    pluralize,
    point_text,
    points_text,
)

(
    DISTURBED, LEFT_OUT, ABOVE_IDEAL, OTHER_RATE, OF_PROGRAM, COLLAPSED, NOT_COMPARED, UNRELIABLE, SURVIVORS,
    CONFOUNDED, RIVAL, EXCLUDED, UNDECIDED, LOSS, UNEXPLAINED, MEASUREMENT, CONTEXT,
) = range(17)  # fmt: skip
"""Harm done by relying on an answer in spite of a caution, the most first: it rests on disturbed runs; it
rests on some of the runs only; an efficiency is above 1; its speedup may be of something else than the
training; a run's program says what belongs next to it; its accuracy is lower than that of other device
counts; the configured training is not among the compared ones; it may not run at all; its slow runs may be
missing; it may be of hosts or days instead of devices; another option may be better; a count that is left
out may meet the criteria; another answer may be right; it costs accuracy; a figure may be wrong; runs were
slowed; the figure is right, and what it rests on is told."""

UNCLEAR = frozenset(
    {
        *(DISTURBED, ABOVE_IDEAL, OTHER_RATE, COLLAPSED, NOT_COMPARED, SURVIVORS, CONFOUNDED),
        *(RIVAL, EXCLUDED, UNDECIDED),
    }
)
"""Harms with which an answer is not clear."""

Caution = tuple[int, str]
"""The harm, and the sentence."""

OTHER_SPEEDUP = 0.03
"""Share by which a speedup with the time of passes without gradients differs enough to be another answer."""

MAX_RATES = 3
"""Device counts of which both rates stand in a caution; scaling.csv has all."""

IDEAL = 1.02
"""Largest efficiency that is taken for ideal: repeats on a quiet machine scatter by 1 to 2 %."""

FULL_MEMORY = 0.9
"""Share of a GPU's memory in tensors from which on it is short of memory: the allocator frees and retries."""

SLOW_BATCH = 1.05
"""Samples/s of a smaller batch over the baseline's own from which on the larger batch is the slower one."""


def of_choice(
    best: pd.Series,
    points: pd.DataFrame,
    rule: DecisionRule,
    open_questions: Sequence[OpenQuestion],
    measure: Measure,
) -> Iterator[Caution]:
    """Cautions on what is uncertain about the chosen point.

    Args:
        best: The chosen point.
        points: The judged points of its series.
        rule: The criteria.
        open_questions: Device counts between which the runs cannot tell.
        measure: Quantity that decided.
    """
    for question in sorted(open_questions, key=lambda each: -(each.runs_needed or math.inf)):
        cure = cure_text(question) + (", or give `decision` a criterion" if question.kind == "knee" else "")
        yield UNDECIDED, f"{open_text(question, measure)} {cure}."
    slower = best["time_to_accuracy_speedup_high"]
    if best["devices"] > best["time_to_accuracy_baseline_devices"] and slower < 1:
        yield (
            LOSS,
            f"{count_devices(int(best['devices']))} reach the target later than "
            f"{int(best['time_to_accuracy_baseline_devices'])} "
            f"({format_ratio(best['time_to_accuracy_speedup'])}x the speed): they need more samples, which "
            "outweighs their throughput.",
        )
    yield from of_deadline(points[points["devices"] < best["devices"]], rule)
    if rule.max_device_hours is not None and (hours := may_exceed(best, rule)) is not None:
        limit = format_exact(rule.max_device_hours)
        longest = f"A run may take up to {format_3sig(hours)} device-hours"
        yield UNDECIDED, f"{longest}, more than the {limit} allowed."


def of_deadline(points: pd.DataFrame, rule: DecisionRule) -> Iterator[Caution]:
    """Cautions on points that were passed over though their mean run keeps the deadline."""
    for _, point in points.iterrows():
        if may_be_in_time(point, rule):
            minutes = point["wall_seconds"] / 60 + point["queue_minutes"]
            yield (
                UNDECIDED,
                f"{count_devices(int(point['devices']))} may be in time: their runs take "
                f"{format_3sig(minutes)} minutes on average, the next one may take up to "
                f"{format_3sig(point['done_minutes'])}. More repeats bring that bound down.",
            )


def of_rivals(rivals: Sequence[pd.Series], ratio: float, measure: Measure) -> Iterator[Caution]:
    """Yield the caution on a point of another series that may be better than the chosen one.

    Args:
        rivals: Output of ``find_rivals``.
        ratio: Speed of the first of them over that of the chosen point.
        measure: Quantity that decided.
    """
    for point in rivals[:1]:
        where = point_text(int(point["devices"]), str(point["series"]))
        text = sentence("rival", where=where, ratio=ratio, to=of_target(measure))
        yield RIVAL, f"{text} Add repeats, or use it."


def of_exclusions(points: Sequence[pd.Series]) -> Iterator[Caution]:
    """Yield a caution on each point that is left out by its means, and not shown to miss the criteria."""
    for point in points:
        where = point_text(int(point["devices"]), str(point["series"]))
        text = sentence("may meet", where=where, misses=", and ".join(point["misses"]))
        yield EXCLUDED, f"{text} Add repeats."


def of_configured(scaling: pd.DataFrame, points: pd.DataFrame, target: Goal | None) -> Iterator[Caution]:
    """Yield the caution on a first series whose runs never reached the target, so that others are compared.

    Args:
        scaling: The scaling table of all series.
        points: The judged points.
        target: The goal that counts as trained, if there is one.
    """
    if target is None or scaling.empty or points["n_reached"].fillna(0).sum() == 0:
        return
    first = scaling["series"].iloc[0]
    runs = scaling[scaling["series"] == first]
    if runs["n"].sum() and not runs["n_reached"].sum():
        number = pluralize(f"{runs['n'].sum():.0f}", "run")
        yield (
            NOT_COMPARED,
            f"None of the {number} of {first} reached {goal_text(target)}: the answer is of another series.",
        )


def accuracy_loss(best: pd.Series, points: pd.DataFrame, measure: Measure) -> float:
    """Return by how many points the chosen point is shown to be below the most accurate device count, else 0.

    Less than ``ACCEPTED_LOSS`` is none. With a target that decides, every point is as accurate as that.

    Args:
        best: The chosen point.
        points: The judged points of its series.
        measure: Quantity that decided.
    """
    if measure == "time to target" or points["final_accuracy"].isna().all():
        return 0.0
    lost = accuracy_lost(best, _most_accurate(points))
    return lost if lost >= 100 * ACCEPTED_LOSS else 0.0


def _most_accurate(points: pd.DataFrame) -> pd.Series:
    return points.dropna(subset=["final_accuracy"]).sort_values("final_accuracy").iloc[-1]


def has_survivors(best: pd.Series, points: pd.DataFrame) -> bool:
    """Return whether runs of the chosen point or of its baseline ended without a result."""
    decisive = points[points["devices"].isin([best["devices"], best["gain_base"]])]
    return bool((decisive["n_unsuccessful"] > 0).any())


def of_waits(rule: DecisionRule, queue_minutes: Mapping[int, float], source: str) -> Iterator[Caution]:
    """Yield the caution on a deadline that is judged with waits that were measured."""
    if rule.deadline_minutes is not None and source == MEASURED_WAITS and any(queue_minutes.values()):
        yield (
            CONTEXT,
            f"The deadline counts a wait in the queue, {source}. It is no promise for later jobs. "
            "To replace it, give the site file queue_minutes.",
        )


def of_points(
    points: pd.DataFrame,
    planned: pd.DataFrame,
    target: Goal | None,
    measure: Measure,
    fewest: int,
    best: pd.Series | None = None,
) -> Iterator[Caution]:
    """The weaknesses of the points of a series with a speedup.

    Args:
        points: Those with a speedup, output of ``evaluate``.
        planned: All of the series in the scaling table.
        target: The goal that counts as trained, if there is one.
        measure: Quantity that decided.
        fewest: Runs of the point with the fewest, of those that the answer rests on.
        best: The chosen point, if there is one.
    """
    survivors = best is not None and has_survivors(best, points)
    decisive = [int(best["devices"]), int(best["gain_base"])] if best is not None and survivors else []
    yield from _without_result(planned, target, decisive)
    if target is not None and measure == "throughput":
        longer = "Let the program train for longer, or ask for less"
        cure = longer if isinstance(target, str) else "Raise epochs, or lower the target"
        yield (
            UNDECIDED,
            f"No run reached {goal_text(target)}, so throughput decides: whether more devices train as well "
            f"is not known. {cure}.",
        )
    base_devices = int(points["baseline_devices"].iloc[0])
    if base_devices > 1:
        yield CONTEXT, f"Speedups are relative to {base_devices} devices, not to 1."
    notes = planned["note"].fillna("")
    if notes.str.contains(OF_WALLS, regex=False).any():
        yield UNEXPLAINED, f"Speedups are {OF_WALLS}."
    if fewest < ENOUGH_REPEATS:
        runs = "1 completed run" if fewest == 1 else f"{fewest} completed runs"
        assumed = f"; a spread of {percent(ASSUMED_SCATTER, 0)} is assumed" if fewest == 1 else ""
        yield UNDECIDED, f"Some points have only {runs}{assumed}. Use at least {ENOUGH_REPEATS} repeats."
    yield from of_efficiency(points)
    if best is not None and (loss := accuracy_loss(best, points, measure)):
        top = _most_accurate(points)
        seen, usual = (percent(each["final_accuracy"], 1 if loss >= 1 else 2) for each in (best, top))
        yield (
            COLLAPSED,
            f"Accuracy is {points_text(loss)} lower on {count_devices(int(best['devices']))}: {seen} instead "
            f"of {usual} on {int(top['devices'])}. Check the learning rate, or train for longer.",
        )
        return
    for text in _less_accurate(points):
        yield LOSS, text


def of_runs(planned: pd.DataFrame) -> Iterator[Caution]:
    """Cautions on runs that are not comparable with the others, and on what was measured of all.

    Args:
        planned: All points of a series in the scaling table, whether they have a speedup or not.
    """
    yield from of_no_grad(planned)
    counts = planned.reindex(columns=["n_not_comparable", "n_set_apart"]).fillna(0)
    others = counts["n_not_comparable"] - counts["n_set_apart"]  # of_disturbed has these
    for note in planned["note"].fillna("")[others > 0]:
        yield LEFT_OUT, f"{note[0].upper()}{note[1:]}."


def of_no_grad(planned: pd.DataFrame) -> Iterator[Caution]:
    """A caution where it is not known whether passes without gradients belong to the training.

    Args:
        planned: All points of a series in the scaling table.
    """
    rates = planned.reindex(columns=["devices", "baseline_devices", THROUGHPUT, WITH_NO_GRAD])
    points = rates.dropna()
    if points.empty:
        return
    sentences = [
        "It is not known whether forward passes without gradients belong to the training.",
        *(
            f"On {count_devices(int(point['devices']))} it trains {format_3sig(point[THROUGHPUT])} samples/s "
            f"without their time and {format_3sig(point[WITH_NO_GRAD])} with it."
            for _, point in points.iloc[:MAX_RATES].iterrows()
        ),
    ]
    if len(points) > MAX_RATES:
        more = pluralize(str(len(points) - MAX_RATES), "more device count")
        sentences.append(f"scaling.csv has both rates of {more}.")
    harm = OF_PROGRAM
    if changed := _changed_speedup(rates):
        harm = OTHER_RATE
        sentences.append(changed)
    sentences.append(
        "If they do, write `no_grad_passes: training`; if they evaluate, `no_grad_passes: evaluation`."
    )
    yield harm, " ".join(sentences)


def _changed_speedup(rates: pd.DataFrame) -> str:
    """A sentence on the speedup that passes without gradients change most; empty if all stay about equal."""
    known = rates.dropna(subset=[THROUGHPUT])
    base = known[known["devices"] == known["baseline_devices"]]
    if base.empty:
        return ""
    # points on which it is known have one rate
    with_passes = known[WITH_NO_GRAD].fillna(known[THROUGHPUT])
    without = known[THROUGHPUT] / base[THROUGHPUT].iloc[0]
    with_them = with_passes / with_passes[base.index[0]]
    changes = (with_them / without - 1).abs()
    most = changes.idxmax()
    if changes[most] <= OTHER_SPEEDUP:
        return ""
    return (
        f"With their time the speedup of {count_devices(int(known.loc[most, 'devices']))} is "
        f"{format_ratio(with_them[most])}x, not {format_ratio(without[most])}x."
    )


def of_disturbed(planned: pd.DataFrame, *, on_slurm: bool) -> Iterator[Caution]:
    """Cautions on disturbed runs: those that the answer rests on, and those that were set apart.

    Args:
        planned: Rows of the scaling table that the answer rests on; published figures know no disturbance.
        on_slurm: The runs were jobs of Slurm.
    """
    if "disturbed" not in planned:
        return
    used, apart = planned[planned["n_disturbed"] > 0], planned[planned["n_set_apart"] > 0]
    whole_nodes = " (`slurm.exclusive: true` in the site file requests whole nodes)" if on_slurm else ""
    again = (
        "run `python workflow/scripts/cli.py redo --disturbed`, then the same snakemake command on a quiet "
        f"machine{whole_nodes}."
    )
    if len(used):
        runs = count_devices(int(used["n_disturbed"].sum()), "disturbed run")
        yield DISTURBED, f"The answer rests on {runs}: {named_runs(used)}. For a clear answer {again}"
    if len(apart):
        yield LEFT_OUT, f"Disturbed runs are set apart: {named_runs(apart)}. To replace them {again}"


def of_efficiency(points: pd.DataFrame) -> Iterator[Caution]:
    """A caution on efficiencies above 1, with what is known of their cause and what to do.

    One counts from ``IDEAL`` on, whatever its interval, and below if its whole interval lies above 1.

    Args:
        points: Points of a series with a speedup.
    """
    efficiency = points["parallel_efficiency"]
    shown = (points["speedup_n"] > 1) & (points["parallel_efficiency_low"] > 1)
    above = points[(efficiency > IDEAL) | shown]
    if above.empty:
        return
    base = points[points["devices"] == points["baseline_devices"]]
    places = [
        f"{point['parallel_efficiency']:.2f} on {count_devices(int(point['devices']))}"
        for _, point in above.iterrows()
    ]
    cause = _cause_above_ideal(
        base.iloc[0] if len(base) else None,
        int(points["baseline_devices"].iloc[0]),
        may_be_noise=not shown[above.index].any() and above["speedup_n"].min() > 1,
    )
    yield ABOVE_IDEAL, f"Efficiency is above 1: {', '.join(places)}. {cause}"


def _cause_above_ideal(base: pd.Series | None, devices: int, *, may_be_noise: bool) -> str:
    """Return the cause of an efficiency above 1 as far as the records show it, and the fix.

    Args:
        base: Row of the baseline; None if it has none.
        devices: Device count of the baseline.
        may_be_noise: No interval lies above 1.
    """
    known = pd.Series(dtype=float) if base is None else base
    used, size, gain = (
        float(known.get(name, float("nan")))
        for name in ("peak_memory_bytes", "device_memory_bytes", "smaller_batch_gain")
    )
    found = []
    if used >= FULL_MEMORY * size:
        found.append(f"its tensors took {used / 1e9:.1f} of {size / 1e9:.1f} GB of memory")
    if gain >= SLOW_BATCH:
        found.append(f"by itself it makes {format_ratio(gain)}x the samples/s with a smaller batch")
    if may_be_noise and not found:
        return "Noise may explain it: no interval lies above 1. Add repeats."
    where = f"That is an error until it is explained. The baseline, {count_devices(devices)},"
    smaller = (
        "Use smaller batches for the whole series (`accumulation_steps`, or `scaling: weak`), or let "
        "`devices` begin at a larger count."
    )
    if found:
        return f"{where} is short of memory for its batch: {', and '.join(found)}. {smaller}"
    return (
        f"{where} was slow for a reason that its records do not show. Measure it again while the machine is "
        "quiet (compare loader_seconds in runs.csv). If it stays slow, it is short of memory, "
        f"cache or CPUs for its loader. {smaller}"
    )


def _less_accurate(points: pd.DataFrame) -> Iterator[str]:
    base = points[points["devices"] == points["baseline_devices"]]
    if base.empty:
        return
    first = base.iloc[0]
    lost = [(loss, point) for _, point in points.iterrows() if (loss := accuracy_lost(point, first))]
    if lost:
        loss, worst = lost[int(np.argmax([each for each, _ in lost]))]
        seen, usual = (percent(each["final_accuracy"], 1 if loss >= 1 else 2) for each in (worst, first))
        others = pluralize(str(len(lost) - 1), "other device count")
        more = f", and lower on {others}" if len(lost) > 1 else ""
        yield (
            f"Accuracy is {points_text(loss)} lower on {count_devices(int(worst['devices']))}: "
            f"{seen} instead of {usual}{more}. Check the learning rate, or train for longer."
        )


def _without_result(
    planned: pd.DataFrame, target: Goal | None, decisive: Sequence[int] = ()
) -> Iterator[Caution]:
    for _, point in planned.iterrows():
        where = count_devices(int(point["devices"]))
        failed, ended = int(point["n_failed"]), point.get("unsuccessful")
        if failed:
            total = int(point["n_failed"] + point["n"])
            why = f" ({ended})" if isinstance(ended, str) and ended else ""
            harm, then = UNRELIABLE if why else CONTEXT, "."
            if why and int(point["devices"]) in decisive:
                harm, then = SURVIVORS, ": if they were the slow ones, the others are too fast."
            yield harm, f"{failed} of {total} runs on {where} have no result{why}{then}"
    for _, point in planned.iterrows():
        if target is not None and point["n_reached"] < point["n"]:
            some = f"{int(point['n_reached'])} of {int(point['n'])} runs"
            yield LOSS, f"{some} on {count_devices(int(point['devices']))} reached {goal_text(target)}."
