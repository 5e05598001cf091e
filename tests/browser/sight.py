"""What of a page can be seen, asked for in one go: a question about each element by itself takes seconds."""

from __future__ import annotations

from playwright.sync_api import Page

_SEEN = (
    "each => each.getClientRects().length > 0 && "
    "each.checkVisibility({visibilityProperty: true, opacityProperty: true})"
)
"""The first is false of what an SVG does not display, the second of what a closed heading hides."""


def seen(page: Page, selector: str) -> list[str]:
    """The markup of all such elements that are visible, each cut at 120 characters."""
    found: list[str] = page.locator(selector).evaluate_all(
        f"all => all.filter({_SEEN}).map(each => each.outerHTML.slice(0, 120))"
    )
    return found


def unseen(page: Page, selector: str) -> list[str]:
    """The same for those that are not."""
    found: list[str] = page.locator(selector).evaluate_all(
        f"all => all.filter(each => !({_SEEN})(each)).map(each => each.outerHTML.slice(0, 120))"
    )
    return found


def texts(page: Page, selector: str) -> list[str]:
    """What all such elements say, be it seen or not."""
    found: list[str] = page.locator(selector).evaluate_all(
        "all => all.map(each => each.textContent.trim().replace(/\\s+/g, ' '))"
    )
    return found


def open_all(page: Page) -> None:
    """Open everything that is behind a heading or a question mark."""
    page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
