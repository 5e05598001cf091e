"""The figures of a report, in order, with their words. Imports no library: the rules read it too."""

from __future__ import annotations

from dataclasses import dataclass

_CURVES = (
    "A mark is an epoch: against epochs, and for up to four series against the time of training, without "
    "evaluation and start-up. Lines are medians over the repeats that have the epoch; bands and bars reach "
    "from the lowest to the highest. Lines are faded if some repeats have stopped."
)
_NOT_MEASURED = (
    "A hollow mark is an estimate for a device count that was not measured; its bar holds 95 % of the "
    "possibilities. Marks that would touch are left out; the table has all. A measured mark without a bar is "
    "a single run."
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
        caption="Speedup: throughput divided by that of the series' fewest devices. Bars are 95 % intervals "
        "over repeats. A dotted line is ideal scaling. A curve is a law fitted to all runs of its series, "
        "with its 95 % band; a law that the data do not support is not drawn. A dashed line is predicted "
        "from one device's step and a measured all-reduce. It is an upper bound, not fitted to runs on more "
        "devices: a mark above it is noise or needs an explanation.",
        unknown="is a speedup",
        compares=True,
        where_counts_are_chosen=_NOT_MEASURED,
    ),
    "efficiency": FigureText(
        title="Parallel efficiency",
        caption="Parallel efficiency: speedup divided by the ratio of device counts; 100 % is ideal. Bars "
        "are 95 % intervals over repeats. A dashed line is the efficiency that you require.",
        unknown="is an efficiency",
        compares=True,
        where_counts_are_chosen=_NOT_MEASURED,
    ),
    "step": FigureText(
        title="Where the time of a step goes",
        caption="Where the time of a step goes. A bar is the device time of one sample: devices divided by "
        "throughput. With ideal scaling all bars are equally high; the extra height is the cost of scaling. "
        "Parts have their shares of the step, means over repeats. Clocks in the training measure the wait "
        "for data and one slow rank; DDP's counters measure communication that computing does not hide. "
        "Ranks are uneven if now one is late, now another. Computing is the rest. Below: the seconds before "
        "the first result of a run, medians of each part.",
        unknown="how long its steps took",
    ),
    "prediction": FigureText(
        title="Prediction beside measurement",
        caption="Prediction beside measurement: time of a step and parallel efficiency against devices. "
        "Dashed with its band: predicted from one device's step and all-reduces measured by themselves; of "
        "device counts that the study does not measure, also from its own steps on several nodes. Dotted: "
        "compute alone. Marks: measured, steps as medians, efficiency with its interval. In the pale area "
        "nothing was measured.",
        unknown="are a predicted and a measured step",
        compares=True,
    ),
    "efficiencies": FigureText(
        title="Efficiency of hardware and of learning",
        caption="Hardware: throughput per device divided by the baseline's. Statistical: the baseline's "
        "epochs to the target divided by those here (of a program samples); it falls if larger batches "
        "learn less from a sample. Both: how many times faster the target is reached, divided by how many "
        "times more devices. Bars are 95 % intervals over repeats.",
        unknown="are both efficiencies",
        compares=True,
    ),
    "throughput": FigureText(
        title="Throughput",
        caption="Training throughput against devices. Filled marks are means over repeats, bars their 95 % "
        "intervals, rings single runs. Warm-up, evaluation and start-up are left out.",
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
        caption="Peak memory while training, of the device that used most: mean over repeats, bars their 95 "
        "% intervals.",
        unknown="its peak memory",
    ),
}
