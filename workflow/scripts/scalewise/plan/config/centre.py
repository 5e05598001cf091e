"""The models of a file in ``profiles/centres``: the demands of a computing centre, and what answers each."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from scalewise.plan.config.errors import reject
from scalewise.plan.config.settings import Count, Fraction, Rate, StrictModel

Column = Literal[
    "devices", "nodes", "n",
    "wall_seconds", "throughput_samples_per_second", "speedup", "parallel_efficiency", "device_hours",
    "mean_utilization", "lowest_utilization", "peak_memory_bytes", "loader_wait_fraction", "energy_joules",
    "flops_per_step", "model_flops_utilization",
]  # fmt: skip
"""Columns of table.csv that may answer a demand; the text shows them under headings for readers."""

FigureName = Literal["time", "throughput", "speedup", "efficiency"]

SectionName = Literal[
    "software", "machine", "case", "method", "startup", "answer", "requirement", "limits", "failures",
    "totals", "reproduction",
]  # fmt: skip
"""Texts that Scalewise writes from the study."""

COLUMNS: tuple[str, ...] = get_args(Column)


class Requirement(StrictModel):
    """The least efficiency of each doubling of nodes or devices."""

    efficiency: Fraction = Field(
        description="Least efficiency of a doubling: 0.75 requires a speedup of 2 x 0.75 = 1.5."
    )
    per: Literal["doubling_of_nodes", "doubling_of_devices"] = Field(
        "doubling_of_nodes", description="What is doubled between the two points of a comparison."
    )
    by: Literal["total_time", "throughput"] = Field(
        "throughput",
        description="What must get faster: whole runs, start-up included (total_time), or training steps "
        "alone (throughput).",
    )

    @property
    def ratio(self) -> float:
        """The least speedup of a doubling."""
        return 2 * self.efficiency


class Unit(StrictModel):
    """The unit in which the centre grants computing time."""

    name: str = Field("device-hours", description="Its name, in the plural.")
    of: Literal["device", "node"] = Field("device", description="What an hour is counted of.")
    factor: Rate | Literal["ask"] = Field(
        1.0,
        description="Units of one hour. ask: only the user knows it, and writes `proposal.unit_factor`.",
    )
    monthly: bool = Field(False, description="It is granted by the month: `proposal.months` divides totals.")
    source: str = Field("", description="Page that states it.")
    date: datetime.date | None = Field(None, description="Day on which the page was read.")


class Demand(StrictModel):
    """One demand of a centre, and what answers it; at least one of the keys that answer must be given."""

    heading: str = Field(description="Heading of the answer in the text; demands may share one.")
    demand: str = Field(description="The demand in the centre's words.")
    source: str = Field("", description="Page with the demand.")
    date: datetime.date | None = Field(None, description="Day on which the page was read.")
    optional: bool = Field(False, description="The centre does not insist on it.")
    columns: list[Column] = Field([], description="Columns of the table that answer it.")
    figures: list[FigureName] = Field([], description="Figures that answer it.")
    sections: list[SectionName] = Field([], description="Texts of Scalewise that answer it.")
    job_script: bool = Field(False, description="The job script answers it.")
    to_write: str = Field("", description="Words that only the user can write; a marked gap in the text.")
    node_counts: Count = Field(1, description="Least number of different node counts in the table.")
    only_for: Literal["one_node", "several_nodes"] | None = Field(
        None, description="The demand is on projects whose jobs take one node or less, or more than one."
    )

    @model_validator(mode="after")
    def _check_answer(self) -> Demand:
        if not (self.columns or self.figures or self.sections or self.job_script or self.to_write):
            raise reject(
                "names nothing that answers it",
                "Add columns, figures, sections, `job_script: true` or to_write.",
            )
        return self


class Centre(StrictModel):
    """A computing centre's demands on a proposal, in the order of its own document."""

    name: str = Field(description="Name of the centre and of the form, for readers.")
    title: str = Field("Scaling", description="Title of the text, such as Scalability report.")
    unit: Unit = Field(default_factory=Unit, description="The unit in which it grants computing time.")
    requirement: Requirement | None = Field(
        None, description="The scaling that it requires; the experiment's key of that name replaces it."
    )
    demands: Annotated[list[Demand], Field(min_length=1)] = Field(description="Its demands, in its order.")


class Proposal(StrictModel):
    """The computing-time proposal that a study is for."""

    centre: str = Field(
        "generic",
        description="The computing centre, whose file in profiles/centres names its demands and their "
        "answers, such as csc-roihu; or the path of a file of your own.",
    )
    margin: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = Field(
        0.0, description="Share that is added to the total for runs without a result, 0.05 for 5 %."
    )
    unit_factor: Rate | None = Field(
        None,
        description="Units of the centre for one GPU-hour (of a centre that counts nodes, one node-hour), if "
        "its file does not know it.",
    )
    months: Count | None = Field(
        None, description="Months over which the trainings are spread: the total is also given per month."
    )
