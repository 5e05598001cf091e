"""The figures of a report, in order: their words, what they need, and what draws them.

Imports no library: the rules read it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from scalewise.analysis.experiment_results import ExperimentResults
    from scalewise.analysis.report.marks import Drawing

_CURVES = (
    "A mark is an epoch: against epochs, and for up to four series against the time of training, without "
    "evaluation and start-up. Lines are medians over the repeats that have the epoch; bands and bars reach "
    "from the lowest to the highest. Lines are faded if some repeats have stopped."
)


@dataclass(frozen=True)
class Figure:
    """A figure of an experiment's results.

    Args:
        title: Name for readers.
        caption: Meaning of every mark, also in Snakemake's report.
        unknown: Words on what no run has, or what is not known of two device counts.
        missing: Returns why there is nothing to draw; empty if there is something.
        drawing: Draws it.
        sentence: Returns what the experiment's own numbers show there; empty if they are not known.
        compares: True if it shows device counts next to each other, and not each run.
        is_left_out: Returns whether the page does without it, because another figure shows as much.
    """

    title: str
    caption: str
    unknown: str
    missing: Callable[[ExperimentResults], str]
    drawing: Callable[[ExperimentResults], Drawing]
    sentence: Callable[[ExperimentResults], str]
    compares: bool = False
    is_left_out: Callable[[ExperimentResults], bool] = lambda _: False


@dataclass(frozen=True)
class PartitionFigure:
    """A figure of the comparison of partitions.

    Args:
        title: Name for readers.
        caption: Meaning of every mark.
        drawing: Draws it from partitions.csv, a unit of costs and a clock.
    """

    title: str
    caption: str
    drawing: Callable[[pd.DataFrame, str, str], Drawing]


def _lazy(function: str) -> Callable[..., Any]:
    """Return a function of this folder that is imported when it is called: the rules draw nothing.

    Args:
        function: Module and name.
    """

    def call(*arguments: Any) -> Any:
        module, name = function.split(".")
        return getattr(import_module(f"{__package__}.{module}"), name)(*arguments)

    return call


def _no_run(results: ExperimentResults) -> str:
    return "" if len(results.measured) else "no completed run to show"


def _no_baseline(results: ExperimentResults) -> str:
    nothing = "" if len(results.relative) else "no series with a completed baseline to show"
    return _no_run(results) or nothing


def _no_prediction(results: ExperimentResults) -> str:
    return "nothing was predicted" if results.prediction is None or results.prediction.empty else ""


def _no_split(results: ExperimentResults) -> str:
    return "" if (results.decision.get("splits") or {}).get("best") else "no trainings were planned"


def _no_epoch(results: ExperimentResults) -> str:
    if "epoch" in results.epochs and len(results.epochs):
        return ""
    if results.completed.empty:
        return "no completed run to show"
    return "a program tells none" if results.of_programs else "no run was long enough to evaluate"


def _no_loss(results: ExperimentResults) -> str:
    if len(results.epochs):
        return ""
    return "no loss was seen" if results.of_programs and len(results.completed) else _no_epoch(results)


def _same_as_efficiency(results: ExperimentResults) -> bool:
    scaling = results.scaling
    beyond = scaling["devices"] > scaling["baseline_devices"]
    return not (scaling["statistical_efficiency"].notna() & beyond).any()


FIGURES: dict[str, Figure] = {
    "speedup": Figure(
        title="Speedup",
        caption="Speedup: throughput divided by that of the series' fewest devices. Bars are 95 % intervals "
        "over repeats. A dotted line is ideal scaling. A curve is a law fitted to all runs of its series, "
        "with its 95 % band; a law that the data do not support is not drawn. A dashed line is predicted "
        "from one device's step and a measured all-reduce. It is an upper bound, not fitted to runs on more "
        "devices: a mark above it is noise or needs an explanation.",
        unknown="is a speedup",
        compares=True,
        missing=_no_baseline,
        drawing=lambda results: _lazy("scaling_figures.speedup")(
            results.relative, results.laws, results.prediction
        ),
        sentence=_lazy("figure_sentences.speedup"),
    ),
    "efficiency": Figure(
        title="Parallel efficiency",
        caption="Parallel efficiency: speedup divided by the ratio of device counts; 100 % is ideal. Bars "
        "are 95 % intervals over repeats. A dashed line is the efficiency that you require.",
        unknown="is an efficiency",
        compares=True,
        missing=_no_baseline,
        drawing=lambda results: _lazy("efficiency_figures.efficiency")(
            results.relative, None if results.to_target else results.min_efficiency
        ),
        sentence=_lazy("figure_sentences.efficiency"),
    ),
    "splits": Figure(
        title="Several trainings at a time",
        caption="Time until all trainings are done against the devices of each, with the number that runs "
        "at a time. Lower is sooner. Bars are 95 % intervals. Waits in the queue are not included.",
        unknown="is the time until several trainings are done",
        compares=True,
        missing=_no_split,
        drawing=lambda results: _lazy("split_figure.splits")(results.decision["splits"], results.series),
        sentence=lambda results: (results.decision.get("splits") or {"sentences": [""]})["sentences"][0],
        is_left_out=lambda results: bool(_no_split(results)),
    ),
    "step": Figure(
        title="Where the time of a step goes",
        caption="Where the time of a step goes. A bar is the device time of one sample: devices divided by "
        "throughput. With ideal scaling all bars are equally high; the extra height is the cost of scaling. "
        "Parts have their shares of the step, means over repeats. Clocks in the training measure the wait "
        "for data and one slow rank; DDP's counters measure communication that computing does not hide. "
        "Ranks are uneven if now one is late, now another. Computing is the rest. Below: the seconds before "
        "the first result of a run, medians of each part.",
        unknown="how long its steps took",
        missing=_no_run,
        drawing=lambda results: _lazy("step_figures.step")(results.measured, results.runs),
        sentence=_lazy("figure_sentences.step"),
    ),
    "prediction": Figure(
        title="Prediction beside measurement",
        caption="Prediction beside measurement: time of a step and parallel efficiency against devices. "
        "Dashed with its band: predicted from one device's step and all-reduces measured by themselves; of "
        "device counts that the study does not measure, also from its own steps on several nodes. Dotted: "
        "compute alone. Marks: measured, steps as medians, efficiency with its interval. In the pale area "
        "nothing was measured.",
        unknown="are a predicted and a measured step",
        compares=True,
        missing=_no_prediction,
        drawing=lambda results: _lazy("scaling_figures.prediction")(results.measured, results.prediction),
        sentence=_lazy("figure_sentences.prediction"),
        is_left_out=lambda results: bool(_no_prediction(results)),
    ),
    "efficiencies": Figure(
        title="Efficiency of hardware and of learning",
        caption="Hardware: throughput per device divided by the baseline's. Statistical: the baseline's "
        "epochs to the target divided by those here (of a program samples); it falls if larger batches "
        "learn less from a sample. Both: how many times faster the target is reached, divided by how many "
        "times more devices. Bars are 95 % intervals over repeats.",
        unknown="are both efficiencies",
        compares=True,
        missing=_no_baseline,
        drawing=lambda results: _lazy("efficiency_figures.efficiencies")(
            results.relative, results.target, results.min_efficiency if results.to_target else None
        ),
        sentence=_lazy("figure_sentences.efficiencies"),
        is_left_out=_same_as_efficiency,
    ),
    "throughput": Figure(
        title="Throughput",
        caption="Training throughput against devices. Filled marks are means over repeats, bars their 95 % "
        "intervals, rings single runs. Warm-up, evaluation and start-up are left out.",
        unknown="its throughput",
        missing=_no_run,
        drawing=lambda results: _lazy("drawing.throughput")(results.measured, results.runs),
        sentence=_lazy("figure_sentences.throughput"),
    ),
    "accuracy": Figure(
        title="Test accuracy",
        caption=f"Test accuracy by number of devices. {_CURVES} Every test sample is counted exactly once.",
        unknown="its accuracy",
        missing=_no_epoch,
        drawing=lambda results: _lazy("epoch_figures.accuracy")(results.epochs, results.target, results.noun),
        sentence=_lazy("figure_sentences.accuracy"),
    ),
    "loss": Figure(
        title="Loss",
        caption=f"Test and training loss by number of devices. {_CURVES} Of a program, the loss that "
        "backward gets against steps: a trend.",
        unknown="its loss",
        missing=_no_loss,
        drawing=lambda results: _lazy("epoch_figures.loss")(results.epochs, results.noun),
        sentence=_lazy("figure_sentences.loss"),
    ),
    "memory": Figure(
        title="Peak memory",
        caption="Peak memory while training, of the device that used most: mean over repeats, bars their 95 "
        "% intervals.",
        unknown="its peak memory",
        missing=_no_run,
        drawing=lambda results: _lazy("drawing.memory")(results.measured, results.runs),
        sentence=_lazy("figure_sentences.memory"),
    ),
}

PARTITION_FIGURES: dict[str, PartitionFigure] = {
    "time_cost": PartitionFigure(
        title="Time against cost",
        caption="Each mark is a number of devices on a partition, with the number next to it; bars are 95 % "
        "intervals. Farther left is cheaper, farther down is faster. Grey: another point is shown to be "
        "better by one of the two and no worse by the other. Colored marks are the points worth choosing "
        "from, as far as the runs can tell.",
        drawing=_lazy("partition_figures.time_cost"),
    ),
    "time_devices": PartitionFigure(
        title="Time against devices",
        caption="Time for the same work against devices, a line for each partition. Bars are 95 % "
        "intervals. Lower is faster.",
        drawing=_lazy("partition_figures.time_devices"),
    ),
}
