"""What a value of an option gains, on how many CPUs, and when it competes: options.csv and the answer."""

import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.planted_study import Law, PlantedStudy, experiments
from tests.unit.analysis.planted import analysis_of, make_runs, spread

from scalewise.analysis.answer import Answer
from scalewise.plan.run_definition import RunDefinition
from scalewise.plan.runs import Options


def test_of_sixteen_options_only_the_one_that_doubles_the_speed_is_called_faster() -> None:
    """By p values that are not adjusted for their number, others are called faster or slower, too."""
    logs = np.random.default_rng(1).normal(0, 0.03, (17, 3))
    logs[7] += math.log(2)
    values = list(range(1, 18))
    points = {(str(value), 4): list(100 * np.exp(each)) for value, each in zip(values, logs, strict=True)}
    options: dict[str, Options] = {str(value): (("bucket_cap_mb", value),) for value in values}
    runs = make_runs(points, started_at=None)
    table = analysis_of(runs, options, sweep={"bucket_cap_mb": values}).options
    alone = [stats.ttest_ind(each, logs[0], equal_var=False).pvalue for each in np.delete(logs, [0, 7], 0)]
    assert min(alone) < 0.05
    assert table.loc[table["p_adjusted"] < 0.05, "value"].tolist() == [8]


# ---- options that train something else ------------------------------------------------------------------

OPTIONS: dict[str, Options] = {
    f"{precision}, view {view}": (("precision", precision), ("gradient_as_bucket_view", view))
    for precision, view in product(("fp32", "bf16"), (False, True))
}
RATES = ({1: 100, 8: 480}, {1: 102, 8: 750}, {1: 150, 8: 720}, {1: 153, 8: 1050})
"""Samples/s by devices, of each of these: the view is faster in both precisions, which are two trainings."""

KEPT = {"fp32": [0.9960, 0.9965, 0.9970], "bf16": [0.9961, 0.9964, 0.9968]}
LOST = KEPT | {"bf16": [0.97, 0.971, 0.972]}
UNKNOWN = KEPT | {"bf16": [0.99, math.nan, math.nan]}


@pytest.mark.parametrize(
    ("accuracies", "lost"),
    [(KEPT, None), (LOST, "final accuracy 2.6 points lower"), (UNKNOWN, None)],
    ids=["kept", "lost", "unknown"],
)
def test_another_training_does_not_compete_and_its_loss_of_accuracy_is_named(
    accuracies: Mapping[str, list[float]], lost: str | None
) -> None:
    points = {
        (name, devices): spread(float(rate))
        for name, rates in zip(OPTIONS, RATES, strict=True)
        for devices, rate in rates.items()
    }
    runs = make_runs(points)
    runs["final_accuracy"] = [
        accuracies[name.split(",")[0]][repeat - 1]
        for name, repeat in zip(runs["series"], runs["repeat"], strict=True)
    ]
    decision = {"min_efficiency": 0.7}
    sweep = {"precision": ["fp32", "bf16"], "gradient_as_bucket_view": [False, True]}
    answer = analysis_of(runs, OPTIONS, decision=decision, sweep=sweep).answer
    assert (answer.series, answer.devices) == ("fp32, view True", 8)
    (line,) = answer.others
    # 1050 / 750
    assert line.startswith("8 GPUs with bf16, view True: 1.40x")
    assert lost is None or lost in line


# ---- CPUs per device ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gain_of_8", "cpus", "certainty"),
    [(1.0, 4, "clear"), (1.05, 4, "likely"), (1.3, 8, "clear")],
    ids=["no gain", "a tie", "a gain"],
)
def test_the_fewest_cpus_that_are_not_shown_to_be_slower_win(
    tmp_path: Path, gain_of_8: float, cpus: int, certainty: str
) -> None:
    """4 CPUs feed the training, 2 do not."""

    def speed(run: RunDefinition) -> float:
        given = run.settings.cpus_per_device
        return Law(rate=500.0 * min(given, 4) * (gain_of_8 if given == 8 else 1)).speed(run)

    sweep = {"cpus_per_device": [4, 8, 2]}
    keys = {"devices": [1, 2], "loader": "workers", "sweep": sweep, "decision": {"min_efficiency": 0.1}}
    study = PlantedStudy(tmp_path, experiments(mnist=keys), speed)
    study.tabulate()
    answer = Answer.from_json((study.folder / "answer.json").read_text(encoding="utf-8"))
    assert (answer.devices, answer.certainty) == (2, certainty)
    assert [line for line in answer.options if line.startswith(f"cpus_per_device: {cpus} (")]
