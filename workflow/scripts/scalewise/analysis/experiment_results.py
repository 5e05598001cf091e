"""The results of an experiment: written once, and read once for the figures, the page and the proposal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import PROGRAM, THROUGHPUT, AnalysisSpec
from scalewise.analysis.queue_waits import QUEUE_WAIT_COLUMNS
from scalewise.analysis.rounds.choice_summary import ChoiceSummary
from scalewise.plan.formatting import Goal
from scalewise.plan.runs.rounds import UnmeasuredPoint
from scalewise.records import RecordError, write_text

TABLES = ("runs", "epochs", "scaling", "options", "queue_waits")
"""Fields that are CSV files of the same names."""
JSON_FILES = {"origins": "provenance", "decision": "decision", "what_if": "what_if"}
"""Field -> name of its JSON file."""

_EXPECTED = ["series", "devices", "chance", "device_hours", "speedup", "parallel_efficiency", THROUGHPUT]


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
        queue_waits: Output of ``queue_waits_table``.
        origins: Values of each part of the runs' provenance, by its name.
        what_if: Output of ``what_if.facts``; empty to leave that part out of the page.
        choice: Summary of a study that chose its device counts; None of one that measures all.
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
    queue_waits: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=QUEUE_WAIT_COLUMNS))
    origins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    what_if: Mapping[str, Any] = field(default_factory=dict)
    choice: ChoiceSummary | None = None
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
    ) -> ExperimentResults:
        """Read what ``write`` has written.

        Args:
            experiment: The experiment, the way the plan defined it.
            folder: Results of the experiment.
            title: Name for readers.
            description: Text below the title.
        """
        tables: dict[str, Any] = {name: read_table(folder / f"{name}.csv") for name in TABLES}
        facts = {name: read_json(folder / f"{file}.json") for name, file in JSON_FILES.items()}
        chosen = facts["decision"]["choice"]
        return cls(
            name=experiment.name,
            folder=folder,
            **tables,
            **facts,
            choice=None if chosen is None else ChoiceSummary.from_dict(chosen),
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
        spec = AnalysisSpec.from_json(facts["definition"])
        return cls.read(spec, folder, title=facts["title"], description=facts["description"])

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
        if self.choice is None:
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

    @cached_property
    def unmeasured(self) -> pd.DataFrame:
        """A row for each point that a study chose not to measure, with its expected values and their bands.

        Columns are ``series``, ``devices``, ``chance``, ``device_hours``, and speedup, efficiency and
        throughput with their bounds under the names of scaling.csv.
        """
        rows = [] if self.choice is None else list(_unmeasured(self.choice, self.scaling))
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=_EXPECTED)

    @property
    def expected(self) -> pd.DataFrame | None:
        """The unmeasured points that figures show; None of a study that measures every device count.

        There are none if the time to a target decided, which is no rate.
        """
        if self.choice is None:
            return None
        return self.unmeasured.iloc[:0] if self.to_target else self.unmeasured


def write_decisions(results: Path, experiments: Iterable[str], output: Path) -> None:
    """Write the decisions of several experiments as one JSON file.

    Args:
        results: Holds a folder with decision.json for each.
        experiments: Names, in order.
        output: File to write.
    """
    found = [read_json(results / name / "decision.json") for name in experiments]
    write_text(output, json.dumps(found, indent=2) + "\n")


def _unmeasured(choice: ChoiceSummary, scaling: pd.DataFrame) -> Iterator[dict[str, Any]]:
    unmeasured = {choice.series: choice.unmeasured} | {each.series: each.unmeasured for each in choice.others}
    for series, points in unmeasured.items():
        table = scaling[(scaling["series"] == series) & (scaling["n"] > 0)]
        base = table[table["devices"] == table["baseline_devices"]]
        if len(base):
            measured, first = set(table["devices"]), base.iloc[0]
            yield from (_row(series, each, first) for each in points if each.devices not in measured)


def _row(series: str, point: UnmeasuredPoint, base: pd.Series) -> dict[str, Any]:
    speedups = {"": point.speedup, "_low": point.speedup_low, "_high": point.speedup_high}
    factors = {
        "speedup": 1.0,
        "parallel_efficiency": base["devices"] / point.devices,
        THROUGHPUT: base[THROUGHPUT],
    }
    values = {
        f"{name}{side}": speedup * factor
        for side, speedup in speedups.items()
        for name, factor in factors.items()
    }
    facts = {"devices": point.devices, "chance": point.chance, "device_hours": point.device_hours}
    return {"series": series, **facts, **values}


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
