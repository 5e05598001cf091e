"""The proposal of an experiment as the plan defined it."""

from __future__ import annotations

from pydantic import Field

from scalewise.plan.config.centre import Centre, Proposal, Requirement
from scalewise.plan.config.settings import StrictModel


class ProposalSpec(StrictModel):
    """The centre with its demands, and what only the user knows of the proposal.

    Read it by ``model_validate_json`` from ``ExperimentFacts``.
    """

    centre: Centre
    proposal: Proposal = Field(default_factory=Proposal)
    requirement: Requirement | None = None
    trainings: int | None = None
    samples_per_training: int | None = None
