"""Paths that a shell, Snakemake or a command would take for something else, and those that are only odd."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.plan.config.paths import invalid_command, invalid_path, site_file_problem

ODD = ("my photos/a b.npz", "a;b|c&d (1) #2 *.npz", "ä/ö.npz", "/a,b=c:d%e!.npz", "~x")
SHELL = ("$(x)", "`x`", "it's", 'a"b', "a\\b", "x$HOME")
TAKEN = ("{run}/x.npz", "a}", "<results>/x", "a>b", "a\nb", "a\0b", "a\x7f", "-x", "", "\ud800")


@pytest.mark.parametrize("path", ODD)
def test_a_path_that_is_only_odd_can_be_used_everywhere(path: str) -> None:
    assert invalid_path(path) is None
    assert invalid_command(path) is None
    assert site_file_problem(path) is None


@pytest.mark.parametrize("path", SHELL)
def test_what_a_shell_obeys_is_refused_where_it_would_stand_in_a_jobs_command_alone(path: str) -> None:
    assert invalid_path(path) is None
    complaint = invalid_command(path)
    assert complaint is not None
    assert complaint[0].startswith(f"is {path!r}, and the shell that sends jobs to Slurm may act on the ")


@pytest.mark.refuses("names: newline", "names: braces", "names: leading dash")
@pytest.mark.parametrize("path", TAKEN)
def test_what_would_not_reach_a_program_as_it_was_written_is_refused_with_value_and_cure(path: str) -> None:
    for complaint in (invalid_path(path), invalid_command(path)):
        assert complaint is not None
        what, fix = complaint
        assert what.startswith(f"is {path!r}, ")
        assert fix.startswith(("Rename the file or folder ", "Write "))
        assert fix.endswith(".")


def test_a_site_may_be_left_out_or_given_as_a_path() -> None:
    assert site_file_problem(None) is None
    assert site_file_problem(Path("a$b.yaml")) is None
    wrong = site_file_problem(4)
    assert wrong is not None
    assert (
        wrong.render("study.yaml:1")
        == "study.yaml:1: site is 4, not a path. Write such as profiles/local/site.yaml."
    )
