"""The computing centres whose demands are known: one template each in ``profiles/centres``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scalewise.config.errors import Place, Problem, did_you_mean
from scalewise.config.paths import explain_missing, invalid_path, kind_of

CENTRES = Path(__file__).resolve().parents[5] / "profiles" / "centres"
SUFFIX = ".md.j2"


def known_centres() -> list[str]:
    """Return the names of the centres that Scalewise knows."""
    return sorted(path.name.removesuffix(SUFFIX) for path in CENTRES.glob(f"*{SUFFIX}"))


def template_of(centre: str) -> Path:
    """Return the template of a centre: the path itself, or that of the file with this name."""
    return Path(centre) if centre.endswith(SUFFIX) else CENTRES / f"{centre}{SUFFIX}"


def check_centre(place: Place, centre: str) -> Iterator[Problem]:
    """Refuse a centre that has no template, or one that Jinja cannot read.

    Args:
        place: The place of the key that names it.
        centre: Name of a known centre, or the path of a template.
    """
    from jinja2 import Environment, TemplateSyntaxError  # noqa: PLC0415  only a study with a proposal needs it

    path = template_of(centre)
    if refusal := invalid_path(centre):
        yield Problem(place, *refusal)
    elif kind_of(path) == "file":
        try:
            Environment().parse(path.read_text(encoding="utf-8"))  # noqa: S701  Markdown
        except TemplateSyntaxError as error:
            reason = f"which is no template: {error.message} in line {error.lineno}"
            yield Problem(place, f"is {centre!r}, {reason}", "Correct that line.")
        except (OSError, ValueError) as error:
            yield Problem(place, f"is {centre!r}, which cannot be read: {error}", "Give a text file.")
    elif centre.endswith(SUFFIX):
        reason = explain_missing(centre) if kind_of(path) is None else "which is not a file"
        yield Problem(place, f"is {centre!r}, {reason}", "Give the path of a centre's template.")
    else:
        fix = f"{did_you_mean(centre, known_centres())} A template of your own ends in {SUFFIX}."
        yield Problem(place, f"is {centre!r}, which is no known centre", fix)
