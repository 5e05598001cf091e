"""A report as its reader sees it."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements with attributes, and all text that is read, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open and self._open[-1] not in {"style", "script"}:
            self.text.append((self._open[-1], data.strip()))

    def all_text(self) -> str:
        return "\n".join(data for _, data in self.text)


def cells(html: str, heading: str) -> list[str]:
    """The rows of the first table below a heading of level three, cells parted by bars."""
    table = re.split(rf"<h3[^>]*>{re.escape(heading)}</h3>", html)[1].split("</table>")[0]
    return [re.sub(r"(<[^>]+>)+", "|", row) for row in re.findall(r"<tr\b.*?</tr>", table)]
