"""The places of tables in the pages of docs."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def write_table(command: str, table: str, docs: Path = DOCS) -> Path | None:
    """Put a table in place of the one that its command made last; return the page, if there is one."""
    begin, end = f"<!-- begin: made by {command} -->", f"<!-- end: made by {command} -->"
    for page in sorted(docs.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if begin in text:
            before, _, rest = text.partition(begin)
            _, _, after = rest.partition(end)
            page.write_text(f"{before}{begin}\n\n{table}\n\n{end}{after}", encoding="utf-8")
            return page
    return None
