"""A report as its reader sees it."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements with attributes, and the text of each ``p``, in order."""

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
        if data.strip() and self._open:
            self.text.append((self._open[-1], data.strip()))

    def after_heading(self) -> list[tuple[str, str]]:
        index = next(index for index, (tag, _) in enumerate(self.text) if tag == "h1")
        return self.text[index + 1 :]

    def all_text(self) -> str:
        return "\n".join(data for _, data in self.text)


def below(html: str, heading: str) -> str:
    """The page from a heading on, whatever its level."""
    found = re.split(rf"<h[2-4]>{re.escape(heading)}</h[2-4]>", html, maxsplit=1)
    assert len(found) == 2, f"the page has no heading {heading!r}"
    return found[1]


def cells(html: str, heading: str) -> list[str]:
    """The rows of the first table below a heading, cells parted by bars."""
    table = below(html, heading).split("</table>", maxsplit=1)[0]
    return [re.sub(r"(<[^>]+>)+", "|", row) for row in re.findall(r"<tr\b.*?</tr>", table)]
