"""Studies with one mistake in a marked line, and what the answer to them must be."""

from __future__ import annotations

from pathlib import Path

HERE = "# the mistake"
"""Stands in the line that must be named."""

COMMON = """\
defaults:
  dataset: digits
  model: digits_cnn
  global_batch_size: 240
  devices: [1, 2]
experiments:
"""


def mistaken(name: str, *lines: str) -> str:
    """A study whose one experiment has these lines, of which the last is the mistake."""
    body = "".join(f"    {line}\n" for line in lines[:-1])
    return f"{COMMON}  {name}:\n{body}    {lines[-1]}  {HERE}\n"


def assert_refused(text: str, says: tuple[str, ...], lines: list[str], file: Path) -> None:
    """One mistake, told in one line, with the file and the marked line of the text, that says all of this."""
    assert len(lines) == 1, lines
    marked = next(number for number, line in enumerate(text.splitlines(), 1) if HERE in line)
    assert lines[0].startswith(f"{file}:{marked}: ")
    assert "\n" not in lines[0]
    for words in says:
        assert words in lines[0]
