"""Texts that tests keep in files and compare word for word; `make golden` writes all of them again."""

import difflib
import os
from pathlib import Path

import pytest
from tests.paths import ROOT

UPDATE = "SCALEWISE_GOLDEN"


def compare(kept_in: Path, text: str, test: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Fail with the difference to the kept text; if the variable is set, print it and keep the new one.

    Args:
        kept_in: The file.
        text: What it should hold.
        test: The file of the test.
        capsys: Lets the difference through.
    """
    kept = kept_in.read_text(encoding="utf-8") if kept_in.exists() else ""
    if kept == text:
        return
    names = f"{kept_in.name} as kept", f"{kept_in.name} as it is now"
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), *names, lineterm="", n=2)
    difference = "\n".join(lines)
    if not os.environ.get(UPDATE):
        command = f"{UPDATE}=1 pytest {Path(test).relative_to(ROOT)}"
        pytest.fail(f"{difference}\n\nIf that is meant, keep it:  {command}", pytrace=False)
    kept_in.parent.mkdir(exist_ok=True)
    kept_in.write_text(text, encoding="utf-8")
    with capsys.disabled():
        print(f"\n{difference}")
