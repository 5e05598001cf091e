"""The cost of a study that chose its device counts, beside that of all of them, and what it left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.plan.formatting import (
    NEGLIGIBLE,
    chance_text,
    counts_text,
    format_3sig,
    percent_in_digits,
    pluralize,
)
from scalewise.plan.runs.rounds import OTHER_ANSWER, Round, SeriesChoice, UnmeasuredPoint
from scalewise.plan.runs.run_definition import parse_point_name
from scalewise.plan.runs.runs import points
from scalewise.plan.runs.spending import Spending
from scalewise.plan.terminal.choice_lines import next_text, outdone_text

if TYPE_CHECKING:
    # the page needs no statistics
    from scalewise.analysis.decision.decision import Decision


@dataclass(frozen=True)
class ChoiceSummary:
    """A study that chose its device counts.

    Args:
        series: The series of the answer.
        runs: Runs that were made.
        measured: Device counts that have a completed run in the series of the answer, ascending.
        unmeasured: The others of that series, as the measured ones make them expect.
        other_answer: Probability that one of these is, or makes, another answer.
        spent_device_hours: Cost of all runs, failed ones among them, as billed.
        full_grid_device_hours: Expected of all counts of all series with the fewest repeats.
        full_grid_runs: Number of these runs.
        budget_device_hours: The most that the study may spend; None for no limit.
        over_budget: Points that were needed and could not be paid.
        is_open: Another answer is more probable than a study ends with, or a needed point could not be paid.
        next_runs: The runs to come, and why; empty of a study that has ended.
        no_result: Counts whose runs have all failed.
        others: Answers of the other series, and their counts that were not measured.
        spent_by_sisters: Cost of the runs on other partitions, which share the budget.
        outdone: Chance that the partition gives the answer across partitions, if it is measured no further
            because that is small; else None.
    """

    series: str
    runs: int
    measured: list[int]
    unmeasured: list[UnmeasuredPoint]
    other_answer: float
    spent_device_hours: float
    full_grid_device_hours: float
    full_grid_runs: int
    budget_device_hours: float | None
    over_budget: list[str]
    is_open: bool
    next_runs: str = ""
    no_result: list[int] = field(default_factory=list)
    others: list[SeriesChoice] = field(default_factory=list)
    spent_by_sisters: float = 0.0
    outdone: float | None = None

    @classmethod
    def of(
        cls,
        experiment: AnalysisSpec,
        rounds: Sequence[Round],
        runs: pd.DataFrame,
        series: str | None,
        spending: Spending,
    ) -> ChoiceSummary | None:
        """The summary of a study; None of one that measures every count, or has no round yet.

        Args:
            experiment: The experiment, the way the plan defined it.
            rounds: Those that have been judged.
            runs: A row for each run that was asked for.
            series: The series of the answer.
            spending: Cost of the runs so far.
        """
        if not rounds or not rounds[-1].choices:
            return None
        last = rounds[-1]
        choice = next((each for each in last.choices if each.series == series), last.choices[0])
        done = runs[runs["outcome"] == "completed"]
        over = [point.point for point in last.points if point.verdict == "over the budget"]
        measured = sorted({int(each) for each in done.loc[done["series"] == choice.series, "devices"]})
        tried = {
            devices
            for devices, series in (parse_point_name(point.point) for point in last.points if point.asked)
            if series == choice.series
        }
        waiting = bool((runs["outcome"] == "not run yet").any())
        following = next_text(last, choice) if waiting else "what is measured next has not been judged"
        return cls(
            series=choice.series,
            runs=len(runs) - int((runs["outcome"] == "not run yet").sum()),
            measured=measured,
            # of a study that goes on, a count may have been measured since
            unmeasured=[each for each in choice.unmeasured if each.devices not in measured],
            other_answer=choice.other_answer,
            spent_device_hours=spending.device_hours,
            full_grid_device_hours=spending.full_grid(experiment.spec, last.choices, experiment.held_devices),
            full_grid_runs=experiment.spec.min_repeats * sum(1 for _ in points(experiment.spec)),
            budget_device_hours=last.budget_device_hours,
            over_budget=over,
            is_open=bool(over) or choice.other_answer > OTHER_ANSWER,
            next_runs=following if last.requests_more else "",
            no_result=sorted(tried - {*measured, *(each.devices for each in choice.unmeasured)}),
            others=[each for each in last.choices if each.series != choice.series],
            spent_by_sisters=last.spent_by_sisters,
            outdone=last.wins if last.is_outdone else None,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ChoiceSummary:
        """Read what ``as_dict`` has made."""
        return cls(
            **{
                **values,
                "unmeasured": [UnmeasuredPoint.model_validate(each) for each in values["unmeasured"]],
                "others": [SeriesChoice.model_validate(each) for each in values["others"]],
            }
        )

    @property
    def share(self) -> float:
        """Device-hours spent over those of all counts."""
        return self.spent_device_hours / self.full_grid_device_hours

    def chance_of_another(self, series: str) -> float:
        """Probability that a count of a series which was not measured gives it another answer."""
        return next((each.other_answer for each in self.others if each.series == series), self.other_answer)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        records = {
            name: [each.model_dump() for each in getattr(self, name)] for name in ("unmeasured", "others")
        }
        return {**vars(self), **records}

    @property
    def most_likely(self) -> list[UnmeasuredPoint]:
        """Counts whose chance can be told from none, the most likely first."""
        likely = [each for each in self.unmeasured if each.chance >= NEGLIGIBLE]
        return sorted(likely, key=lambda each: -each.chance)

    def sentences(self) -> list[str]:
        """Sentences on what was measured, what that cost, and what was left out."""
        if not self.measured:
            return ["No run of the baseline has completed, so no device count is measured."]
        counts = len(self.measured) + len(self.unmeasured) + len(self.no_result)
        of, all_series = (f" of {self.series}", " of all series") if self.others else ("", "")
        which = counts_text(self.measured)
        said = [
            f"{len(self.measured)} of {counts} device counts{of} were measured ({which}) in "
            f"{pluralize(str(self.runs), 'run')}{all_series}: "
            f"{format_3sig(self.spent_device_hours)} device-hours, "
            f"{percent_in_digits(self.share)} of the about "
            f"{format_3sig(self.full_grid_device_hours)} that all of them take with "
            f"{self.full_grid_runs} runs."
        ]
        if self.no_result:
            said.append(f"Tried without a result: {counts_text(self.no_result)} devices.")
        if self.unmeasured:
            which = counts_text([each.devices for each in self.unmeasured])
            said.append(
                f"Not measured: {which} devices. The chance that one of them gives another answer is "
                f"{chance_text(self.other_answer)}."
            )
        if self.next_runs:
            said.append(f"The study has not ended; {self.next_runs}.")
        if self.outdone is not None:
            said.append(_sentence(outdone_text(self.outdone)))
        return said

    def action(self) -> str:
        """Return what to do next; empty if the study has measured all that it needs."""
        if self.next_runs:
            return "Run the same command again: the study has not ended."
        return "Raise the budget and run the same command again." if self.over_budget else ""

    def open_sentences(self) -> list[str]:
        """Sentences on what is left undecided, by the budget or so far, and what it would cost."""
        if not self.is_open or not self.measured:
            return []
        if self.outdone is not None:
            return [_sentence(outdone_text(self.outdone))]
        likely = self.most_likely[:4]
        named = ", ".join(f"{each.devices} ({chance_text(each.chance)})" for each in likely)
        if self.next_runs:
            which = f": {named}" if likely else ""
            return [
                "The study has not ended: the chance that another device count is the answer is "
                f"{chance_text(self.other_answer)}{which}."
            ]
        if self.budget_device_hours is None:
            return []
        by_sisters = ""
        if self.spent_by_sisters:
            by_sisters = f" here and {format_3sig(self.spent_by_sisters)} on other partitions"
        spent = (
            f"The budget of {format_3sig(self.budget_device_hours)} device-hours ends the study: "
            f"{format_3sig(self.spent_device_hours)} are spent{by_sisters}, and the time limit of the next "
            "run does not fit into the rest"
        )
        if not likely:
            return [f"{spent}. More repeats of {', '.join(self.over_budget)} were needed."]
        cost = sum(each.device_hours for each in likely)
        return [
            f"{spent}. Another device count may be the answer: {named}. One run of each takes about "
            f"{format_3sig(cost)} device-hours."
        ]


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."


def with_choice(decision: Decision, choice: ChoiceSummary) -> Decision:
    """The decision of a study that chose its device counts, with what it left open as its first caution."""
    return replace(
        decision,
        cautions=[*choice.open_sentences(), *decision.cautions],
        clear=decision.clear and not choice.is_open,
        card=decision.card.in_doubt("A device count that was not measured may be better.")
        if choice.is_open
        else decision.card,
    )
