"""No fault, input or link of the page is without a test."""

import re
from pathlib import Path

from tests.paths import ROOT
from tests.reliability.catalogue import FAULTS

LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+\.py)\)")
TABLE = ROOT / "docs" / "reliability.md"
FAULT = re.compile(r"\bfault\(([\d, ]+)\)")


def test_no_fault_and_no_input_of_the_table_goes_without_a_test() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.parent != Path(__file__).parent]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    numbers = {int(number) for mark in FAULT.findall(text) for number in mark.split(",")}
    assert set(range(1, len(FAULTS) + 1)) <= numbers, "mark a test by fault()"
    _, *groups = TABLE.read_text(encoding="utf-8").split("\n### ")
    inputs = [
        f"{group.partition(chr(10))[0].lower()}: {given}"
        for group in groups
        for given in re.findall(r"^\| (.+?) \| (?:at|by|when|not) ", group, re.MULTILINE)
    ]
    assert f"\n## {len(inputs)} of {len(inputs)} inputs\n" in TABLE.read_text(encoding="utf-8")
    assert [given for given in inputs if f'"{given}"' not in text] == [], "mark a test by refuses()"


def test_the_table_in_the_repository_is_whole_and_names_no_test_that_is_gone() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert f"\n## {len(FAULTS)} of {len(FAULTS)} faults\n" in text, "make it by `make reliability`"
    assert "/tmp/" not in text, "a figure or a message names a folder of the machine it was made on"
    links = LINK.findall(text)
    assert links
    for words, file in links:
        source = " ".join((ROOT / file).read_text(encoding="utf-8").replace("_", " ").split())
        is_named = re.fullmatch(r"\d+ of \d+", words) or words.replace("_", " ") in source
        assert is_named, f"{file}: {words}: make the table by `make reliability`"
