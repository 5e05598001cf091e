"""Add the tests' models to Scalewise's, in each Python process that has this folder on PYTHONPATH.

A study of the tests names `planted_NAME`; the function NAME of planted_models.py builds it. No list holds
these names: messages and pages are those that users get.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "planted_"
SILENCE = "PLANTED_SILENCE_SECONDS"
"""Variable with the longest time without a step."""


class WithPlanted(dict[str, Any]):
    """Entries of Scalewise's own, and one for each planted name that is looked up."""

    def __init__(self, entries: dict[str, Any], plant: Callable[[str], Any]) -> None:
        super().__init__(entries)
        self._plant = plant

    def __missing__(self, name: str) -> Any:
        if not name.startswith(PREFIX):
            raise KeyError(name)
        return self._plant(name.removeprefix(PREFIX))


def plant_facts(models: ModuleType) -> None:
    """Let studies name the models; nothing is known of them, and torch is not imported."""
    vars(models)["MODELS"] = WithPlanted(models.MODELS, lambda _name: False)


def plant_builders(builders: ModuleType) -> None:
    """Let ranks build the models."""
    built = WithPlanted(builders.BUILDERS, lambda name: getattr(import_module("planted_models"), name))
    vars(builders)["BUILDERS"] = built


def plant_silence(watchdog: ModuleType) -> None:
    """Let a test of a rank that hangs wait for less than half an hour."""
    if seconds := os.environ.get(SILENCE):
        vars(watchdog)["NO_STEP_SECONDS"] = float(seconds)


PLANTED = {
    "scalewise.execution.watchdog": plant_silence,
    "scalewise.config.catalog": plant_facts,
    "scalewise.training.models": plant_builders,
}


class Planter(MetaPathFinder):
    """Plants into a module as soon as it has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        plant = PLANTED.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if plant else None
        if plant is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            plant(module)

        vars(spec.loader)["exec_module"] = exec_module
        return spec


def for_children() -> dict[str, str]:
    """Return the variable of processes that are to know the models."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = str(Path(__file__).parent)
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, [here, *given])))}


sys.meta_path.insert(0, Planter())
