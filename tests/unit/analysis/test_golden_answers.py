"""The cards of planted studies, as the terminal shows them.

``SCALEWISE_GOLDEN=1 pytest tests/unit/analysis/test_golden_answers.py`` writes them again and
prints the difference. What an answer says of a number is checked elsewhere; here is how it is said.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.golden import compare
from tests.paths import ROOT
from tests.planted_study import Law, PlantedStudy, Speed, experiments
from tests.unit.analysis.planted import ONLY, Planted, spread

from scalewise.analysis.analysis_spec import EPOCH_RATE, THROUGHPUT
from scalewise.analysis.answer import Answer
from scalewise.analysis.study import ANSWER
from scalewise.config.experiment import DecisionRule
from scalewise.plan.run_definition import RunDefinition
from scalewise.terminal import card_lines

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
    "efficiency required, one count fails": (
        {"decision": {"min_efficiency": 0.7}},
        failing(law(serial=0.1, scatter=0.002), 2),
    ),
    "much scatter": ({"repeats": 2}, law(serial=0.1, scatter=0.15)),
    "an option that helps": (
        {"sweep": {"precision": ["fp32", "bf16"]}, "devices": [1, 2]},
        faster("precision", "bf16", 1.6, law(serial=0.1)),
    ),
    "many trainings": ({"trainings": 8}, law(serial=0.1)),
}


def card(answer: Answer) -> Iterator[str]:
    """Yield the lines of a card, as they follow from answer.json."""
    return card_lines(json.loads(answer.to_json()))


def said(folder: Path, name: str) -> Iterator[str]:
    """Plant a study, and yield what the terminal says of it."""
    changed, speed = STUDIES[name]
    planted = PlantedStudy(folder / name.replace(" ", "-"), experiments(study=changed), speed)
    planted.tabulate()
    yield from card(Answer.from_json((planted.folder / ANSWER).read_text(encoding="utf-8")))


def test_answers_to_planted_studies_are_said_in_these_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = ["\n".join([f"# {name}", "", *said(tmp_path, name), ""]) for name in STUDIES]
    compare(GOLDEN, "\n".join(blocks), __file__, capsys)


def test_the_answer_in_the_guide_to_the_report_is_what_such_runs_give() -> None:
    rates = {1: 100.0, 2: 190.0, 4: 340.0, 8: 480.0}
    planted = Planted({(ONLY, n): spread(rate) for n, rate in rates.items()}, swept=())
    runs = planted.runs
    runs[EPOCH_RATE] = runs[THROUGHPUT]
    runs["nodes"] = [1.0 if devices < 8 else 2.0 for devices in runs["devices"]]
    rule = DecisionRule(min_efficiency=0.7)
    found = planted.analysis(rule, runs=runs, samples_per_training=12_000_000)
    answer = replace(found.answer, experiment="my-training")
    assert "\n".join(card(answer)) in (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
