"""Shipped configurations and sites with damaged content, or with damaged text."""

from __future__ import annotations

import copy
import math
from typing import Any

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from tests.paths import ROOT

STUDIES = [ROOT / "config" / "experiments.yaml", *sorted((ROOT / "config" / "examples").glob("*.yaml"))]
SITES = sorted((ROOT / "profiles").glob("*/site.yaml")) + sorted((ROOT / "profiles" / "sites").glob("*.yaml"))

HOSTILE = [
    *("$(touch sprung)", "`touch sprung`", "; touch sprung", "a | tee sprung", "'", '"', "\\", "a\nb", "\t"),
    *("\0", "\x1b[31m", "\x85", "\u2028", "\u202e", "é", "", " ", "-rf", "--wrap=id", "../x", "{run}", "*"),
    *("~", "#", "a" * 300, "yes", "1e-3"),
]
"""Text that a shell, a terminal, a file system or a template would take for more than text."""

EXTREME: list[Any] = [
    *(None, True, 0, -1, 1, 2, 1.5, 1e308, math.nan, math.inf, 2**63, 10**400, 16**5000, -(16**5000)),
    *([], {}, [[]], [None], [{}], {"a": {"b": 1}}, {"": 1}, [1, 1], [2, 2.0, "2"], {None: 1}, b"\xff"),
]
"""Values of every other type, and numbers beyond all that is meant."""

PIECES = [
    *(b"\t", b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b" ", b": ", b"- ", b"? ", b"? [a]\n: b\n", b"---\n"),
    *b"""# ' " [ { , ! ~ @ | 2001-99-99""".split(),
    *(
        b"&a [*a]",
        b"<<: *a",
        b"<<: 3",
        b"!!int abc",
        b"%YAML 9.9\n",
        b"!!python/object/apply:os.mkdir [sprung]",
        b"\xed\xa0\x80",
    ),
    *(b"[" * 3000, b"{a: " * 3000, b"0x" + b"f" * 9000, b"9" * 9000, b"x" * 300),
]
"""What YAML gives a meaning to, or trips over."""

anything: SearchStrategy[Any] = st.sampled_from([*EXTREME, *HOSTILE]) | st.integers() | st.text(max_size=12)


@st.composite
def damaged(draw: DrawFn, sound: dict[Any, Any]) -> dict[Any, Any]:
    """A sound mapping with up to three of its keys or values dropped, renamed, added or replaced."""
    content = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        if not (holders := _holders(content)):
            break
        holder = draw(st.sampled_from(holders))
        key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
        how = draw(st.sampled_from(["replace", "replace", "drop", "rename", "add"]))
        if how == "drop":
            del holder[key]
        elif how == "replace" or isinstance(holder, list):
            holder[key] = copy.deepcopy(draw(anything))
        else:
            name = draw(st.sampled_from([*HOSTILE, 3, None, True, f"{key}s", "sweep"]))
            holder[name] = holder.pop(key) if how == "rename" else copy.deepcopy(draw(anything))
    return content


def _holders(content: Any) -> list[Any]:
    """Return every mapping and list that holds something."""
    if not isinstance(content, (dict, list)) or not content:
        return []
    inner = content.values() if isinstance(content, dict) else content
    return [content, *(holder for each in inner for holder in _holders(each))]


@st.composite
def damaged_text(draw: DrawFn, sound: bytes) -> bytes:
    """A file with up to three pieces put in, or parts taken out."""
    text = sound
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        end = begin + draw(st.sampled_from([0, 0, 1, 40, len(text)]))
        text = text[:begin] + draw(st.sampled_from([b"", *PIECES])) + text[end:]
    return text


class _Speller(yaml.SafeDumper):
    """Writes numbers too long for decimal digits in hexadecimal ones, which YAML reads."""

    def represent_int(self, data: int) -> yaml.ScalarNode:
        text = str(data) if abs(data) < 10**4000 else hex(data)
        return self.represent_scalar("tag:yaml.org,2002:int", text)


_Speller.add_representer(int, _Speller.represent_int)


def spelled(content: object) -> str:
    """Write content as a user could have written it."""
    return str(yaml.dump(content, Dumper=_Speller, sort_keys=False, allow_unicode=True))
