"""How many CPUs per device: studies whose truth is known, and those that cannot tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.planted_study import Law, PlantedStudy, experiments
from tests.unit.analysis.planted_tables import make_runs, read_json

from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.decision.cpus import CpuAnswer, answer_cpus
from scalewise.analysis.scaling import known_columns, scaling_table
from scalewise.plan.runs.run_definition import RunDefinition

QUIET, NOISY = (0.995, 1.0, 1.005), (0.8, 1.0, 1.25)
"""Factors by which three runs of a point differ."""


@pytest.mark.parametrize(
    ("gain_of_8", "per_device", "certainty"),
    [(1.0, 4, "Clear"), (1.05, None, "Likely")],
    ids=["no gain", "a tie"],
)
def test_the_fewest_cpus_that_feed_the_devices_are_found_from_the_records(
    tmp_path: Path, gain_of_8: float, per_device: int | None, certainty: str
) -> None:
    """4 CPUs feed the training, 2 do not."""

    def speed(run: RunDefinition) -> float:
        cpus = run.settings.cpus_per_device
        return Law(rate=500.0 * min(cpus, 4) * (gain_of_8 if cpus == 8 else 1)).speed(run)

    sweep = {"cpus_per_device": [4, 8, 2], "gradient_as_bucket_view": [False, True]}
    keys = {"devices": [1, 2], "loader": "workers", "sweep": sweep, "decision": {"min_efficiency": 0.1}}
    study = PlantedStudy(tmp_path, experiments(mnist=keys), speed)
    study.tabulate()
    decision = read_json(study.folder / "decision.json")
    cpus = decision["cpus"]
    assert (cpus["per_device"], cpus["at_least"], cpus["devices"]) == (per_device, 4, 2)
    assert cpus["learning"].startswith("CPUs per GPU change only the time: ")
    assert decision["card"]["certainty"] == certainty, "one of its two questions may be open"
    assert decision["clear"], "the device count is"


def answered(
    rates: Mapping[int, float],
    spread: Sequence[float] = QUIET,
    *,
    answer: tuple[str, int] | None = None,
    waits: Mapping[int, float] | None = None,
    accuracies: Mapping[int, Sequence[float]] | None = None,
) -> CpuAnswer:
    """Return the answer on runs on 1 and 2 devices, at a gain of 5 %.

    Args:
        rates: Samples per second of a device, by CPUs.
        spread: Factors by which the runs of a point differ.
        answer: The recommended point.
        waits: Share of a step that waits for data, by CPUs.
        accuracies: Final accuracies of the runs, by CPUs.
    """
    runs = make_runs(
        {
            (f"c{cpus}", d): [rate * d * each for each in spread]
            for cpus, rate in rates.items()
            for d in (1, 2)
        }
    )
    cpus = runs["series"].str.removeprefix("c").astype(int)
    runs["step_seconds"] = 1 / runs["throughput_samples_per_second"]
    runs["loader_seconds"] = runs["step_seconds"] * cpus.map(waits or {}).astype(float)
    if accuracies is not None:
        runs["final_accuracy"] = [accuracies[c][r - 1] for c, r in zip(cpus, runs["repeat"], strict=True)]
    known = known_columns(runs)
    options: dict[str, Any] = {f"c{each}": (("cpus_per_device", each),) for each in rates}
    found = answer_cpus(scaling_table(known, "weak"), gains(known), options, 0.05, answer=answer)
    json.dumps(vars(found))
    return found


CLOSE = "Too close to tell apart at this scatter: "


@pytest.mark.parametrize(
    ("rates", "spread", "at_least", "advice"),
    [
        pytest.param({1: 100, 4: 300}, NOISY, 4, None, id="a difference larger than the noise"),
        pytest.param({1: 100, 4: 110}, NOISY, 1, CLOSE, id="noise"),
        pytest.param({1: 100, 4: 106}, (0.98, 1, 1.02), 1, CLOSE, id="a tie"),
        pytest.param({1: 100, 4: 112}, (0.96, 1, 1.04), 1, "About ", id="near"),
        pytest.param({1: 100, 4: 300}, (1.0,), 1, "Use 3 or more repeats.", id="single runs"),
        pytest.param({1: 100, 4: 300, 8: 330}, NOISY, 4, CLOSE, id="noise above"),
    ],
)
def test_an_answer_is_given_only_if_the_runs_show_it(
    rates: dict[int, float], spread: Sequence[float], at_least: int, advice: str | None
) -> None:
    answer = answered(rates, spread)
    assert answer.at_least == at_least
    assert answer.per_device == (at_least if advice is None else None)
    assert any(each.startswith(advice) for each in answer.sentences) if advice else True


@pytest.mark.parametrize(
    ("rates", "answer", "devices", "per_device", "named", "not_named"),
    [
        ({1: 100, 4: 300, 8: 306}, None, 2, 4, ["8 CPUs have 1.02x", "1 CPU has 0.33x"], "No more"),
        ({1: 100, 4: 300}, None, 2, 4, ["No more were measured"], "another rule"),
        ({1: 100, 4: 100}, None, 2, 1, [], ""),
        ({1: 100}, None, None, None, [], ""),
        ({1: 100, 4: 300}, ("c4", 1), 1, 4, [], "another rule"),
        ({1: 100, 4: 300}, ("c1", 2), 2, 4, ["The answer on devices names c1 by another rule"], ""),
    ],
    ids=["a gain not worth having", "the most measured", "no difference", "nothing to compare",
         "on the devices of the answer", "an answer with others"],
)  # fmt: skip
def test_the_fewest_cpus_that_feed_the_devices_are_the_answer(
    rates: dict[int, float], answer: tuple[str, int] | None, devices: int | None,
    per_device: int | None, named: list[str], not_named: str,
) -> None:  # fmt: skip
    found = answered(rates, answer=answer)
    assert (found.devices, found.per_device) == (devices, per_device)
    words = " ".join(found.sentences)
    assert all(each in words for each in named)
    assert not not_named or not_named not in words


def test_the_share_of_a_step_that_waits_for_data_stands_with_each_number() -> None:
    answer = answered({1: 100, 4: 300}, waits={1: 0.826, 4: 0.03})
    assert answer.loader_fractions == pytest.approx({"1": 0.826, "4": 0.03})
    assert any("83 % with 1 CPU and 3 % with 4 CPUs" in each for each in answer.sentences)
    unknown = answered({1: 100, 4: 300})
    assert unknown.loader_fractions == {"1": None, "4": None}
    assert "How much of a step waits for data is not known." in unknown.sentences


@pytest.mark.parametrize(
    ("spread", "one", "four", "learning"),
    [
        (QUIET, [0.990, 0.991, 0.992], [0.991, 0.990, 0.992], "only the time"),
        (QUIET, [0.990, 0.991, 0.992], [0.985, 0.984, 0.986], "may differ by up to 0.8 percentage points"),
        (QUIET, [0.98, 0.99, 0.97], [0.99, 0.97, 0.98], "is not clear"),
        ((1.0,), [0.99], [0.99], "Whether CPUs per device change the accuracy is not known"),
    ],
    ids=["alike", "apart", "scattered", "single runs"],
)
def test_cpus_that_may_change_the_accuracy_are_not_said_to_change_only_the_time(
    spread: Sequence[float], one: list[float], four: list[float], learning: str
) -> None:
    answer = answered({1: 100.0, 4: 300.0}, spread, accuracies={1: one, 4: four})
    assert learning in answer.learning
