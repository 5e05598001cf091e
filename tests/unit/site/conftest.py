"""Studies as a user writes them, on sites of any kind."""

from tests.unit.plan.conftest import load, refuse, study_folder

__all__ = ["load", "refuse", "study_folder"]
