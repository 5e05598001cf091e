"""Write the folder of a proposal: text, table, figures, and the checklist of the centre's demands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.proposal.figures import FIGURES, missing_figures
from scalewise.analysis.proposal.markup import GAP, Block, Heading, Paragraph, Picture, to_latex, to_markdown
from scalewise.analysis.proposal.proposal_spec import ProposalSpec
from scalewise.analysis.proposal.table import (
    COLUMNS,
    OF_SCALING,
    OF_USE,
    Table,
    column_by,
    ordered_points,
    scaling_of,
    use_of,
)
from scalewise.analysis.proposal.texts import CONTENTS, SECTIONS, Study
from scalewise.analysis.proposal_files import CHECKLIST, FOLDER, JOB_SCRIPT, LATEX, TABLE, TEXT, VERDICTS
from scalewise.analysis.requirement import verdicts
from scalewise.plan.config.centre import Demand
from scalewise.plan.config.experiment import AnyExperiment
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import listed, name_devices
from scalewise.records import CPU_PROCESS, write_text

_WHOLE_RUNS = "`steps` ends every run. Measure whole runs."
_NO_BASELINE = "No run on the fewest devices completed. Run the study again."
_NO_UTILIZATION = "No run could read it. Install nvidia-ml-py where the ranks run, and make the runs longer."
_HINTS = {
    "wall_seconds": _WHOLE_RUNS,
    "device_hours": _WHOLE_RUNS,
    "speedup": _NO_BASELINE,
    "parallel_efficiency": _NO_BASELINE,
    "mean_utilization": _NO_UTILIZATION,
    "lowest_utilization": _NO_UTILIZATION,
    "energy_joules": "No run could read it. It is known of NVIDIA GPUs that count their energy.",
}
"""Reasons for an empty column, with the fix."""
_NO_RUN = "No run has recorded it. The report says what is unknown and why."

_PROJECTS = {"one_node": "projects on one node", "several_nodes": "projects on several nodes"}

State = Literal["there", "to write", "missing", "not met", "does not apply"]


@dataclass(frozen=True)
class Answer:
    """One part of the answer to a demand.

    Args:
        text: File and place; of a missing part, the reason and what supplies it.
        state: Whether it is there, or the user has to write it.
    """

    text: str
    state: State = "there"


@dataclass
class Draft:
    """The text in the centre's order, and the answers to its demands.

    Args:
        study: All that it is written from.
        with_job_script: There is a job script in the folder.
        blocks: The text so far.
        placed: Tables, figures and texts so far, with the heading that each stands under.
        answers: The answers to each demand.
    """

    study: Study
    with_job_script: bool
    blocks: list[Block] = field(default_factory=list)
    placed: dict[str, str] = field(default_factory=dict)
    answers: dict[int, list[Answer]] = field(default_factory=dict)

    @property
    def demands(self) -> list[Demand]:
        """The centre's demands, with headings that name the devices of the study."""
        noun = self.study.results.noun
        return [
            demand.model_copy(update={"heading": name_devices(demand.heading, noun)})
            for demand in self.study.spec.centre.demands
        ]

    def write(self) -> None:
        """Write the text, one heading after the other, and answer every demand."""
        demands = self.demands
        for heading in dict.fromkeys(demand.heading for demand in demands):
            under = {index: demand for index, demand in enumerate(demands) if demand.heading == heading}
            other = {
                index: why for index, demand in under.items() if (why := self._applies_to_others(demand))
            }
            self.answers |= {index: [Answer(why, "does not apply")] for index, why in other.items()}
            here = {index: demand for index, demand in under.items() if index not in other}
            if here:
                self.blocks.append(Heading(heading))
                self.answers |= {index: list(self._answers(demand)) for index, demand in here.items()}
                self._refer_back(heading, here.values())
        if "totals" not in self.placed and self.study.spec.trainings is not None:
            # the centre has no demand on it, and the user wants it
            self.blocks += [Heading("Computing time to request"), *SECTIONS["totals"](self.study).blocks]

    def _applies_to_others(self, demand: Demand) -> str:
        """Return why a demand is not on this study; empty if it is."""
        points = self.study.points
        nodes = points.loc[points["n"] > 0, "nodes"].max()
        if demand.only_for is None or pd.isna(nodes) or (nodes > 1) == (demand.only_for == "several_nodes"):
            return ""
        measured = f"the study has runs on up to {count_devices(int(nodes), 'node')}"
        return f"It is on {_PROJECTS[demand.only_for]}, and {measured}."

    def _refer_back(self, heading: str, demands: Iterable[Demand]) -> None:
        """Name the sections above that hold a part of the answers below a heading."""
        parts = [
            part
            for demand in demands
            for part in (*map(_table_of, demand.columns), *demand.sections, *demand.figures)
        ]
        places = dict.fromkeys(self.placed[part] for part in parts if part in self.placed)
        if above := [place for place in places if place != heading]:
            also = "" if isinstance(self.blocks[-1], Heading) else " also"
            self.blocks.append(Paragraph(f"See{also} {listed([_section(place) for place in above])}."))

    def _answers(self, demand: Demand) -> Iterator[Answer]:
        yield from self._columns(demand)
        yield from self._sections(demand)
        yield from self._figures(demand)
        if demand.job_script:
            yield self._job_script()
        if "GPU" in demand.demand and self.study.results.noun == CPU_PROCESS:
            yield Answer("The demand is on GPUs, and the runs used CPU processes.", "not met")
        if demand.to_write:
            self.blocks.append(Paragraph(demand.to_write, is_gap=True))
            yield Answer(f"`{TEXT}`, {_section(demand.heading)}: {demand.to_write}", "to write")

    def _sections(self, demand: Demand) -> Iterator[Answer]:
        for name in demand.sections:
            text = SECTIONS[name](self.study)
            if text.blocks:
                self._place(name, demand, text.blocks)
                contents = name_devices(CONTENTS[name], self.study.results.noun)
                place = f"`{TEXT}`, {_section(self.placed[name])}: {contents}"
                yield Answer(f"{place}. {text.summary}" if text.summary else place)
            if text.missing:
                self._leave_gap(demand, text.missing, if_placed=bool(text.blocks))
                yield Answer(text.missing, "missing")
            if text.not_met:
                yield Answer(text.not_met, "not met")

    def _columns(self, demand: Demand) -> Iterator[Answer]:
        points = self.study.points
        known = [column for column in demand.columns if points[column].notna().any()]
        for name in dict.fromkeys(map(_table_of, known)):
            if (table := self._table(name)) is not None:
                self._place(name, demand, [table])
                yield Answer(f'`{TEXT}`, {_section(self.placed[name])}, table "{table.caption}"')
        if known:
            named = ", ".join(f"`{column_by(self.study.clock, column)}`" for column in known)
            yield Answer(f"`{TABLE}`, column{'s' if len(known) > 1 else ''} {named}")
        for column in demand.columns:
            if column not in known:
                reason = f"`{column}` is empty. {self._why_empty(column)}"
                self._leave_gap(demand, reason)
                yield Answer(reason, "missing")
        nodes = points.loc[points["n"] > 0, "nodes"].dropna().nunique()
        if nodes < demand.node_counts:
            measured = f"{nodes} node count{'s were' if nodes != 1 else ' was'} measured"
            reason = f"{measured}, {demand.node_counts} are demanded. Add more nodes to `devices`."
            yield Answer(reason, "missing")

    def _leave_gap(self, demand: Demand, reason: str, *, if_placed: bool = False) -> None:
        """Mark in the text that something is missing there, once, unless the centre can do without it.

        Args:
            demand: The demand that it would answer.
            reason: The reason for its absence, with the fix.
            if_placed: A part of it stands in the text, which says so itself.
        """
        gap = Paragraph(reason, is_gap=True)
        if not demand.optional and not if_placed and gap not in self.blocks:
            self.blocks.append(gap)

    def _table(self, name: str) -> Table | None:
        points, noun = self.study.points, self.study.results.noun
        if name == "scaling":
            return scaling_of(points, noun, self.study.clock)
        named = {column for demand in self.study.spec.centre.demands for column in demand.columns}
        return use_of(points, [column for column in OF_USE if column in named], noun)

    def _why_empty(self, column: str) -> str:
        if column in {"flops_per_step", "model_flops_utilization"}:
            notes = list(self.study.points["mfu_note"].dropna().unique())
            return notes[0] if notes else "The FLOPs of a step were not counted."
        if _HINTS.get(column) == _WHOLE_RUNS and self.study.experiment.steps is None:
            return _NO_RUN
        return _HINTS.get(column, _NO_RUN)

    def _figures(self, demand: Demand) -> Iterator[Answer]:
        missing = missing_figures(self.study.results.folder / "figures")
        for name in demand.figures:
            file, contents = FIGURES[name]
            if name in missing:
                yield Answer(f"There is no figure: {missing[name]}. {_NO_RUN}", "missing")
                continue
            contents = name_devices(contents, self.study.results.noun)
            self._place(name, demand, [Picture(file, contents)])
            yield Answer(f"`../figures/{file}.pdf` and `../figures/{file}.svg`")

    def _job_script(self) -> Answer:
        if not self.with_job_script:
            return Answer("No job script was written. Write one of the recommended row.", "missing")
        self.blocks.append(Paragraph(f"The job script is attached: `{JOB_SCRIPT}`."))
        return Answer(f"`{JOB_SCRIPT}`")

    def _place(self, name: str, demand: Demand, blocks: Sequence[Block]) -> None:
        """Add a part to the text, unless it stands there already."""
        if name not in self.placed:
            self.placed[name] = demand.heading
            self.blocks += blocks

    def checklist(self) -> str:
        """Return the checklist: every demand in the centre's words, and where its answer is."""
        centre = self.study.spec.centre
        states = [{each.state for each in self.answers[index]} for index in range(len(centre.demands))]
        missing = sum(bool(state & {"missing", "not met"}) for state in states)
        to_write = sum("to write" in state for state in states if not state & {"missing", "not met"})
        other = sum(state == {"does not apply"} for state in states)
        answered = len(states) - missing - to_write - other
        lines = [
            f"# Checklist: {centre.name}",
            "",
            f"Demands: {len(states)}. Answered: {answered}. To write: {to_write}. "
            f"Missing or not met: {missing}. "
            f"{f'Not on this study: {other}. ' if other else ''}The gaps in {TEXT} begin with {GAP}.",
        ]
        for index, demand in enumerate(self.demands):
            optional = " (optional)" if demand.optional else ""
            lines += ["", f"## {index + 1}. {demand.heading}{optional}", "", f"> {demand.demand}", ""]
            if demand.source:
                read = f", read on {demand.date}" if demand.date else ""
                lines += [f"<{demand.source}>{read}.", ""]
            lines += [
                f"- [{'x' if each.state == 'there' else ' '}] "
                f"{'' if each.state == 'there' else f'{each.state}: '}{each.text}"
                for each in dict.fromkeys(self.answers[index])
            ]
        return "\n".join([*lines, ""])


