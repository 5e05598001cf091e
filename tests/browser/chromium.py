"""The system's Chromium, driven by Playwright: which one, how it is started, and what it must not do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
"""Names of one browser; Ubuntu's own package is a snap, which sees no file of a test."""
INSTALL = "apt-get install --no-install-recommends chromium"
NO_NETWORK = ("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=direct://", "--no-pings")
"""No host has an address: neither a page nor the browser itself reaches anything."""


def program() -> str | None:
    """The path of the browser, or None where none is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def missing() -> str:
    """Why no test can run in a browser here, and how to mend it; empty where they can."""
    if program():
        return ""
    return f"There is none of {', '.join(PROGRAMS)} here. As root on Debian: {INSTALL}"


@contextmanager
def started(*flags: str) -> Iterator[Browser]:
    """A headless browser for as long as the context lasts.

    Playwright starts it without its sandbox, which root could not have: it opens files of the tests alone.

    Args:
        flags: Further words of its command line.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=[*NO_NETWORK, *flags])
        try:
            yield browser
        finally:
            browser.close()
