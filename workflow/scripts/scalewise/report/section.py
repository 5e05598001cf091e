"""A section of the page: the answer and the tables of an experiment, read from the files of its analysis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.answer import Answer
from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.disturbed import DISTURBED
from scalewise.analysis.study import ANSWER, PROVENANCE
from scalewise.plan.config.experiment import Experiment
from scalewise.plan.config.shape import count_devices
from scalewise.plan.plan_file import Plan, questions_of
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.records import RecordError, write_text

FIGURES_FOLDER = "figures"


@dataclass(frozen=True)
class Section:
    """An experiment of the page.

    Args:
        name: Name of the experiment; the id of its part of the page.
        title: Name for readers.
        description: Text below the answer.
        figures: Folder of its figures.
        points: Contents of scaling.csv.
        runs: Contents of runs.csv.
        epochs: Contents of epochs.csv.
        options: Contents of options.csv.
        cost_unit: Unit of costs.
        law: The fitted law in a line; may be empty.
        required_efficiency: Least efficiency that is required, a fraction; None if others decide.
        target_accuracy: Accuracy that counts as trained, a fraction.
        facts: Values of each part of the runs' provenance, by its name.
    """

    name: str
    title: str
    description: str
    answer: Answer
    figures: Path
    points: pd.DataFrame = field(default_factory=pd.DataFrame)
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    epochs: pd.DataFrame = field(default_factory=pd.DataFrame)
    options: pd.DataFrame = field(default_factory=pd.DataFrame)
    cost_unit: str = "device-hours"
    law: str = ""
    required_efficiency: float | None = None
    target_accuracy: float | None = None
    facts: dict[str, Sequence[str]] = field(default_factory=dict)

    @property
    def noun(self) -> str:
        """Return the name of a device: ``GPU``, ``CPU process``."""
        return self.answer.device

    @property
    def plural(self) -> str:
        """Return the name of several devices: ``GPUs``."""
        return count_devices(2, self.noun).removeprefix("2 ")

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Return the runs that are not compared, each with the reason."""
        if "outcome" not in self.runs:
            return []
        apart = self.runs[self.runs["outcome"].isin([DISTURBED, OTHER_CONDITIONS])]
        return [(str(run["run"]), str(run["reason"])) for _, run in apart.iterrows()]


def read_section(plan: Plan, question: str, folder: Path) -> Section:
    """Read what the analysis of an experiment has written.

    Args:
        plan: The study.
        question: Name of the experiment.
        folder: Holds its tables and its answer.

    Raises:
        RecordError: A file is damaged.
    """
    name = next(iter(questions_of(plan)[question].values()))
    facts, terms = plan["experiments"][name], plan["comparisons"].get(question)
    spec = AnalysisSpec.from_json(facts["definition"]).spec
    answer = _read(folder / ANSWER, lambda path: Answer.from_json(path.read_text(encoding="utf-8")))
    provenance = _read(folder / PROVENANCE, lambda path: json.loads(path.read_text(encoding="utf-8")))
    law = provenance.pop("law")
    target = spec.target if isinstance(spec, Experiment) else None
    unit = json.loads(terms["definition"])["unit"] if terms else "device-hours"
    tables = {
        table: _read(folder / f"{file}.csv", lambda path: pd.read_csv(path, low_memory=False))
        for table, file in (
            ("points", "scaling"),
            ("runs", "runs"),
            ("epochs", "epochs"),
            ("options", "options"),
        )
    }
    for table in tables.values():
        _name_series(table)
    return Section(
        name=question,
        title=(terms or facts)["title"] or question,
        description=(terms or facts)["description"],
        answer=answer,
        figures=folder / FIGURES_FOLDER,
        cost_unit=f"{answer.device.rpartition(' ')[2]}-hours" if unit == "device-hours" else "units",
        law=law,
        required_efficiency=answer.min_efficiency,
        target_accuracy=None if target is None else target.accuracy,
        facts=provenance,
        **tables,
    )


def write_decisions(sections: Sequence[Section], output: Path) -> None:
    """Write the answers of all experiments as one JSON file, a list of the contents of answer.json."""
    found = [json.loads(section.answer.to_json()) for section in sections]
    write_text(output, json.dumps(found, indent=2) + "\n")


def _name_series(table: pd.DataFrame) -> None:
    """Name the series of several partitions by partition and options."""
    if "partition" not in table or table["partition"].isna().all() or "series" not in table:
        return
    options = table["series"].astype(str)
    where = table["partition"].astype(str)
    table["series"] = where.where(options == NO_OPTIONS, options + " on " + where)


def _read(path: Path, read: Any) -> Any:
    try:
        return read(path)
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is damaged ({error}). Delete it and run the same command.") from error
