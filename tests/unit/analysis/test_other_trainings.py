"""Series that train something else: groups that compete within themselves, and options that are accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import program_experiment, write_program_run
from tests.unit.analysis.decisions import decision_on, figure
from tests.unit.analysis.planted_tables import make_runs

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.experiment_tables import compute
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.runs.runs import points

SWEPT: dict[str, list[Any]] = {
    "precision": ["fp32", "bf16"],
    "gradient_as_bucket_view": [False, True],
}
RATES = {
    ("fp32", False): {1: 100, 2: 190, 4: 340, 8: 480},
    ("fp32", True): {1: 102, 2: 200, 4: 390, 8: 750},
    ("bf16", False): {1: 150, 2: 285, 4: 510, 8: 720},
    ("bf16", True): {1: 153, 2: 300, 4: 585, 8: 1050},
}
"""Samples/s by options and devices: the view is faster in both precisions, which are two trainings."""

Accuracies = Mapping[str, list[float | None]]
KEPT: dict[str, list[float | None]] = {"fp32": [0.9960, 0.9965, 0.9970], "bf16": [0.9961, 0.9964, 0.9968]}
LOST: Accuracies = KEPT | {"bf16": [0.97, 0.971, 0.972]}
UNKNOWN: Accuracies = KEPT | {"bf16": [0.99, None, None]}


def decided(accuracies: Accuracies, accept: list[str] | None = None) -> Decision:
    """The decision at an efficiency of 0.7 on three runs a point, which scatter by 1 %."""
    planted, precisions, views, accuracy = {}, [], [], []
    for (precision, view), rates in RATES.items():
        for devices, rate in rates.items():
            planted[f"{precision}, view {view}", devices] = [rate * each for each in (0.99, 1, 1.01)]
            precisions += [precision] * 3
            views += [view] * 3
            accuracy += accuracies[precision]
    runs = make_runs(planted).assign(
        precision=precisions, gradient_as_bucket_view=views, final_accuracy=pd.Series(accuracy, dtype=float)
    )
    return decision_on(runs, DecisionRule(min_efficiency=0.7, accept=accept or []), swept=SWEPT)


def test_options_that_train_the_same_compete_beside_one_that_does_not() -> None:
    decision = decided(KEPT)
    assert (decision.series, decision.devices) == ("fp32, view True", 8)
    assert (
        "precision: fp32 (bf16 is faster here, but changes the training: "
        "`decision: {accept: [precision]}` lets it compete)"
    ) in decision.card.options


def test_the_best_of_another_training_is_one_line() -> None:
    (line,) = decided(KEPT).other_trainings
    # 1050 / 750, and efficiency 1050 / 8 / 153
    assert line.startswith("With bf16, view True: 8 devices, 1.40x as fast as this answer (1.37 to 1.43, ")
    assert "final accuracy 99.6 %: no difference is shown (" in line


def test_accuracy_that_another_training_loses_is_told() -> None:
    (line,) = decided(LOST).other_trainings
    assert "final accuracy 97.1 %: 2.55 percentage points lower (" in line


def test_an_accepted_option_is_chosen_where_its_accuracy_is_kept() -> None:
    decision = decided(KEPT, ["precision"])
    assert (decision.series, decision.devices) == ("bf16, view True", 8)
    assert decision.other_trainings == []


@pytest.mark.parametrize("accuracies", [LOST, UNKNOWN])
def test_an_accepted_option_is_not_chosen_where_its_accuracy_is_not_shown_to_be_kept(
    accuracies: Accuracies,
) -> None:
    decision = decided(accuracies, ["precision"])
    assert decision.series == "fp32, view True"
    (line,) = decision.other_trainings
    assert line.endswith("It is not accepted: a loss of at most 0.5 points is not shown.")


def test_efficiency_names_the_best_baseline_that_it_is_relative_to() -> None:
    planted = {
        ("off", 1): [99, 100, 101], ("off", 4): [297, 300, 303],
        ("on", 1): [79.2, 80, 80.8], ("on", 4): [336.6, 340, 343.4],
    }  # fmt: skip
    runs = make_runs(planted).assign(static_graph=["off"] * 6 + ["on"] * 6)
    decision = decision_on(runs, DecisionRule(min_efficiency=0.8), swept={"static_graph": ["off", "on"]})
    efficiency = figure(decision, "Efficiency")
    assert efficiency.value == pytest.approx(0.85)
    assert efficiency.note == "relative to off, the best baseline"
    assert decision.numbers["efficiency_to_best"] == pytest.approx(0.85)


def test_planted_records_give_the_planted_options(tmp_path: Path) -> None:
    """On 16 devices two CPUs a device have an efficiency of 0.69 by their own baseline, 0.57 by the best."""
    rates = {
        1: {1: 1157, 2: 2150, 4: 3900, 8: 6300, 16: 8200},
        2: {1: 953, 2: 1880, 4: 3650, 8: 6900, 16: 10500},
    }
    spec = program_experiment(
        devices=[1, 2, 4, 8, 16],
        sweep={"cpus_per_device": [1, 2], "argument.precision": ["fp32", "bf16"]},
        arguments=["--batch-size", "{batch_size_per_device}", "--precision", "{argument.precision}"],
        decision={"min_efficiency": 0.6},
    )
    for point in points(spec):
        options = dict(point.options)
        devices = int(point.devices)
        rate = rates[options["cpus_per_device"]][devices] * (
            2.2 if options["argument.precision"] == "bf16" else 1
        )
        for repeat, scatter in enumerate((0.995, 1.0, 1.005), start=1):
            step = 16 * devices / (rate * scatter)
            write_program_run(tmp_path / "runs", point.run_name(repeat), spec, step, options=options)

    compute(AnalysisSpec("study", spec), tmp_path / "runs", tmp_path)

    decision = json.loads((tmp_path / "decision.json").read_text(encoding="utf-8"))
    assert decision["devices"] == 8
    (line,) = decision["other_trainings"]
    assert "8 devices, 2.20x as fast as this answer" in line
    assert "final accuracy not compared" in line
    table = pd.read_csv(tmp_path / "scaling.csv")
    chosen = table[(table["series"] == decision["series"]) & table["devices"].isin([8, 16])]
    assert chosen["efficiency_to_best"].tolist() == pytest.approx(
        [6900 / 8 / 1157, 10500 / 16 / 1157], rel=1e-3
    )
    assert chosen["parallel_efficiency"].tolist() == pytest.approx(
        [6900 / 8 / 953, 10500 / 16 / 953], rel=1e-3
    )
