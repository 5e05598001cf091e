"""The computing centres whose demands are known: one YAML file each in ``profiles/centres``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalewise.plan.config.centre import Centre, Demand, Proposal
from scalewise.plan.config.errors import Place, Problem, did_you_mean, problems_of
from scalewise.plan.config.paths import explain_missing, invalid_path, kind_of
from scalewise.plan.config.yaml_source import read_source, to_plain

CENTRES = Path(__file__).resolve().parents[5] / "profiles" / "centres"

ANY_CENTRE = Centre(
    name="any computing centre",
    title="Computing time",
    demands=[
        Demand(
            heading="Scaling",
            demand="How do time and throughput change with the number of devices, and how many are needed?",
            columns=["devices", "n", "throughput_samples_per_second", "speedup", "parallel_efficiency"],
            figures=["throughput", "efficiency"],
            sections=["software", "case", "machine", "method", "limits", "answer", "totals"],
            job_script=True,
        )
    ],
)
"""Stands for the default centre in a copy of the workflow that has no ``profiles/centres``."""

_HINT = "Begin with `name:` and `demands:`; profiles/centres/generic.yaml is an example."


def known_centres() -> list[str]:
    """Return the names of the centres that Scalewise knows."""
    return sorted(path.stem for path in CENTRES.glob("*.yaml"))


def centre_of(proposal: Proposal, place: Place) -> tuple[Centre | None, list[Problem]]:
    """Return the centre of a proposal; the default one is never a mistake.

    Args:
        proposal: The experiment's key.
        place: The place of its key ``centre``.

    Returns:
        The facts, like ``read_centre``.
    """
    if "centre" not in proposal.model_fields_set and proposal.centre not in known_centres():
        return ANY_CENTRE, []
    return read_centre(proposal.centre, place)


def read_centre(centre: str, place: Place) -> tuple[Centre | None, list[Problem]]:
    """Read and check the file of a centre.

    Args:
        centre: Name of a known centre, or the path of a file.
        place: The place of the key that names it.

    Returns:
        The centre, None if there are problems. Those in its file have its own lines.
    """
    is_path = "/" in centre or centre.endswith((".yaml", ".yml"))
    if not is_path and centre not in known_centres():
        fix = f"{did_you_mean(centre, known_centres())} A file of your own ends in .yaml."
        return None, [Problem(place, f"is {centre!r}, which is no known centre", fix)]
    if refusal := invalid_path(centre):
        return None, [Problem(place, *refusal)]
    path = Path(centre) if is_path else CENTRES / f"{centre}.yaml"
    if kind_of(path) != "file":
        reason = explain_missing(centre) if kind_of(path) is None else "which is not a file"
        return None, [Problem(place, f"is {centre!r}, {reason}", "Give the path of a centre's file.")]
    source = read_source(path, _HINT)
    problems, values = list(source.problems), dict[str, Any]()
    if not problems:
        values = to_plain(source.values, (), problems, keys_as_text=True)
    if not problems:
        try:
            return Centre.model_validate(values), []
        except ValidationError as error:
            problems += problems_of(error, (), Centre, values)
    return None, [replace(problem, origin=source.origin(problem.place)) for problem in problems]
