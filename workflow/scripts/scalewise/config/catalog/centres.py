"""The computing centres whose demands are known: one template each in ``profiles/centres``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scalewise.config.errors import Place, Problem, did_you_mean
from scalewise.config.paths import is_file

CENTRES = Path(__file__).resolve().parents[5] / "profiles" / "centres"
SUFFIX = ".md.j2"


def known_centres() -> list[str]:
    """Return the names of the centres that Scalewise knows."""
    return sorted(path.name.removesuffix(SUFFIX) for path in CENTRES.glob(f"*{SUFFIX}"))


def template_of(centre: str) -> Path:
    """Return the template of a centre: the path itself, or that of the file with this name."""
    return Path(centre) if centre.endswith(SUFFIX) else CENTRES / f"{centre}{SUFFIX}"


def check_centre(place: Place, centre: str) -> Iterator[Problem]:
    """Refuse a centre that has no template.

    Args:
        place: The place of the key that names it.
        centre: Name of a known centre, or the path of a template.
    """
    if not is_file(template_of(centre)):
        fix = did_you_mean(centre, known_centres())
        yield Problem(place, f"is {centre!r}, and there is no such template", fix)
