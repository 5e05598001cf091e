"""The sentences of a decision: its alternatives, what an option gains, time to accuracy.

Every figure stands with its interval and its number of repeats. "As fast as" is said of equal results;
where accuracy is lost beyond its interval, the gain is one of throughput and the loss stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pandas as pd

from scalewise.analysis.accuracy import accuracy_lost
from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.comparison.gains import Measure
from scalewise.analysis.decision.choice import MOST_ADVISED, OpenQuestion
from scalewise.analysis.decision.sentences import SENTENCES, sentence
from scalewise.analysis.statistics.intervals import CONFIDENCE, ENOUGH_REPEATS, Interval
from scalewise.analysis.statistics.ratios import Ratio
from scalewise.plan.config.experiment import ACCEPTED_LOSS, DecisionRule
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    Goal,
    as_in_yaml,
    format_3sig,
    format_distinct,
    format_exact,
    format_ratio,
    goal_text,
    percent,
    pluralize,
    point_text,
    points_text,
)


def open_text(question: OpenQuestion, measure: Measure, noun: str = "device") -> str:
    """Return a sentence on what the runs do not show.

    Args:
        question: The question that is open.
        measure: Quantity that decided.
        noun: ``GPU``, ``CPU process`` or ``device``.
    """
    fewer, more = sorted((question.devices, question.than))
    # an efficiency is the ratio over that of the devices
    share = fewer / more if question.kind in {"efficient", "inefficient"} else 1.0
    form = "{:.2f}".format if question.kind in {"efficient", "inefficient"} else format_ratio
    unit = "x" if question.kind == "gain" else ""
    ends = [f"{form(end * share)}{unit}" for end in (question.ratio.at_least, question.ratio.at_most)]
    bounds = " to ".join(ends)
    if question.ratio.n < ENOUGH_REPEATS:
        bounds = f"about {form(question.ratio.estimate * share)}{unit}"
    return sentence(
        question.kind,
        noun,
        devices=question.devices,
        fewer=fewer,
        more=more,
        bounds=bounds,
        least=format_distinct(question.ratio.estimate * share, question.threshold * share)[1],
        to=SENTENCES["to the target"] if measure == "time to target" else "",
    )


def cure_text(question: OpenQuestion) -> str:
    """The repeats that would tell two device counts apart, as far as they are as different as they look."""
    return repeats_text(question.runs_needed, question.ratio.n, is_tie=question.kind != "gain")


def repeats_text(needed: int | None, n: int, *, is_tie: bool = True) -> str:
    """The repeats that would tell two points apart; more than ``MOST_ADVISED`` are no advice.

    Args:
        needed: Runs of each that would tell; None if too many to plan.
        n: Runs of each so far.
        is_tie: The question is which of two is better, not how much.
    """
    if needed is None or needed - n > MOST_ADVISED:
        verdict = "Too close to tell apart at this scatter: that" if is_tie else "That"
        return f"{verdict} would take more than {MOST_ADVISED} more repeats of each"
    return f"About {pluralize(str(needed - n), 'more repeat')} of each should settle it"


def ratio_bounds(ratio: Ratio) -> str:
    """``0.97 to 1.16, n = 3``."""
    interval = ratio.interval()
    return _bounds(interval.low, interval.high, ratio.n, format_ratio)


def no_answer(best: pd.Series, points: pd.DataFrame, rule: DecisionRule) -> str:
    """Return which point comes nearest if none meets the rule, and by how much it misses.

    Args:
        best: The point that comes nearest.
        points: The judged points of all series that compete.
        rule: A rule of one criterion or more.
    """
    if rule.deadline_minutes is not None and math.isnan(best["done_minutes"]):
        return "The time of whole runs is unknown, and deadline_minutes needs it."
    if rule.max_device_hours is not None and math.isnan(best["device_hours"]):
        return "The device-hours of whole runs are unknown, and max_device_hours needs them."
    unknown = ""
    if best["n_unsuccessful"] == 0:
        unknown = _of_unknown(points, "done_minutes" if rule.deadline_minutes is not None else "device_hours")
    where = point_text(best["devices"], best["series"])
    return sentence("closest", where=where, misses=", and ".join(best["misses"]) + unknown)


def _of_unknown(points: pd.DataFrame, column: str) -> str:
    """A clause on the points where the criterion cannot be judged; empty where there is none."""
    unknown = points[points[column].isna()]
    if unknown.empty:
        return ""
    counts = " and ".join(dict.fromkeys(f"{devices:.0f}" for devices in unknown["devices"]))
    return f"; unknown for {counts} device{'' if counts == '1' else 's'}"


def measured(point: pd.Series) -> str:
    """The sentence on a series of one device count, which has no speedup.

    Args:
        point: Row of the scaling table, with runs that completed.
    """
    column, unit = THROUGHPUT, "samples/s"
    if math.isnan(point[THROUGHPUT]):
        column, unit = "wall_seconds", "s for a run"
    low, high = (float(point[f"{column}_{end}"]) for end in ("low", "high"))
    bounds = _bounds(low, high, point["n"], of=point["n"] + point["n_not_comparable"])
    where = point_text(point["devices"], point["series"])
    return f"Measured: {format_3sig(point[column])} {unit} ({bounds}) on {where}."


def alternative(
    point: pd.Series,
    points: pd.DataFrame,
    rule: DecisionRule,
    target: Goal | None,
    measure: Measure,
    queue_source: str,
) -> str:
    """The sentence on a point of the series: its gain, and its cost.

    Args:
        point: The point to describe.
        points: The judged points of its series.
        rule: The criteria; where they are on whole runs, their time is said too.
        target: The goal that counts as trained, if there is one.
        measure: Quantity that decided.
        queue_source: Source of the wait in the queue, a clause.
    """
    devices = int(point["devices"])
    if devices == int(point["baseline_devices"]):
        rate = point["throughput_samples_per_second"]
        gain = "the baseline"
        if not math.isnan(rate):
            gain += f", {format_3sig(rate)} samples/s"
        elif not math.isnan(point["wall_seconds"]):
            gain += f", a run takes {_run_time(point, queue_source)}"
    else:
        gain = _gain(point, points, target, measure)
    whole_runs = rule.deadline_minutes is not None or rule.max_device_hours is not None
    time = ""
    if whole_runs and not math.isnan(point["wall_seconds"]):
        hours = format_3sig(point["device_hours"])
        time = f"; a run takes {hours} device-hours and {_run_time(point, queue_source)}"
    return f"{count_devices(devices)}: {gain}{time}."


def to_target(points: pd.DataFrame, target: Goal | None) -> Iterator[str]:
    """Time to accuracy, absolute, and as the product of the two efficiencies that it is made of.

    More devices process more samples a second (hardware) and may need more samples for the same accuracy
    (statistics); how much faster the accuracy is reached is the product.

    Args:
        points: The judged points of a series.
        target: The goal that counts as trained, if there is one.
    """
    reached = points[points["time_to_accuracy_seconds"].notna()]
    if target is None or reached.empty:
        return
    times = ", ".join(
        f"{point['time_to_accuracy_seconds']:,.2f} s on {count_devices(int(point['devices']))}"
        f"{_reached(point)}"
        for _, point in reached.iterrows()
    )
    yield f"Training time to {goal_text(target)}: {times}."
    gains = reached[
        (reached["devices"] > reached["time_to_accuracy_baseline_devices"])
        & reached["time_to_accuracy_speedup"].notna()
    ]
    if len(gains):
        products = "; ".join(_product(point) for _, point in gains.iterrows())
        yield f"To {goal_text(target)}: {products}."


def other_training(
    point: pd.Series, ratio: Ratio | None, accuracy: Interval | None, *, not_accepted: bool
) -> str:
    """The sentence on the best point of series that train something else than the answer.

    Args:
        point: The point, which the same rule has chosen.
        ratio: Speed over the answer's; None if there is no answer, or a speed is not known.
        accuracy: Final accuracy less the answer's, a fraction; None if too few runs know it.
        not_accepted: The configuration accepts its options, and the runs do not show that accuracy is kept.
    """
    faster = (
        ""
        if ratio is None
        else f", {format_ratio(ratio.estimate)}x as fast as this answer ({ratio_bounds(ratio)})"
    )
    kept = ""
    if accuracy is not None:
        ends = " to ".join(f"{100 * end:+.2f}" for end in (accuracy.low, accuracy.high))
        lower = "lower" if accuracy.estimate < 0 else "higher"
        change = f"{100 * abs(accuracy.estimate):.2f} percentage points {lower}"
        kept = "no difference is shown" if accuracy.low <= 0 <= accuracy.high else change
        kept = f", final accuracy {percent(point['final_accuracy'])}: {kept} ({ends} points)"
    elif ratio is not None:
        kept = ", final accuracy not compared: fewer than 3 runs on a side know it"
    limit = f"{100 * ACCEPTED_LOSS:g} points"
    refused = f" It is not accepted: a loss of at most {limit} is not shown." if not_accepted else ""
    return f"With {point['series']}: {count_devices(int(point['devices']))}{faster}{kept}.{refused}"


def no_other_training(series: str) -> str:
    """The sentence on series that train something else, none of whose points meets the criteria."""
    return f"With {series}: no device count meets the criteria."


def option_sentences(options: pd.DataFrame) -> list[str]:
    """A sentence on each option's value: its gain over the reference, by the rows of ``option_table``."""
    tests = int(options["p_adjusted"].notna().sum()) if len(options) else 0
    return [_option_gain(row, tests) for _, row in options.iterrows()]


