"""The figures of a report, in order, with their words. Imports no library: the rules read it too."""

from __future__ import annotations

from dataclasses import dataclass

_CURVES = (
    "A mark is an epoch: against epochs, and for up to four series against the time of training, without "
    "evaluation and start-up. Lines are medians over the repeats that have the epoch, bands and bars reach "
    "from the lowest to the highest; faded where some repeats have stopped."
)
_NOT_MEASURED = (
    "Hollow marks, where there are any, are device counts that were not measured, as the measured ones make "
    "them expect; their bars hold 95 % of the possibilities. Marks that would touch are left out; the table "
    "has all. A measured mark without a bar is a single run."
)


@dataclass(frozen=True)
class FigureText:
    """Words of a figure.

    Args:
        title: Name for readers.
        caption: Meaning of every mark, also in Snakemake's report.
        unknown: Words on what no run has, or what is not known of two device counts.
        compares: True if it shows device counts next to each other, and not each run.
        where_counts_are_chosen: Further sentences in a study that does not measure every device count.
    """

    title: str
    caption: str
    unknown: str
    compares: bool = False
    where_counts_are_chosen: str = ""


FIGURES = {
    "speedup": FigureText(
        title="Speedup",
        caption="Speedup: throughput over that of the series' fewest devices. Bars are 95 % intervals "
        "over repeats. The dotted line is ideal scaling. A curve is a law fitted to all "
        "runs of its series, with its 95 % band; a law that the data do not support is "
        "not drawn. The dashed line, where there is one, is predicted from one device's step and a measured "
        "all-reduce: an upper bound, not fitted to marks on more devices; a mark above it is noise or "
        "needs an explanation.",
        unknown="is a speedup",
        compares=True,
        where_counts_are_chosen=_NOT_MEASURED,
    ),
    "efficiency": FigureText(
        title="Parallel efficiency",
        caption="Parallel efficiency: speedup over the ratio of device counts. Bars are 95 % "
        "intervals over repeats. The dashed line, where there is one, is what you require.",
        unknown="is an efficiency",
        compares=True,
        where_counts_are_chosen=_NOT_MEASURED,
    ),
    "step": FigureText(
        title="Where the time of a step goes",
        caption="Where the time of a step goes. A bar is the device time that one sample takes, devices over "
        "throughput: with ideal scaling all bars are equally high, so what stands on top is what scaling "
        "costs. Its parts have their shares of the step, means over repeats: the wait for data and the "
        "delay of one slow rank by clocks in the training, communication (what computing does not hide) by "
        "DDP's own counters, uneven ranks where now one is late and now another, and computing what is left. "
        "Below: the seconds before a run's first result, medians of each part.",
        unknown="how long its steps took",
    ),
    "prediction": FigureText(
        title="Prediction beside measurement",
        caption="Prediction beside measurement: time of a step and parallel efficiency against devices. "
        "Dashed with its band: predicted from one device's step and all-reduces measured by themselves; of "
        "device counts that the study does not measure, also from its own steps on several nodes. Dotted: "
        "compute alone. Marks: measured, steps as medians, efficiency with its interval. In the pale "
        "area nothing was measured.",
        unknown="are a predicted and a measured step",
        compares=True,
    ),
    "efficiencies": FigureText(
        title="Efficiency of hardware and of learning",
        caption="Two efficiencies, one answer. Hardware: throughput per device over the baseline's. "
        "Statistical: the baseline's epochs (of a program samples) to the target over those here, which "
        "falls where larger batches learn less from a sample. Both: training time to the target, measured, "
        "over the number of times more devices. Bars are 95 % intervals over repeats.",
        unknown="are both efficiencies",
        compares=True,
    ),
    "throughput": FigureText(
        title="Throughput",
        caption="Training throughput against devices. Filled marks are means over repeats, bars their "
        "95 % intervals, rings single runs. Warm-up, evaluation and start-up are left out.",
        unknown="its throughput",
        where_counts_are_chosen=f"{_NOT_MEASURED} The runs of points that have several are crosses in "
        "place of rings.",
    ),
    "accuracy": FigureText(
        title="Test accuracy",
        caption=f"Test accuracy by number of devices. {_CURVES} Every test sample is counted exactly once.",
        unknown="its accuracy",
    ),
    "loss": FigureText(
        title="Loss",
        caption=f"Test and training loss by number of devices. {_CURVES} Of a program, the loss that "
        "backward gets against steps: a trend.",
        unknown="its loss",
    ),
    "memory": FigureText(
        title="Peak memory",
        caption="Peak memory while training, of the device that used most: mean over repeats, bars their "
        "95 % intervals.",
        unknown="its peak memory",
    ),
}
