"""Text with names in braces, which the values of a run replace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# braces in ${...} are paired up to four levels deep, as configurations of hydra have them
_INNER = r"[^{}]*"
for _ in range(3):
    _INNER = rf"(?:[^{{}}]|\{{{_INNER}\}})*"
_SIGN = re.compile(
    rf"(?P<brace>\{{\{{|\}}\}})|\$\{{(?!\{{){_INNER}\}}|\{{ *(?P<name>[A-Za-z_][\w.]*) *\}}|(?P<other>[{{}}])"
)


def parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield each plain text with the name in braces that follows it; None after the last one.

    ``{{`` and ``}}`` are braces themselves, and ``${...}`` stays as it is.

    Raises:
        ValueError: A brace is left open, or something else stands in braces; the message is that part.
    """
    text, place = "", 0
    for sign in _SIGN.finditer(template):
        text += template[place : sign.start()]
        place = sign.end()
        if sign["other"]:
            raise ValueError(template[sign.start() :])
        if sign["name"]:
            yield text, sign["name"]
            text = ""
        else:
            text += sign["brace"][0] if sign["brace"] else sign[0]
    yield text + template[place:], None


def names_in(template: str) -> list[str]:
    """Return the names in braces; raise as ``parts`` does."""
    return [name for _, name in parts(template) if name is not None]


def fill_in(template: str, values: Mapping[str, object]) -> str:
    """Return the template with values in place of the names in braces."""
    return "".join(text if name is None else f"{text}{values[name]}" for text, name in parts(template))