def _option_gain(row: pd.Series, tests: int) -> str:
    low, high, p = row["throughput_ratio_low"], row["throughput_ratio_high"], row["p_adjusted"]
    ratio = format_ratio(row["throughput_ratio"])
    if math.isnan(p):
        verdict = "not judged from one run each"
    elif row["n"] < ENOUGH_REPEATS:
        verdict = "not judged from so few runs"
    elif p > 1 - CONFIDENCE:
        together = f", of {tests} comparisons taken together" if not low <= 1 <= high else ""
        verdict = f"no difference is shown{together}; it may be anything in the interval"
    else:
        verdict = "faster" if low > 1 else "slower"
    beside = f" with {row['beside']}" if row["beside"] else ""
    bounds = _bounds(low, high, row["n"], "{:.2f}".format)
    memory = row["peak_memory_ratio"]
    peak = "" if math.isnan(memory) else f" {memory:.3f}x the peak memory."
    return (
        f"{row['option']} {as_in_yaml(row['value'])} instead of {as_in_yaml(row['reference'])}{beside}, on "
        f"{count_devices(int(row['devices']))}: {ratio}x the throughput ({bounds}): {verdict}."
        f"{peak}"
    )


def _gain(point: pd.Series, points: pd.DataFrame, target: Goal | None, measure: Measure) -> str:
    """A point's gain over the baseline, and its price in training and in whole runs."""
    base = points[points["devices"] == points["baseline_devices"]]
    lost = accuracy_lost(point, base.iloc[0]) if len(base) else 0.0
    own = point["devices"] == point["gain_base"]
    price = f"{format_ratio(point['cost_ratio'])}x the device-hours of training"
    if not math.isnan(point["run_cost_ratio"]):
        price += f" and {format_ratio(point['run_cost_ratio'])}x those of a whole run"
    if measure == "time to target" and target is not None:
        reached = f"{goal_text(target)} in {format_3sig(point['expected_seconds_to_accuracy'])} s of training"
        if point["n_reached"] < point["n"]:
            reached += (
                f", with what {point['n'] - point['n_reached']:.0f} of {point['n']:.0f} runs spent in vain"
            )
        if own:
            return reached
        rate = (
            f"throughput {format_ratio(point['speedup'])}x at efficiency {point['parallel_efficiency']:.2f}"
        )
        return f"{reached}, {_speedup(point, measure)}, {price}; {rate}"
    speedup = _speedup(point, measure)
    if lost:
        speedup = f"{_speedup(point, measure, 'the throughput of')}, {points_text(lost)} of accuracy lost"
        if target is not None and point["n_reached"] < point["n"]:
            by = f" in {point['n'] - point['n_reached']:.0f} of {point['n']:.0f} runs"
            speedup += f"; time to {_short(target)} not reached{by if point['n_reached'] else ''}"
    return f"{speedup}, {_efficiency(point)}, {price}"


