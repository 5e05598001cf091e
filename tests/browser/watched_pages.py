"""Pages of files whose messages, errors and requests are kept."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import BrowserContext, Dialog, Page, Request

ALONE = ("data:", "blob:")
"""Beginnings of addresses whose contents the page brings itself."""

ANSWERED_SECONDS = 120
"""Far above what a page takes for anything; other tests run beside it."""


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
        if request.url.partition("#")[0] != address and not request.url.startswith(ALONE):
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
