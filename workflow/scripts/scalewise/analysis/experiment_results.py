"""The results of an experiment: written once, and read once for the figures, the page and the proposal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import PROGRAM, THROUGHPUT, AnalysisSpec
from scalewise.analysis.jobstats import JOBSTATS_COLUMNS
from scalewise.analysis.prediction.wording import beyond_sentences
from scalewise.analysis.queue_waits import QUEUE_WAIT_COLUMNS
from scalewise.plan.formatting import Goal, name_devices
from scalewise.plan.terminal.predictions import latest_prediction
from scalewise.records import RecordError, write_text

TABLES = ("runs", "epochs", "scaling", "options", "jobstats", "queue_waits")
"""Fields that are CSV files of the same names."""
JSON_FILES = {"laws": "laws", "origins": "provenance", "decision": "decision", "what_if": "what_if"}
"""Field -> name of its JSON file."""


@dataclass(frozen=True)
class ExperimentResults:
    """The tables and the answer of an experiment.

    Args:
        folder: Holds the files; the figures are in ``figures``.
        decision: Output of ``Decision.as_dict`` with sentences on ``repeats``.
        scaling: Output of ``scaling_table``, and ``recommended``.
        runs: A row for each planned run.
        epochs: A row for each epoch of a run; of a program, for each recorded loss.
        options: Output of ``option_table``.
        jobstats: Output of ``jobstats_table``.
        queue_waits: Output of ``queue_waits_table``.
        laws: Fitted laws, and the refused ones with a reason.
        origins: Values of each part of the runs' provenance, by its name.
        what_if: Output of ``what_if.facts``; empty to leave that part out of the page.
        single_runs: Whether points may have single runs: the study chose its device counts.
        prediction: Predicted points; None if nothing was predicted.
        prediction_notes: Limits of the prediction, and why a series has none; a sentence each.
        min_efficiency: Least efficiency that is required, a fraction; None without that criterion.
        target: Goal that counts as trained; None if there is none.
    """

    name: str
    folder: Path
    decision: Mapping[str, Any]
    scaling: pd.DataFrame
    runs: pd.DataFrame
    epochs: pd.DataFrame = field(default_factory=pd.DataFrame)
    options: pd.DataFrame = field(default_factory=pd.DataFrame)
    jobstats: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=JOBSTATS_COLUMNS))
    queue_waits: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=QUEUE_WAIT_COLUMNS))
    laws: Sequence[Mapping[str, Any]] = ()
    origins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    what_if: Mapping[str, Any] = field(default_factory=dict)
    single_runs: bool = False
    prediction: pd.DataFrame | None = None
    prediction_notes: Sequence[str] = ()
    min_efficiency: float | None = None
    target: Goal | None = None
    title: str = ""
    description: str = ""

    @classmethod
    def read(
        cls,
        experiment: AnalysisSpec,
        folder: Path,
        *,
        title: str = "",
        description: str = "",
        predicted: bool = True,
    ) -> ExperimentResults:
        """Read what ``write`` has written, and the latest prediction.

        Args:
            experiment: The experiment, the way the plan defined it.
            folder: Results of the experiment.
            title: Name for readers.
            description: Text below the title.
            predicted: Show its prediction if there is one; an earlier configuration may have left it.
        """
        tables: dict[str, Any] = {name: read_table(folder / f"{name}.csv") for name in TABLES}
        facts = {name: read_json(folder / f"{file}.json") for name, file in JSON_FILES.items()}
        decision = facts["decision"]
        prediction, notes = None, []
        path, remarks_path = latest_prediction(folder)
        if predicted and path.exists():
            prediction = read_table(path)
            remarks = read_json(remarks_path)
            notes = [*remarks["notes"], *remarks["refused"].values()]
            beyond = beyond_sentences(prediction, decision["series"])
            decision["beyond"] += [name_devices(sentence, decision["device"]) for sentence in beyond]
        return cls(
            name=experiment.name,
            folder=folder,
            **tables,
            **facts,
            single_runs=experiment.spec.chooses_devices,
            prediction=prediction,
            prediction_notes=notes,
            min_efficiency=experiment.spec.decision.min_efficiency,
            target=experiment.target,
            title=title,
            description=description,
        )

    @classmethod
    def of_study(cls, facts: Mapping[str, Any], folder: Path) -> ExperimentResults:
        """Read the results of an experiment.

        Args:
            facts: The experiment's part of the plan.
            folder: Results of the experiment.
        """
        shown = {name: facts[name] for name in ("title", "description", "predicted")}
        return cls.read(AnalysisSpec.from_json(facts["definition"]), folder, **shown)

    def write(self) -> None:
        """Write the tables, the decision and what else ``read`` reads."""
        for name in TABLES:
            text = getattr(self, name).to_csv(index=False, lineterminator="\n")
            write_text(self.folder / f"{name}.csv", text)
        for name, file in JSON_FILES.items():
            write_text(self.folder / f"{file}.json", json.dumps(getattr(self, name), indent=2) + "\n")

    @property
    def noun(self) -> str:
        """Name of a device: ``GPU``, ``CPU process``."""
        return str(self.decision["device"])

    @property
    def series(self) -> str | None:
        """The series of the answer."""
        series: str | None = self.decision["series"]
        return series

    @property
    def devices(self) -> int | None:
        """The device count of the answer."""
        devices: int | None = self.decision["devices"]
        return devices

    @property
    def to_target(self) -> bool:
        """Whether the time to the target decided, and not throughput."""
        return bool(self.decision["measure"] == "time to target")

    @property
    def completed(self) -> pd.DataFrame:
        """The runs that completed."""
        return self.runs[self.runs["outcome"] == "completed"]

    @property
    def of_programs(self) -> bool:
        """Whether users' programs were measured."""
        return "loader" in self.runs and bool((self.completed["loader"] == PROGRAM).any())

    @cached_property
    def points(self) -> pd.DataFrame:
        """The scaling table as figures and tables show it.

        The bounds of a single run's speedup take its scatter from the baseline's runs. A study that chooses
        its device counts has many such points: with bars they would look as if they had been repeated.
        """
        if not self.single_runs:
            return self.scaling
        columns = [column for column in self.scaling if str(column).endswith(("_low", "_high"))]
        points = self.scaling.astype(dict.fromkeys(columns, float))
        points.loc[points["n"] == 1, columns] = float("nan")
        return points

    @property
    def measured(self) -> pd.DataFrame:
        """The points with a throughput."""
        return self.points[self.points[THROUGHPUT].notna()]

    @property
    def relative(self) -> pd.DataFrame:
        """The points with a speedup."""
        return self.points[self.points["speedup"].notna()]


def write_decisions(results: Path, experiments: Iterable[str], output: Path) -> None:
    """Write the decisions of several experiments as one JSON file.

    Args:
        results: Holds a folder with decision.json for each.
        experiments: Names, in order.
        output: File to write.
    """
    found = [read_json(results / name / "decision.json") for name in experiments]
    write_text(output, json.dumps(found, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of the results.

    Raises:
        RecordError: It is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from error


def read_table(path: Path) -> pd.DataFrame:
    """Read a table of the results.

    Raises:
        RecordError: It is damaged, or a spreadsheet has saved it in another form.
    """
    try:
        table = pd.read_csv(path)
    except ValueError as error:
        raise _damaged(path, error) from error
    if len(table.columns) == 1 and ";" in table.columns[0]:
        raise _damaged(path, "its columns are separated by semicolons, not by commas")
    return table


def _damaged(path: Path, why: object) -> RecordError:
    # Snakemake makes a missing table only for a report that is missing, too
    fix = f"Delete it and {path.with_name('report.html')}, and run snakemake again to make both."
    return RecordError(f"{path}: was changed or is damaged ({' '.join(str(why).split())}). {fix}")
