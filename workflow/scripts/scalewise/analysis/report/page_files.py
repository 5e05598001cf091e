"""The style and the scripts that the page carries inside itself, and the numbers that they use."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

STYLES = ("report.css", "what_if.css")
SCRIPTS = (
    "report_data.js",
    "saving.js",
    "page.js",
    "figures.js",
    "figure_files.js",
    "what_if.js",
    "paper.js",
)
_COMMENTS = re.compile(r"^\s*(?://[^\n]*|/\*.*?\*/\s*)$", re.MULTILINE | re.DOTALL)


def style() -> Markup:
    """The style sheets, as they stand in the page."""
    sheets = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in STYLES)
    return Markup("\n".join(map(_compact, sheets)))  # noqa: S704  ours


def scripts() -> list[Markup]:
    """The scripts, in the order in which they run."""
    files = (Path(__file__).parent / name for name in SCRIPTS)
    return [Markup(_compact(path.read_text(encoding="utf-8"))) for path in files]  # noqa: S704  ours


def content_security_policy() -> str:
    """The page's policy: its own scripts run, by their hashes, and nothing is loaded from elsewhere."""
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts())
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def as_script_data(value: Any) -> Markup:
    """JSON as the contents of a script element, which no character of it can end.

    Args:
        value: Plain values; a number that is none becomes null.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", r"\u003c"))  # noqa: S704  only "<" could end or begin an element


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _compact(text: str) -> str:
    """The text without indentation, empty lines and comments that stand on lines of their own."""
    lines = (line.strip() for line in _COMMENTS.sub("", text).splitlines())
    return "\n".join(line for line in lines if line)
