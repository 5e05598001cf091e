"""The sentences of a decision: the answer, its alternatives, what an option gains, time to accuracy.

Every figure stands with its interval and its number of repeats. "As fast as" is said of equal results;
where accuracy is lost beyond its interval, the gain is one of throughput and the loss stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from scalewise.analysis.decision.criteria import accuracy_lost
from scalewise.analysis.formatting import as_in_yaml, format_3sig, format_exact, format_ratio, pluralize
from scalewise.analysis.statistics.significance import ENOUGH_REPEATS
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.config.shape import count_devices
from scalewise.plan.runs.runs import NO_OPTIONS


def answer(best: pd.Series, points: pd.DataFrame, rule: DecisionRule, target: float | None) -> str:
    """The sentence that says how many devices to use, and what the next count would bring.

    Args:
        best: The chosen point.
        points: The judged points of its series, in order of devices.
        rule: The criteria.
        target: Test accuracy to reach, if any.
    """
    use = f"Use {count_devices(int(best['devices']))}{_options(best)}"
    if rule.deadline_minutes is not None:
        fewer = points[points["devices"] < best["devices"]]
        beside = _too_slow(fewer.iloc[-1], rule.deadline_minutes) if len(fewer) else ""
        return (
            f"{use}: a run takes {_run_time(best)}, within the {format_exact(rule.deadline_minutes)} asked "
            f"for{beside}."
        )
    more = points[points["devices"] > best["devices"]]
    if rule.max_device_hours is not None:
        beside = _too_dear(more.iloc[0]) if len(more) else ""
        return (
            f"{use}: a run takes {format_3sig(best['device_hours'])} device-hours, within the "
            f"{format_exact(rule.max_device_hours)} asked for, and {_run_time(best)}{beside}."
        )
    if best["devices"] == best["baseline_devices"]:
        if more.empty:
            return f"{use}: no result on more devices."
        following = more.iloc[0]
        past_the_knee = f"efficiency {following['parallel_efficiency']:.2f}, past the knee"
        why = _join(following["misses"]) or past_the_knee
        return f"{use}: {int(following['devices'])} would be {_speedup(following)}: {why}."
    would_be = ""
    if len(more):
        following = more.iloc[0]
        would_be = (
            f" {int(following['devices'])} would be {format_ratio(following['speedup'])}x at "
            f"{following['parallel_efficiency']:.2f}."
        )
    return f"{use}: {_gain(best, points, target)}.{would_be}"


def no_answer(best: pd.Series, points: pd.DataFrame, rule: DecisionRule) -> str:
    """The sentence where no point meets the rule: which comes nearest, and by how much it misses.

    Args:
        best: The point that comes nearest.
        points: The judged points of all series that compete.
        rule: A rule of one criterion or more.
    """
    if rule.deadline_minutes is not None and math.isnan(best["done_minutes"]):
        return "No decision: how long whole runs take is not known, and deadline_minutes is judged by that."
    if rule.max_device_hours is not None and math.isnan(best["device_hours"]):
        return "No decision: the runs' device-hours are not known, and max_device_hours is judged by them."
    where = f"on {count_devices(int(best['devices']))}{_options(best)}"
    if len(asked_for(rule)) > 1:
        return f"No device count meets all that was asked for: a run {where} has {_join(best['misses'])}."
    if rule.deadline_minutes is not None:
        asked = pluralize(format_exact(rule.deadline_minutes), "minute")
        over = format_3sig(best["done_minutes"] - rule.deadline_minutes)
        return (
            f"No run is done within the {asked} asked for: the fastest, {where}, takes {_run_time(best)}, up "
            f"to {over} minutes too long{_of_unknown(points, 'done_minutes')}."
        )
    assert rule.max_device_hours is not None, "the baseline meets every efficiency"
    asked = pluralize(format_exact(rule.max_device_hours), "device-hour")
    return (
        f"No run keeps to the {asked} asked for: the cheapest, {where}, takes "
        f"{format_3sig(best['device_hours'])}, "
        f"{format_3sig(best['device_hours'] - rule.max_device_hours)} too many"
        f"{_of_unknown(points, 'device_hours')}."
    )


def _of_unknown(points: pd.DataFrame, column: str) -> str:
    """A clause on the points where the criterion cannot be judged; empty where there is none."""
    unknown = points[points[column].isna() & (points["outrun_by"] == 0)]
    if unknown.empty:
        return ""
    counts = " and ".join(dict.fromkeys(f"{devices:.0f}" for devices in unknown["devices"]))
    return f"; of {counts} devices it is not known" if counts != "1" else "; of 1 device it is not known"


def asked_for(rule: DecisionRule) -> list[str]:
    """A clause for each criterion of the rule; none for the knee."""
    clauses = []
    if rule.min_efficiency is not None:
        clauses.append(f"an efficiency of at least {format_exact(rule.min_efficiency)}")
    if rule.deadline_minutes is not None:
        clauses.append(
            "a whole run, queue and start-up included, within "
            f"{pluralize(format_exact(rule.deadline_minutes), 'minute')} by the slowest of its runs"
        )
    if rule.max_device_hours is not None:
        clauses.append(f"at most {pluralize(format_exact(rule.max_device_hours), 'device-hour')}")
    return clauses


def criterion_text(rule: DecisionRule, best: pd.Series | None, points: pd.DataFrame) -> str:
    """The sentence that says by which criterion the number of devices was chosen.

    Args:
        rule: The criteria; without any, the sentence is on the knee.
        best: The chosen point; None where none meets them.
        points: The judged points of its series.
    """
    clauses = asked_for(rule)
    if clauses:
        preferred = "the most devices"
        if rule.deadline_minutes is not None:
            preferred = "the fewest devices"
        elif rule.max_device_hours is not None:
            preferred = "the shortest run"
        return f"Criterion: {preferred} with {'; '.join(clauses)}."
    knee = "Criterion: the knee, where speedup x efficiency is largest, since none was given"
    if best is None:
        return f"{knee}."
    powers = ", ".join(f"{int(point['devices'])}: {point['power']:.2f}" for _, point in points.iterrows())
    beyond = ""
    if best["devices"] == points["devices"].max() > points["devices"].min():
        beyond = " It is the most that was measured: the knee may lie beyond."
    return f"{knee} ({powers}).{beyond}"


def alternative(point: pd.Series, points: pd.DataFrame, rule: DecisionRule, target: float | None) -> str:
    """The sentence on a point of the series: its gain, and its cost.

    Args:
        point: The point to describe.
        points: The judged points of its series.
        rule: The criteria; where they are on whole runs, their time is said too.
        target: Test accuracy to reach, if any.
    """
    devices = int(point["devices"])
    if devices == int(point["baseline_devices"]):
        rate = point["throughput_samples_per_second"]
        gain = "the baseline"
        if not math.isnan(rate):
            gain += f", {format_3sig(rate)} samples/s"
        elif not math.isnan(point["wall_seconds"]):
            gain += f", a run takes {_run_time(point)}"
    else:
        gain = _gain(point, points, target)
    whole_runs = rule.deadline_minutes is not None or rule.max_device_hours is not None
    time = ""
    if whole_runs and not math.isnan(point["wall_seconds"]):
        time = f"; a run takes {format_3sig(point['device_hours'])} device-hours and {_run_time(point)}"
    return f"{count_devices(devices)}: {gain}{time}."


def to_target(points: pd.DataFrame, target: float | None) -> Iterator[str]:
    """Time to accuracy, absolute, and as the product of the two efficiencies that it is made of.

    More devices process more samples a second (hardware) and may need more samples for the same accuracy
    (statistics); how much faster the accuracy is reached is the product.

    Args:
        points: The judged points of a series.
        target: Test accuracy to reach, if any.
    """
    reached = points[points["time_to_accuracy_seconds"].notna()]
    if target is None or reached.empty:
        return
    times = ", ".join(
        f"{point['time_to_accuracy_seconds']:,.2f} s on {count_devices(int(point['devices']))}"
        f"{_reached(point)}"
        for _, point in reached.iterrows()
    )
    yield f"Training time to {target:.1%} accuracy: {times}."
    gains = reached[
        (reached["devices"] > reached["baseline_devices"]) & reached["time_to_accuracy_speedup"].notna()
    ]
    if len(gains):
        products = "; ".join(_product(point) for _, point in gains.iterrows())
        yield f"To {target:.1%} accuracy: {products}."


def option_gain(row: pd.Series) -> str:
    """The sentence on an option's value: its gain over the reference, by a row of ``option_table``."""
    low, high = row["throughput_ratio_low"], row["throughput_ratio_high"]
    if row["confidence"] == 0:
        verdict = "not judged from one run each"
    elif row["n"] < ENOUGH_REPEATS:
        verdict = "not judged from so few runs"
    elif low <= 1 <= high:
        verdict = "no difference in throughput was measured"
    elif low > 1:
        verdict = "faster"
    else:
        verdict = "slower"
    beside = f" beside {row['beside']}" if row["beside"] else ""
    also = row.get("also_differs")
    otherwise = f" The runs differ otherwise too: {also}." if isinstance(also, str) and also else ""
    return (
        f"{row['option']} {as_in_yaml(row['value'])} instead of {as_in_yaml(row['reference'])}{beside}, on "
        f"{count_devices(int(row['devices']))}: {verdict} ({row['throughput_ratio']:.2f}x, {low:.2f} to "
        f"{high:.2f}, n = {row['n']}{_confidence(row['confidence'])}), {row['peak_memory_ratio']:.3f}x the "
        f"peak memory.{otherwise}"
    )