def _efficiency(point: pd.Series) -> str:
    """``efficiency 0.75``; with that of the own baseline if another one is the best."""
    own = f"{point['parallel_efficiency']:.2f}"
    if not _over_another(point):
        return f"efficiency {own}"
    return f"efficiency {point['efficiency_to_best']:.2f} ({own} to its own baseline)"


def _over_another(point: pd.Series) -> bool:
    """Whether a point's efficiency is relative to the baseline of another series."""
    best = point["best_baseline"], point["best_baseline_devices"]
    return bool(best != (point["series"], point["gain_base"]))


def _short(target: Goal) -> str:
    return target if isinstance(target, str) else percent(target)


def _speedup(point: pd.Series, measure: Measure, relation: str = "as fast as") -> str:
    if measure == "time to target":
        relation = "as fast to the target as"
    bounds = _bounds(
        point["gain_low"], point["gain_high"], point["speedup_n"], format_ratio, of=point["speedup_of"]
    )
    return f"{format_ratio(point['gain'])}x {relation} {int(point['gain_base'])} ({bounds})"


def _bounds(
    low: float, high: float, n: float, form: Callable[[float], str] = format_3sig, *, of: float = math.nan
) -> str:
    """An interval with its repeats, of those that completed; unknown bounds are left out."""
    repeats = f"n = {n:.0f} of {of:.0f}" if of > n else f"n = {n:.0f}"
    return repeats if n < 2 or math.isnan(low) else f"{form(low)} to {form(high)}, {repeats}"


