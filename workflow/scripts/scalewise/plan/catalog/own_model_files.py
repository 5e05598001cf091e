"""The files of the user's own model: the one that is named, and those beside it that it imports."""

from __future__ import annotations

from pathlib import Path

from scalewise.plan.catalog.imported_files import with_imports
from scalewise.plan.catalog.models import own_model_file


def own_model_files(model: str) -> list[Path]:
    """The file of an own model first, then what it imports from its folder; empty for other models.

    Returns:
        Paths from the working directory, as the model's is; beside its own only of files that are there.
    """
    first = own_model_file(model)
    if first is None:
        return []
    # where the file itself lies, which is what it can import from
    folder = first.resolve().parent if first.is_symlink() else first.parent
    return with_imports([first], [folder])
