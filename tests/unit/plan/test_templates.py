"""Names and arithmetic in braces, and what stays as it is."""

from __future__ import annotations

import pytest

from scalewise.plan.config.templates import fill_in, names_in

VALUES = {"devices": 4, "global_batch_size": 512, "folder": "/runs/{x} $HOME", "argument.n": 3}


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("plain", "plain"),
        ("--n={devices}", "--n=4"),
        ("{folder}", "/runs/{x} $HOME"),
        ("{ devices }", "4"),
        ("{global_batch_size * 1024}", "524288"),
        ("{global_batch_size//(devices+argument.n)-1}", "72"),
        ("{devices-1},{1 - devices}", "3,-3"),
        ("{{devices}}", "{devices}"),
        ("{{{devices}}}", "{4}"),
        ("${devices}", "${devices}"),
        ("${{devices}}", "${devices}"),
        ("${a.b:${c},{devices}}{devices}", "${a.b:${c},{devices}}4"),
        ("$devices $ {devices}", "$devices $ 4"),
    ],
)
def test_braces_hold_names_and_arithmetic(template: str, filled: str) -> None:
    assert fill_in(template, VALUES) == filled


def test_names_in_arithmetic_are_names() -> None:
    assert names_in("{seed}${no} {2 * (devices + argument.n)}") == ["seed", "devices", "argument.n"]


@pytest.mark.parametrize("template", ["{", "}", "{}", "a{b{c}}", "${a", "{a.b + 1}", "{1 +}", "{f(1)}"])
def test_anything_else_in_braces_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"[{}]"):
        names_in(template)