def write_proposal(results: ExperimentResults, experiment: AnyExperiment, spec: ProposalSpec) -> None:
    """Write the folder ``proposal`` into the experiment's; a job script that is there is part of it.

    Args:
        results: Tables and answer of the experiment.
        experiment: The experiment's keys.
        spec: The centre, and what only the user knows.
    """
    folder = results.folder / FOLDER
    study = Study(results, experiment, spec)
    is_answered = results.devices is not None
    draft = Draft(study, with_job_script=is_answered and (folder / JOB_SCRIPT).is_file())
    draft.write()
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{spec.centre.title}: {results.title or results.name}"
    write_text(folder / TEXT, to_markdown(title, draft.blocks))
    write_text(folder / LATEX, to_latex(title, draft.blocks))
    csv = ordered_points(results)[COLUMNS].to_csv(index=False, lineterminator="\n")
    write_text(folder / TABLE, csv)
    write_text(folder / CHECKLIST, draft.checklist())
    found = verdicts(spec.requirement, results, is_fixed_work=study.is_fixed_work)
    write_text(folder / VERDICTS, json.dumps(found, indent=2) + "\n")


def write_proposal_of(results: ExperimentResults, facts: Mapping[str, Any]) -> None:
    """Write the proposal of an experiment.

    Args:
        results: Tables and answer of the experiment.
        facts: The experiment's part of the plan.
    """
    spec = ProposalSpec.model_validate_json(facts["proposal"])
    write_proposal(results, AnalysisSpec.from_json(facts["definition"]).spec, spec)


def _table_of(column: str) -> str:
    return "scaling" if column in OF_SCALING else "use"


def _section(heading: str) -> str:
    return f'section "{heading}"'
