"""The picture of a report in the README: the top of it, down to its first two figures.

    python -m tests.browser.report_picture results/digits-strong/report.html docs/figures/report.png

Needs the report of one experiment, and Chromium.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect
from tests.browser.chromium import started

WIDTH, MARGIN, SCALE = 1200, 16, 2
"""Pixels of the window and below the figures, and device pixels for each."""
COLOURS = 64


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="HTML file of one experiment")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    options = parser.parse_args()
    with started() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        page.goto(options.report.absolute().as_uri())
        ends = [
            figure.evaluate("each => each.getBoundingClientRect().bottom")
            for figure in page.locator("figure[id$='.speedup'], figure[id$='.efficiency']").all()
        ]
        clip = FloatRect(x=0, y=0, width=WIDTH, height=max(ends) + MARGIN)
        taken = page.screenshot(full_page=True, clip=clip)
    # a few colours: the file is part of every clone
    Image.open(io.BytesIO(taken)).quantize(COLOURS).save(options.picture, optimize=True)


if __name__ == "__main__":
    main()
