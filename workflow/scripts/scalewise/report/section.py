"""A section of the page: the answer and the tables of an experiment, read from the files of its analysis."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.answer import Answer
from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.disturbed import DISTURBED
from scalewise.analysis.study import ANSWER, PROVENANCE
from scalewise.config.shape import plural_of
from scalewise.plan.plan_file import Plan
from scalewise.plan.run_definition import NO_OPTIONS
from scalewise.records import RecordError, write_text

FIGURES_FOLDER = "figures"


@dataclass(frozen=True)
class Section:
    """An experiment of the page.

    Args:
        name: Name of the experiment; the id of its part of the page.
        title: Name for readers.
        figures: Folder of its figures.
        points: Contents of scaling.csv.
        runs: Contents of runs.csv.
        epochs: Contents of epochs.csv.
        options: Contents of options.csv.
        cost_unit: Unit of costs.
        law: The fitted law in a line; may be empty.
        target_accuracy: Accuracy that counts as trained, a fraction; None without one.
    """

    name: str
    title: str
    answer: Answer
    figures: Path
    points: pd.DataFrame
    runs: pd.DataFrame
    epochs: pd.DataFrame
    options: pd.DataFrame
    cost_unit: str
    law: str
    target_accuracy: float | None

    @property
    def noun(self) -> str:
        """Return the name of a device: ``GPU``, ``CPU process``."""
        return self.answer.device

    @property
    def plural(self) -> str:
        """Return the name of several devices: ``GPUs``."""
        return plural_of(self.noun)

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Return the runs that are not compared, each with the reason."""
        apart = self.runs[self.runs["outcome"].isin([DISTURBED, OTHER_CONDITIONS])]
        return [(str(run["run"]), str(run["reason"])) for _, run in apart.iterrows()]


def read_section(plan: Plan, name: str, folder: Path) -> Section:
    """Read what the analysis of an experiment has written.

    Args:
        plan: The study.
        name: Name of the experiment.
        folder: Holds its tables and its answer.

    Raises:
        RecordError: A file is damaged.
    """
    planned = plan["experiments"][name]
    partition, definition = next(iter(planned["definitions"].items()))
    answer = _read(folder / ANSWER, lambda path: Answer.from_json(path.read_text(encoding="utf-8")))
    target = AnalysisSpec.from_json(definition).target
    return Section(
        name=name,
        title=planned["title"],
        answer=answer,
        figures=folder / FIGURES_FOLDER,
        cost_unit="units" if partition else f"{answer.device.rpartition(' ')[2]}-hours",
        law=_read(folder / PROVENANCE, lambda path: json.loads(path.read_text(encoding="utf-8"))["law"]),
        target_accuracy=target if isinstance(target, float) else None,
        points=_read(folder / "scaling.csv", _read_table),
        runs=_read(folder / "runs.csv", _read_table),
        epochs=_read(folder / "epochs.csv", _read_table),
        options=_read(folder / "options.csv", _read_table),
    )


def write_decisions(sections: Sequence[Section], output: Path) -> None:
    """Write the answers of all experiments as one JSON file, a list of the contents of answer.json."""
    found = [asdict(section.answer) for section in sections]
    write_text(output, json.dumps(found, indent=2) + "\n")


def _read_table(path: Path) -> pd.DataFrame:
    """Read a table, and name the series of several partitions by partition and options."""
    table = pd.read_csv(path, low_memory=False, dtype={"series": str})
    if "series" in table and table["partition"].notna().any():
        options, partition = table["series"], table["partition"].astype(str)
        table["series"] = partition.where(options == NO_OPTIONS, options + " on " + partition)
    return table


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is damaged ({error}). Delete it and run the same command.") from error
