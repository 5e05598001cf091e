"""The figures of a report, in order, with what each shows. Imports nothing: the rules read it too."""

from __future__ import annotations

_CURVES = (
    "A mark is an epoch: against epochs, and for up to four series against the time of training, without "
    "evaluation and start-up. Lines are medians over the repeats that have the epoch, bands and bars reach "
    "from the lowest to the highest; faded where some repeats have stopped."
)
CAPTIONS = {
    "speedup": "Speedup: throughput over that of the series' fewest devices. Bars are 95 % intervals "
    "over repeats. The dotted line is ideal scaling. A curve is a law fitted to all "
    "runs of its series, with its 95 % band; a law that the data cannot carry is "
    "not drawn. The dashed line, where there is one, is predicted from one device's step and a measured "
    "all-reduce: an upper bound, not fitted to marks on more devices; a mark above it is noise or needs an "
    "explanation.",
    "efficiency": "Parallel efficiency: speedup over the number of times more devices. Bars are 95 % "
    "intervals over repeats. The dashed line, where there is one, is what you require.",
    "step": "Where the time of a step goes. A bar is the device time that one sample takes, devices over "
    "throughput: with ideal scaling all bars are equally high, so what stands on top is what scaling "
    "costs. Its parts have their shares of the step, means over repeats: the wait for data and the delay of "
    "one slow rank by clocks in the training, communication (what computing does not hide) by DDP's own "
    "counters, uneven ranks where now one is late and now another, and computing what is left. "
    "Below: the seconds before a run's first result, medians of each part.",
    "prediction": "Prediction beside measurement: time of a step and parallel efficiency against devices. "
    "Dashed with its band: predicted from one device's step and all-reduces measured by themselves; of "
    "device counts that the study does not measure, also from its own steps on several nodes. Dotted: "
    "compute alone. Marks: measured, steps as medians, efficiency with its interval. In the pale "
    "area nothing was measured.",
    "efficiencies": "Two efficiencies, one answer. Hardware: throughput per device over the baseline's. "
    "Statistical: the baseline's epochs (of a program samples) to the target over those here, which falls "
    "where larger batches learn less from a sample. Both: training time to the target, measured, over the "
    "number of times more devices. Bars are 95 % intervals over repeats.",
    "throughput": "Training throughput against devices. Filled marks are means over repeats, bars their "
    "95 % intervals, rings single runs. Warm-up, evaluation and start-up are left out.",
    "accuracy": f"Test accuracy by number of devices. {_CURVES} Every test sample is counted exactly once.",
    "loss": f"Test and training loss by number of devices. {_CURVES} Of a program, the loss that backward "
    "gets against steps: a trend.",
    "memory": "Peak memory while training, of the device that used most: mean over repeats, bars their "
    "95 % intervals.",
}

TITLES = {
    "speedup": "Speedup",
    "efficiency": "Parallel efficiency",
    "step": "Where the time of a step goes",
    "prediction": "Prediction beside measurement",
    "efficiencies": "Efficiency of hardware and of learning",
    "throughput": "Throughput",
    "accuracy": "Test accuracy",
    "loss": "Loss",
    "memory": "Peak memory",
}
"""The name of each figure, for a reader who hears it."""

_NOT_MEASURED = (
    "Hollow marks, where there are any, are device counts that were not measured, as the measured ones make "
    "them expect; their bars hold 95 % of the possibilities. Marks that would touch are left out; the table "
    "has all. A measured mark without a bar is a single run."
)
WHERE_COUNTS_ARE_CHOSEN = {
    "speedup": _NOT_MEASURED,
    "efficiency": _NOT_MEASURED,
    "throughput": f"{_NOT_MEASURED} The runs of points that have several are crosses in place of rings.",
}
"""Further sentences on figures of a study that has not measured every count."""