def _run_time(point: pd.Series, queue_source: str) -> str:
    """``42 minutes (40 to 44, n = 5)``, and the queue's."""
    low, high = (point[f"wall_seconds_{bound}"] / 60 for bound in ("low", "high"))
    n = point["n"] if math.isnan(point["wall_n"]) else point["wall_n"]
    bounds = _bounds(low, high, n, of=point["n"] + point["n_not_comparable"])
    time = f"{format_3sig(point['wall_seconds'] / 60)} minutes ({bounds})"
    if point["queue_minutes"]:
        wait = pluralize(format_exact(point["queue_minutes"]), "minute")
        time += f" + {wait} in the queue, {queue_source}"
    return time


def _reached(point: pd.Series) -> str:
    if point["n_reached"] >= point["n"]:
        return ""
    return f" (in {point['n_reached']:.0f} of {point['n']:.0f} runs)"


def _product(point: pd.Series) -> str:
    low, high = (float(point[f"time_to_accuracy_speedup_{bound}"]) for bound in ("low", "high"))
    n = min(point["n_reached"], point["speedup_n"])
    bounds = f"{_bounds(low, high, n, format_ratio)}; "
    needed = ""
    if not math.isnan(point["statistical_efficiency"]):
        needed = f", {format_ratio(1 / point['statistical_efficiency'])}x as many samples"
    speedup = format_ratio(point["time_to_accuracy_speedup"])
    return (
        f"{speedup}x the speed on {count_devices(int(point['devices']))} "
        f"({bounds}throughput {format_ratio(point['speedup'])}x{needed})"
    )
