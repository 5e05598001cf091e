"""A table of the products that are made again when a key changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from scalewise.config.experiment import AnyExperiment
from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings

Product = Literal["runs", "tables", "rounds"]
"""Runs are trainings; tables are scaling.csv, the decision and its figures; rounds request further runs."""

_ALL: frozenset[Product] = frozenset(get_args(Product))
_NONE: frozenset[Product] = frozenset()

DECIDES: Mapping[str, frozenset[Product]] = {
    **dict.fromkeys((*Settings.model_fields, *ProgramSettings.model_fields), _ALL),
    "sweep": _ALL,
    "devices": _ALL,
    # these decide whether a run is made, not its result
    "repeats": _ALL - {"runs"},
    "exclude": _ALL - {"runs"},
    "target": _ALL - {"runs"},
    "decision": frozenset({"tables", "rounds"}),
    **dict.fromkeys(("trainings", "samples_per_training"), frozenset({"tables"})),
    # each partition is an experiment with its own folder
    "partitions": _NONE,
    "budget": frozenset({"rounds"}),
    # text and limits, which change no number
    "proposal": _NONE,
    "title": _NONE,
    "runtime_minutes": _NONE,
    "memory_gb": _NONE,
    "timeout_seconds": _NONE,
}
"""The products that are made again when a key changes."""


def deciding_values(spec: AnyExperiment, *products: Product) -> dict[str, Any]:
    """Return the keys and values that decide any of these products of an experiment."""
    keys = {key for key, affected in DECIDES.items() if affected.intersection(products)}
    return spec.model_dump(include=keys, exclude_none=True)
