"""A report as its reader sees it."""

from __future__ import annotations

import re
from html import unescape
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

    def after_heading(self) -> list[tuple[str, str]]:
        index = next(index for index, (tag, _) in enumerate(self.text) if tag == "h1")
        return self.text[index + 1 :]

    def all_text(self) -> str:
        return "\n".join(data for _, data in self.text)


def below(html: str, heading: str) -> str:
    """The page from a heading on, whatever its level."""
    for found in re.finditer(r"<h[2-4][^>]*>([^<]*)</h[2-4]>", html):
        if unescape(found[1]) == heading:
            return html[found.end() :]
    raise AssertionError(f"the page has no heading {heading!r}")


def cells(html: str, heading: str) -> list[str]:
    """The rows of the first table below a heading, cells parted by bars."""
    table = below(html, heading).split("</table>", maxsplit=1)[0]
    return [re.sub(r"(<[^>]+>)+", "|", row) for row in re.findall(r"<tr\b.*?</tr>", table)]
