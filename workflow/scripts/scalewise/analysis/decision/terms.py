"""The terms under which a decision was made, for who decides again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.formatting import Goal
from scalewise.plan.runs.runs import Options


@dataclass(frozen=True)
class Terms:
    """All that a decision follows from beside the tables.

    Args:
        rule: The criteria of the configuration, also those that could not be judged.
        options: Options of each series, by its name.
        target: The goal that counts as trained; None where there is none.
        queue_minutes: Usual wait in the queue by device count, where the site gives it.
        whole_runs: Runs went to their end; where steps end them nobody knows how long a whole one takes.
        chooses_devices: The study measured those device counts that its own criteria needed.
        confounded: Sentences on what changed together with the devices.
    """

    rule: DecisionRule
    options: Mapping[str, Options] = field(default_factory=dict)
    target: Goal | None = None
    queue_minutes: Mapping[int, float] = field(default_factory=dict)
    whole_runs: bool = True
    chooses_devices: bool = False
    confounded: Sequence[str] = ()