def _confidence(confidence: float) -> str:
    return f", {confidence:.0%} confidence" if 0 < confidence < 1 else ""


def _gain(point: pd.Series, points: pd.DataFrame, target: float | None) -> str:
    base = points[points["devices"] == points["baseline_devices"]]
    lost = accuracy_lost(point, base.iloc[0]) if len(base) else 0.0
    speedup = _speedup(point)
    if lost:
        speedup = f"{_speedup(point, 'the throughput of')}, {lost:.1f} points of accuracy lost"
        if target is not None and point["n_reached"] < point["n"]:
            by = f" in {point['n'] - point['n_reached']:.0f} of {point['n']:.0f} runs"
            speedup += f"; time to {target:.1%} not reached{by if point['n_reached'] else ''}"
    return (
        f"{speedup}, efficiency {point['parallel_efficiency']:.2f}, {format_ratio(point['cost_ratio'])}x the "
        "device-hours"
    )


def _speedup(point: pd.Series, relation: str = "as fast as") -> str:
    bounds = _bounds(
        format_ratio(point["speedup_low"]), format_ratio(point["speedup_high"]), point["speedup_n"]
    )
    return f"{format_ratio(point['speedup'])}x {relation} {int(point['baseline_devices'])} ({bounds})"


def _bounds(low: str, high: str, n: float) -> str:
    """An interval with its repeats; one repeat has none."""
    return f"n = {n:.0f}" if n < 2 else f"{low} to {high}, n = {n:.0f}"


