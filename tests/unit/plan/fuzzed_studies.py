"""Configurations and sites at random: sound ones together, with damaged content, and with damaged text."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from tests.paths import ROOT

STUDIES = [ROOT / "config" / "experiments.yaml", *sorted((ROOT / "config" / "examples").glob("*.yaml"))]
SITES = sorted((ROOT / "profiles").glob("*/site.yaml")) + sorted((ROOT / "profiles" / "sites").glob("*.yaml"))

Config = dict[Any, Any]

HOSTILE = [
    *("$(touch sprung)", "`touch sprung`", "; touch sprung", "a && touch sprung", "a | tee sprung"),
    *("> sprung", "'", '"', "\\", "a\nb", "\r", "\t", "\0", "\x1b[31m", "\x85", "\u2028", "\ufeff", "\u202e"),
    *("é", "日本", "", " ", "-rf", "--wrap=id", "../x", "/", "{run}", "{x:q}", "%s", "*", "~", "#", "!"),
    *("a" * 300, "yes", "1e-3"),
]
"""Text that a shell, a terminal, a file system or a template would take for more than text."""

EXTREME: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 1.5, 1e-3, 1e308, -0.0, math.nan, math.inf, -math.inf),
    *(2**31, 2**63, 2**64, 10**30, 10**400, 16**5000, -(16**5000)),
    *([], {}, [[]], [None], [{}], {"a": {"b": {"c": 1}}}, {"": 1}),
    *([1, 2], [1, 1], [2, 2.0, "2"], {1: 2}, {None: 1}, {True: 1}, b"\xff", [[[[[]]]]]),
]
"""Values of every other type, and numbers beyond all that is meant."""

anything: SearchStrategy[Any] = st.one_of(
    st.sampled_from(EXTREME),
    st.sampled_from(HOSTILE),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 100) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
)


@st.composite
def damaged(draw: DrawFn, sound: Config) -> Config:
    """A sound mapping with up to three of its keys or values dropped, renamed or replaced by others."""
    content = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        holders = _holders(content)
        if not holders:
            break
        holder = holders[draw(st.integers(0, len(holders) - 1))]
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        match draw(st.sampled_from(["replace", "replace", "drop", "rename", "add"])):
            case "replace":
                holder[key] = copy.deepcopy(draw(anything))
            case "drop":
                del holder[key]
            case "rename" if isinstance(holder, dict):
                renamed = draw(st.sampled_from([*HOSTILE, 3, None, True, f"{key}s", str(key)[1:], "sweep"]))
                holder[renamed] = holder.pop(key)
            case _ if isinstance(holder, dict):
                holder[draw(st.sampled_from(HOSTILE))] = copy.deepcopy(draw(anything))
            case _:
                holder.append(copy.deepcopy(draw(anything)))
    return content


def _holders(content: Any) -> list[Any]:
    """Every mapping and list that holds something."""
    if not isinstance(content, (dict, list)) or not content:
        return []
    inner = content.values() if isinstance(content, dict) else content
    return [content, *(holder for value in inner for holder in _holders(value))]


PIECES = [
    *(b"\t", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc2\x85", b"\n", b"\r", b" ", b"#", b"'", b'"', b"\\"),
    *(b": ", b"- ", b"? ", b"[", b"]", b"{", b"}", b",", b"&a ", b"*a", b"&a [*a]", b"<<: *a", b"<<: 3"),
    *(b"!", b"!!", b"!!int abc", b"|", b">", b"%", b"---\n", b"...\n", b"%YAML 9.9\n"),
    *(b"!!python/object/apply:os.mkdir [sprung]", b"!!binary x", b"!!set {a}", b"2001-99-99"),
    *(b"[" * 3000, b"{a: " * 3000, b"0x" + b"f" * 9000, b"9" * 9000, b"1:2:3", b"0o8", b"08", b".nan"),
    *(b"? [a]\n: b\n", b"? {a: b}\n: c\n", b"=", b"~", b"\xed\xa0\x80", b"\xf0\x9f\x92\xa5", b"@", b"`"),
    b"x" * 300,
]
"""What YAML gives a meaning to, or trips over."""


@st.composite
def damaged_text(draw: DrawFn, sound: bytes) -> bytes:
    """A file with up to three damages: pieces put in, parts taken out, moved or doubled."""
    text = sound
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        if draw(st.booleans()):
            # where a key or a value begins
            begin = next((found.end() for found in re.finditer(rb"[\[{,:] +|\n *", text[begin:])), 0) + begin
        end = min(begin + draw(st.integers(0, 40)), len(text))
        match draw(st.sampled_from(["put", "put", "bytes", "cut", "double", "move", "truncate"])):
            case "put":
                text = text[:begin] + draw(st.sampled_from(PIECES)) + text[begin:]
            case "bytes":
                text = text[:begin] + draw(st.binary(max_size=4)) + text[end:]
            case "cut":
                text = text[:begin] + text[end:]
            case "double":
                text = text[:end] + text[begin:]
            case "move":
                there = draw(st.integers(0, len(text)))
                text = text[:there] + text[begin:end] + text[there:]
            case _:
                text = text[:begin]
    return text


class _Speller(yaml.SafeDumper):
    """Writes numbers too long for decimal digits in hexadecimal ones, which YAML reads."""

    def represent_int(self, data: int) -> yaml.ScalarNode:
        text = str(data) if abs(data) < 10**4000 else hex(data)
        return self.represent_scalar("tag:yaml.org,2002:int", text)


_Speller.add_representer(int, _Speller.represent_int)


def spelled(content: object) -> str:
    """As a user could have written it."""
    return str(yaml.dump(content, Dumper=_Speller, sort_keys=False, allow_unicode=True))
