"""How many CPUs per device: studies whose truth is known, and those that cannot tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.planted_study import Law, PlantedStudy
from tests.unit.analysis.planted_tables import make_runs

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.conclusion import conclude
from scalewise.analysis.decision.cpus import CpuAnswer, answer_cpus
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.scaling import known_columns, scaling_table
from scalewise.analysis.tables import collect
from scalewise.plan.runs.run_definition import RunDefinition

QUIET, NOISY = (0.995, 1.0, 1.005), (0.8, 1.0, 1.25)
"""Factors by which three runs of a point differ."""

STUDY = """\
experiments:
  mnist:
    title: Numbers of GPUs and of CPUs
    dataset: digits
    model: digits_cnn
    scaling: weak
    batch_size_per_device: 64
    epochs: 10
    warmup_steps: 12
    loader: workers
    devices: [1, 2]
    repeats: {repeats}
    predict: false
    runtime_minutes: 5
    sweep: {{cpus_per_device: [1, 2, 4, 8]{more}}}
    decision: {{min_efficiency: 0.6}}
"""


def planted(folder: Path, *, repeats: int = 3, scatter: float = 0.005, more: str = "") -> CpuAnswer:
    """Return the answer on CPUs from records of a training that 4 CPUs feed, and 1 or 2 do not."""
    answer = decided(folder, repeats=repeats, scatter=scatter, more=more).cpus
    assert answer is not None
    return answer


def decided(folder: Path, *, repeats: int = 3, scatter: float = 0.005, more: str = "") -> Decision:
    """Return the decision on records of a training that 4 CPUs feed, and 1 or 2 do not."""

    def speed(run: RunDefinition) -> float:
        return Law(rate=500.0 * min(run.settings.cpus_per_device, 4), scatter=scatter).speed(run)

    report = PlantedStudy(folder, STUDY.format(repeats=repeats, more=more), speed)
    report.make_runs()
    experiment = AnalysisSpec.from_json(report.study.experiments["mnist"].analysis_definition)
    tables = collect("mnist", experiment.spec, report.results / "mnist" / "runs")
    return conclude(experiment, tables).decision


@pytest.mark.parametrize("more", ["", ", gradient_as_bucket_view: [false, true]"])
def test_the_fewest_cpus_that_feed_the_devices_are_found_from_the_records(tmp_path: Path, more: str) -> None:
    answer = planted(tmp_path, more=more)
    assert (answer.per_device, answer.at_least, answer.devices) == (4, 4, 2)
    assert answer.learning.startswith("CPUs per device change only the time: ")


def test_records_of_single_runs_or_of_noise_leave_it_unknown(tmp_path: Path) -> None:
    alone = planted(tmp_path / "alone", repeats=1)
    assert alone.per_device is None
    assert "Use 3 or more repeats." in alone.sentences
    assert alone.learning.startswith("Whether CPUs per device change the accuracy is not known")
    decision = decided(tmp_path / "noisy", scatter=0.2)
    assert decision.card.certainty != "Clear", "one of its two questions is open"
    noisy = decision.cpus
    assert noisy is not None
    assert noisy.per_device is None
    assert not any("or more repeats" in sentence for sentence in noisy.sentences)


def answered(
    rates: Mapping[int, float],
    spread: Sequence[float] = QUIET,
    *,
    devices: Sequence[int] = (1, 2),
    answer: tuple[str, int] | None = None,
    waits: Mapping[int, float] | None = None,
    accuracies: Mapping[int, Sequence[float]] | None = None,
) -> CpuAnswer:
    """The answer on three runs of each point, at a gain of 5 %.

    Args:
        make_runs: Fixture.
        rates: Samples per second of a device, by CPUs.
        spread: Factors by which the runs of a point differ.
        devices: Device counts.
        answer: The recommended point.
        waits: Share of a step that waits for data, by CPUs.
        accuracies: Final accuracies of the runs, by CPUs.
    """
    runs = make_runs(
        {
            (f"c{cpus}", d): [rate * d * each for each in spread]
            for cpus, rate in rates.items()
            for d in devices
        }
    )
    cpus = runs["series"].str.removeprefix("c").astype(int)
    runs["step_seconds"] = 1 / runs["throughput_samples_per_second"]
    runs["loader_seconds"] = runs["step_seconds"] * cpus.map(waits or {}).astype(float)
    if accuracies is not None:
        runs["final_accuracy"] = [accuracies[c][r - 1] for c, r in zip(cpus, runs["repeat"], strict=True)]
    known = known_columns(runs)
    options: dict[str, Any] = {f"c{each}": (("cpus_per_device", each),) for each in rates}
    return answer_cpus(scaling_table(known, "weak"), gains(known), options, 0.05, answer=answer)


@pytest.mark.parametrize(
    ("rates", "spread", "at_least", "advice"),
    [
        pytest.param({1: 100, 4: 300}, NOISY, 4, None, id="a difference larger than the noise"),
        pytest.param({1: 100, 4: 110}, NOISY, 1, "Too close to tell apart at this scatter: ", id="noise"),
        pytest.param(
            {1: 100, 4: 106}, (0.98, 1, 1.02), 1, "Too close to tell apart at this scatter: ", id="a tie"
        ),
        pytest.param({1: 100, 4: 112}, (0.96, 1, 1.04), 1, "About ", id="near"),
        pytest.param({1: 100, 4: 300}, (1.0,), 1, "Use 3 or more repeats.", id="single runs"),
        pytest.param(
            {1: 100, 4: 300, 8: 330}, NOISY, 4, "Too close to tell apart at this scatter: ", id="noise above"
        ),
    ],
)
def test_an_answer_is_given_only_where_the_runs_carry_it(
    rates: dict[int, float], spread: Sequence[float], at_least: int, advice: str | None
) -> None:
    answer = answered(rates, spread)
    assert answer.at_least == at_least
    assert answer.per_device == (at_least if advice is None else None)
    assert any(each.startswith(advice) for each in answer.sentences) if advice else True


@pytest.mark.parametrize(
    ("rates", "answer", "devices", "per_device", "told", "not_told"),
    [
        ({1: 100, 4: 300, 8: 306}, None, 2, 4, ["8 CPUs have 1.02x", "1 CPU has 0.33x"], "No more"),
        ({1: 100, 4: 300}, None, 2, 4, ["No more were measured"], "another rule"),
        ({1: 100, 4: 100}, None, 2, 1, [], ""),
        ({1: 100}, None, None, None, [], ""),
        ({1: 100, 4: 300}, ("c4", 1), 1, 4, [], "another rule"),
        ({1: 100, 4: 300}, ("c1", 2), 2, 4, ["The answer on devices names c1 by another rule"], ""),
        ({1: 100, 4: 300}, ("runs under other conditions", 2), 2, 4, [], "another rule"),
    ],
    ids=["a gain not worth having", "the most measured", "no difference", "nothing to compare",
         "on the devices of the answer", "an answer with others", "an answer under other conditions"],
)  # fmt: skip
def test_the_fewest_cpus_that_feed_the_devices_are_the_answer(
    rates: dict[int, float], answer: tuple[str, int] | None, devices: int | None,
    per_device: int | None, told: list[str], not_told: str,
) -> None:  # fmt: skip
    found = answered(rates, answer=answer)
    assert (found.devices, found.per_device) == (devices, per_device)
    words = " ".join(found.sentences)
    assert all(each in words for each in told)
    assert not not_told or not_told not in words
    json.dumps(vars(found))


def test_the_share_of_a_step_that_waits_for_data_is_told_with_each_number() -> None:
    answer = answered({1: 100, 4: 300}, waits={1: 0.826, 4: 0.03})
    assert answer.loader_fractions == pytest.approx({"1": 0.826, "4": 0.03})
    assert any("83 % with 1 CPU and 3 % with 4 CPUs" in each for each in answer.sentences)
    unknown = answered({1: 100, 4: 300})
    assert unknown.loader_fractions == {"1": None, "4": None}
    assert "How much of a step waits for data is not known." in unknown.sentences


def test_cpus_that_may_change_the_accuracy_are_not_said_to_change_only_the_time() -> None:
    alike = {1: [0.990, 0.991, 0.992], 4: [0.991, 0.990, 0.992]}
    rates = {1: 100.0, 4: 300.0}
    assert "only the time" in answered(rates, accuracies=alike).learning
    apart = alike | {4: [0.985, 0.984, 0.986]}
    assert "may differ by up to 0.8 percentage points" in answered(rates, accuracies=apart).learning
    scattered = {1: [0.98, 0.99, 0.97], 4: [0.99, 0.97, 0.98]}
    assert "is not clear" in answered(rates, accuracies=scattered).learning
