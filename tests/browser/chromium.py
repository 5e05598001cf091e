"""The system's Chromium, driven by Playwright: how it is started, and what of a page is seen or complains."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
"""Names of one browser; Ubuntu's own package is a snap, which sees no file of a test."""
INSTALL = "apt-get install --no-install-recommends chromium"
NO_NETWORK = ("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=direct://", "--no-pings")
"""No host has an address: neither a page nor the browser itself reaches anything."""

WITHIN_THE_PAGE = ("data:", "blob:")
"""Beginnings of addresses whose contents the page brings itself."""

ANSWERED_SECONDS = 120
"""Far above what a page takes for anything; other tests run at the same time."""

_SEEN = (
    "each => each.getClientRects().length > 0 && "
    "each.checkVisibility({visibilityProperty: true, opacityProperty: true})"
)
"""The first is false of what an SVG does not display, the second of what a closed heading hides."""


def program() -> str | None:
    """The path of the browser, or None where none is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def missing() -> str:
    """Why no test can run in a browser here, and how to fix that; empty if they can."""
    if program():
        return ""
    return f"There is none of {', '.join(PROGRAMS)} here. As root on Debian: {INSTALL}"


@contextmanager
def started() -> Iterator[Browser]:
    """Start a headless browser, and close it after the with statement.

    Playwright starts it without its sandbox, which root could not have: it opens only files of the tests.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=[*NO_NETWORK])
        try:
            yield browser
        finally:
            browser.close()


def open_watched(context: BrowserContext, file: Path) -> tuple[Page, list[str]]:
    """Open a file in a new page.

    Args:
        context: Window of the page.
        file: An HTML file.

    Returns:
        The page once it is loaded, and its complaints: a list that grows by every message in the console,
        every error that no script catches, every dialog, and every request but that of the file itself.
    """
    page, address, complaints = context.new_page(), file.absolute().as_uri(), list[str]()

    def requested(request: Request) -> None:
        if request.url.partition("#")[0] != address and not request.url.startswith(WITHIN_THE_PAGE):
            complaints.append(f"request: {request.url}")

    def asked(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error.message}"))
    page.on("request", requested)
    page.on("dialog", asked)
    page.set_default_timeout(ANSWERED_SECONDS * 1000)
    page.goto(address)
    return page, complaints


def seen(page: Page, selector: str) -> list[str]:
    """The markup of all such elements that are visible, each cut at 120 characters."""
    found: list[str] = page.locator(selector).evaluate_all(
        f"all => all.filter({_SEEN}).map(each => each.outerHTML.slice(0, 120))"
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
