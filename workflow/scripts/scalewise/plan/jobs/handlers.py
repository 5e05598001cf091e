"""Handlers of the workflow as a module: Snakemake itself runs those of the top-level Snakefile only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scalewise.plan.config.errors import StudyError

HANDLERS = ("onstart", "onsuccess", "onerror")


@dataclass(frozen=True)
class JoinedHandler:
    """Run the module's handler, then that of the top-level Snakefile."""

    module: Callable[[], object]
    top_level: Callable[[object], object]

    def __call__(self, log: object) -> None:
        """Run both.

        Args:
            log: The name of Snakemake's log file.
        """
        self.module()
        self.top_level(log)


def join_handlers(workflow: Any, handlers: Mapping[str, Any]) -> None:
    """Add the module's handlers to those that the top-level Snakefile has so far.

    Args:
        workflow: Snakemake's.
        handlers: The module's handlers by name.
    """
    for name in HANDLERS:
        top_level = getattr(workflow, f"_{name}")
        # `use rule ... with:` reads the module again
        if isinstance(top_level, JoinedHandler):
            top_level = top_level.top_level
        setattr(workflow, f"_{name}", JoinedHandler(handlers[name], top_level))


def check_handlers(workflow: Any) -> None:
    """Stop if the top-level Snakefile has replaced the module's handlers by later ones.

    Args:
        workflow: Snakemake's, parsed to its end.

    Raises:
        StudyError: With the fix.
    """
    if replaced := [
        name for name in HANDLERS if not isinstance(getattr(workflow, f"_{name}"), JoinedHandler)
    ]:
        raise StudyError(
            [
                f"{workflow.main_snakefile}: {', '.join(replaced)} below the module replaces the module's "
                "own. Move it above the first `use rule` of the module."
            ]
        )
