"""The words of the answers to planted studies: on the terminal, and further down in the report.

``SCALEWISE_GOLDEN=1 pytest tests/unit/analysis/test_golden_answers.py`` writes them again and
prints the difference. What an answer says of a number is checked elsewhere; here is how it is said.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.golden import compare
from tests.planted_study import Law, PlantedStudy, Speed, experiments

from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.terminal.card_lines import MAX_CAUTIONS, WIDTH, card_lines

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden_answers.txt"


def law(**changed: float) -> Speed:
    return Law(**changed).speed


def failing(speed: Speed, devices: int) -> Speed:
    """The same, but all runs on so many devices fail."""
    return lambda run: None if run.shape.world_size == devices else speed(run)


def faster(option: str, value: object, factor: float, speed: Speed) -> Speed:
    def of(run: RunDefinition) -> float | None:
        rate = speed(run)
        return rate if rate is None or getattr(run.settings, option) != value else factor * rate

    return of


STUDIES: dict[str, tuple[dict[str, Any], Speed]] = {
    "does not scale": ({}, law(serial=1.2)),
    "efficiency required, one count fails": (
        {"decision": {"min_efficiency": 0.7}},
        failing(law(serial=0.1, scatter=0.002), 2),
    ),
    "deadline": ({"decision": {"deadline_minutes": 2}}, law(serial=0.1)),
    "deadline that luck may keep": ({"decision": {"deadline_minutes": 1.45}}, law(serial=0.1)),
    "budget that luck may exceed": ({"decision": {"max_device_hours": 0.048}}, law(serial=0.1)),
    "criteria that exclude each other": (
        {"decision": {"min_efficiency": 0.9, "deadline_minutes": 0.6, "max_device_hours": 0.04}},
        law(serial=0.1),
    ),
    "gain that may be none": (
        {"decision": {"min_efficiency": 0.5}, "devices": [1, 2]},
        law(serial=0.8, scatter=0.06),
    ),
    "efficiency in doubt": (
        {"decision": {"min_efficiency": 0.75}, "devices": [1, 2, 4]},
        law(serial=0.12, scatter=0.03),
    ),
    "more than ideal": ({"devices": [1, 2]}, law(serial=-0.1)),
    "one run each": ({"repeats": 1}, law(serial=0.1)),
    "much scatter": ({"repeats": 2}, law(serial=0.1, scatter=0.15)),
    "one count": ({"devices": [4]}, law()),
    "baseline fails": ({"devices": [1, 2]}, failing(law(serial=0.1), 1)),
    "an option that helps": (
        {"sweep": {"precision": ["fp32", "bf16"]}, "devices": [1, 2]},
        faster("precision", "bf16", 1.6, law(serial=0.1)),
    ),
    "an option that harms": (
        {"sweep": {"channels_last": [False, True]}, "devices": [1, 2]},
        faster("channels_last", True, 0.8, law(serial=0.1)),
    ),
    "an option without effect": (
        {"sweep": {"static_graph": [False, True]}, "devices": [1, 2]},
        law(serial=0.1),
    ),
    "time to a target": ({"target": {"accuracy": 0.9}, "decision": {"min_efficiency": 0.7}}, law(serial=0.1)),
    "target that is missed": ({"target": {"accuracy": 0.9999}, "devices": [1, 2]}, law(serial=0.1)),
    "CPUs per device": (
        {"devices": [1, 2], "loader": "workers", "sweep": {"cpus_per_device": [1, 2, 4]}},
        lambda run: Law(rate=400.0 * min(run.settings.cpus_per_device, 2), serial=0.1).speed(run),
    ),
    "several nodes": ({"devices": [4, 16, 32]}, law(serial=0.05)),
    "counts that are chosen": ({"devices": {"up_to": 16}}, law(serial=0.15)),
}
CARD_ONLY = {
    "does not scale", "efficiency required, one count fails", "deadline", "budget that luck may exceed",
    "criteria that exclude each other", "gain that may be none", "efficiency in doubt", "more than ideal",
    "target that is missed", "CPUs per device", "counts that are chosen",
}  # fmt: skip
"""Studies of which the report says no more than others here, but for the card."""


def said(folder: Path, name: str) -> Iterator[str]:
    """Plant a study, and yield what the terminal and the report say of it."""
    changed, speed = STUDIES[name]
    planted = PlantedStudy(folder / name.replace(" ", "-"), experiments(study=changed), speed)
    planted.tabulate()
    results = ExperimentResults.of_study(make_plan(planted.study)["experiments"]["study"], planted.folder)
    answer = results.decision
    yield from card_lines(answer)
    if name in CARD_ONLY:
        return
    further = {key: answer[key] for key in ("limits", "startup", "alternatives", "options")}
    further |= {"cautions": answer["cautions"][MAX_CAUTIONS:]}
    for heading, texts in further.items():
        for words in texts:
            first = f"  {heading + ':':14}"
            yield from textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=16 * " ")


def test_answers_to_planted_studies_are_said_in_these_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = ["\n".join([f"# {name}", "", *said(tmp_path, name), ""]) for name in STUDIES]
    compare(GOLDEN, "\n".join(blocks), __file__, capsys)
