"""The width that the layout of the figures gives a text."""

from __future__ import annotations

from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font


@cache
def text_width(text: str, size: float) -> float:
    """Width in points of one line, in the font that matplotlib lays the figures out with.

    Args:
        text: Text without a formula.
        size: Size of the font in points.
    """
    font = get_font(findfont(FontProperties()))
    font.set_size(size, 72)
    font.set_text(text, 0.0)
    width, _ = font.get_width_height()
    return float(width) / 64
