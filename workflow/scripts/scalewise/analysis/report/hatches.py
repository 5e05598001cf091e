"""Hatches as small tiles that repeat: lines and dots 3 points apart, as matplotlib draws them in print.

``paper.js`` draws the same where the page is printed.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

_RISING = "M-1 1L1-1M0 3L3 0M2 4L4 2"
_FALLING = "M-1 2L1 4M0 0L3 3M2-1L4 1"
_TILES = {
    "/": (3.0, _RISING),
    "\\": (3.0, _FALLING),
    "x": (3.0, _RISING + _FALLING),
    "-": (3.0, "M0 1.5H3"),
    ".": (3.0, "M1.2 1.5H1.8"),
}
"""First character of a hatch -> side of its tile in points, lines in it."""


def hatch_pattern(name: str, colour: str, hatch: str) -> Element:
    """The pattern of a hatched area.

    Args:
        name: Id of the pattern.
        colour: Colour under the hatch.
        hatch: Matplotlib's name of the hatch, one character repeated.
    """
    side, lines = _TILES[hatch[0]]
    size = f"{side:g}"
    pattern = Element(
        "pattern",
        {"id": name, "patternUnits": "userSpaceOnUse", "width": size, "height": size, "data-hatch": hatch[0]},
    )
    SubElement(pattern, "path", {"d": f"M0 0H{size}V{size}H0Z", "fill": colour})
    dots = {"stroke-linecap": "round"} if hatch[0] == "." else {}
    SubElement(pattern, "path", {"d": lines, "fill": "none", "stroke": "#fff", "stroke-width": "0.6", **dots})
    return pattern
