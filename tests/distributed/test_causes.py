"""What keeps a training from scaling is planted in real runs of two ranks, and it is the only cause named."""

import socket
from typing import Any

import pytest
from tests.distributed.runs import SETTINGS, Runs
from tests.machine import needs_two_cores
from tests.marked_outcomes import Record

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.causes import find_causes
from scalewise.analysis.runs import collect
from scalewise.analysis.study import Part, conclude
from scalewise.config.experiment import Experiment

pytestmark = needs_two_cores

STARVED = {"loader": "workers", "crop_padding": 2, "horizontal_flip": True, "image_size": 64}
"""Two ranks and their two processes on two CPUs: transforms of 125 samples take far longer than a step."""


def causes_of(runs: Runs, name: str, changed: dict[str, Any]) -> tuple[list[str], list[str], str]:
    """Return the causes of a study with one run, on two devices, the sentences about them, and what disturbed
    the run.
    """
    settings = SETTINGS | {"devices": [2], "epochs": 2} | changed
    run = runs.complete(name, 2, settings=settings)
    spec = Experiment.model_validate(settings)
    tables = collect(name, spec, run.folder.parent)
    found = conclude(name, [Part("", AnalysisSpec(name, spec))], [tables])
    causes = find_causes(tables.runs, found.scaling)
    said = [f"{cause.sentence} {cause.advice}" for cause in causes]
    return [cause.part for cause in causes], said, tables.runs["disturbance"].item()


@pytest.mark.parametrize(
    ("cause", "changed", "says", "runs_named"),
    [
        ("loader", STARVED, "waiting for data takes", 1),
        pytest.param(
            *("straggler", {"model": "planted_late_on_rank_1", "epochs": 4}),
            *(f"waiting for rank 1 on {socket.gethostname()} takes", 2),
            marks=pytest.mark.fault(4),
        ),
    ],
)
def test_the_cause_of_slow_steps_is_named_and_no_other(
    runs: Runs, cause: str, changed: dict[str, Any], says: str, runs_named: int, record_property: Record
) -> None:
    """A rank that takes 50 ms more a step, and data that come late."""
    named = 0
    slowed: list[tuple[list[str], list[str]]] = []
    while named < runs_named:
        causes, said, disturbance = causes_of(runs, f"{cause}{named + len(slowed)}", changed)
        if causes != [cause] or says not in said[0]:
            # what another program on this machine does to a run is named too, and rightly
            slowed.append((causes, said))
            assert disturbance, slowed
            assert len(slowed) < 2, slowed
            continue
        named += 1
        assert ("use the resident loader" in said[0]) == (cause == "loader")
        assert "communication_hook" not in said[0]
    record_property("figure", f"{cause}: named in {named} of {named + len(slowed)} runs")