def _run_time(point: pd.Series) -> str:
    """``42 minutes (40 to 44, n = 5)``, and the queue's."""
    low, high = (format_3sig(point[f"wall_seconds_{bound}"] / 60) for bound in ("low", "high"))
    time = f"{format_3sig(point['wall_seconds'] / 60)} minutes ({_bounds(low, high, point['n'])})"
    if point["queue_minutes"]:
        time += (
            f" + {pluralize(format_exact(point['queue_minutes']), 'minute')} in the queue, by the site file"
        )
    return time


def _too_slow(fewer: pd.Series, deadline: float) -> str:
    """A clause that says why fewer devices miss the deadline."""
    minutes, queue = fewer["wall_seconds"] / 60, fewer["queue_minutes"]
    if fewer["done_minutes"] > deadline:
        if minutes + queue > deadline:
            waiting = f" + {format_exact(queue)}" if queue else ""
            return f"; {int(fewer['devices'])} would take {format_3sig(minutes)}{waiting}"
        return f"; {int(fewer['devices'])} may take up to {format_3sig(fewer['done_minutes'])}"
    return f"; {int(fewer['devices'])} would bring {_join(fewer['misses'])}"


def _too_dear(more: pd.Series) -> str:
    """A clause that says why more devices cost too much."""
    devices, misses = int(more["devices"]), more["misses"]
    if not misses:
        return f"; on {devices} it would take {format_3sig(more['wall_seconds'] / 60)}"
    if len(misses) == 1 and "device-hours" in misses[0] and not math.isnan(more["device_hours"]):
        return f"; {devices} would take {format_3sig(more['device_hours'])} device-hours"
    return f"; {devices} would bring {_join(misses)}"


def _reached(point: pd.Series) -> str:
    if point["n_reached"] >= point["n"]:
        return ""
    return f" (in {point['n_reached']:.0f} of {point['n']:.0f} runs)"


def _product(point: pd.Series) -> str:
    low, high = (format_ratio(point[f"time_to_accuracy_speedup_{bound}"]) for bound in ("low", "high"))
    bounds = f"{_bounds(low, high, point['speedup_n'])}; "
    needed = ""
    if not math.isnan(point["statistical_efficiency"]):
        needed = f", samples needed {format_ratio(1 / point['statistical_efficiency'])}x as many"
    speedup = format_ratio(point["time_to_accuracy_speedup"])
    return (
        f"{speedup}x as fast on {count_devices(int(point['devices']))} "
        f"({bounds}throughput {format_ratio(point['speedup'])}x{needed})"
    )


def _join(clauses: list[str]) -> str:
    return ", and ".join(clauses)


def _options(point: pd.Series) -> str:
    return "" if point["series"] == NO_OPTIONS else f" ({point['series']})"
