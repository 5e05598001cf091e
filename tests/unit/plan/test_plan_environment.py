"""What rules find in their environment, and the version of the workflow that a result keeps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.small_runs import preflight

from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.site import Proxies, SiteFile, resolve_site
from scalewise.plan.jobs.environment import hand_over, rule_environment, source_version
from scalewise.plan.jobs.launch import SiteLaunch, start_of


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """An entry script in a checkout with one commit."""
    folder = tmp_path / "checkout" / "workflow" / "scripts"
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text("print()\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "First")
    return script


def test_a_clean_checkout_is_its_commit(script: Path) -> None:
    version = source_version(script.parent)

    assert re.fullmatch("[0-9a-f]{40}", version)
    assert version == git(script.parent, "rev-parse", "HEAD")


def test_a_tag_does_not_replace_the_commit(script: Path) -> None:
    git(script.parent, "tag", "--annotate", "--message", "First", "v1.0")

    assert source_version(script.parent) == git(script.parent, "rev-parse", "HEAD")


def test_a_changed_file_makes_the_commit_dirty(script: Path) -> None:
    script.write_text("print('changed')\n")

    assert source_version(script.parent) == git(script.parent, "rev-parse", "HEAD") + "-dirty"


def test_a_folder_that_is_no_checkout_has_no_version(tmp_path: Path) -> None:
    assert source_version(tmp_path) == ""


def environment(script: Path, facts: SiteFile) -> dict[str, str]:
    study = Path("/here/study.json")
    return rule_environment(script.parent, study, preflight(facts), resolve_site(facts), {"PATH": "/usr/bin"})


def test_commands_find_the_scripts_the_study_the_commit_and_this_python(script: Path) -> None:
    variables = environment(script, SiteFile())

    for_programs = {"SCALEWISE_START", "SCALEWISE_PREFLIGHT"}
    assert {name: value for name, value in variables.items() if name not in for_programs} == {
        "SCALEWISE_SCRIPTS": str(script.parent),
        "SCALEWISE_STUDY": "/here/study.json",
        "SCALEWISE_COMMIT": git(script.parent, "rev-parse", "HEAD"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin"]),
    }


def test_each_text_is_handed_over_in_a_file_of_its_own_that_is_written_once(tmp_path: Path) -> None:
    first, second = (hand_over(text, tmp_path / "new") for text in ("one title", "another"))
    written = first.stat()

    assert hand_over("one title", tmp_path / "new") == first
    assert (first.read_text(), second.read_text()) == ("one title", "another")
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert {path.name for path in first.parent.iterdir()} == {first.name, second.name}


@pytest.mark.parametrize("left", [b"", b"\xff\xfe"], ids=["empty", "no text"])
def test_a_file_that_a_crash_has_damaged_is_handed_over_anew(left: bytes, tmp_path: Path) -> None:
    path = hand_over("a title", tmp_path)
    path.write_bytes(left)

    assert hand_over("a title", tmp_path).read_text() == "a title"


def test_a_folder_that_cannot_take_the_file_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")

    with pytest.raises(StudyError, match=r"taken/\w+\.json: cannot be written \(.*\)\. Make room"):
        hand_over("a title", tmp_path / "taken")


def test_jobs_learn_how_the_site_starts_a_program(script: Path) -> None:
    facts = SiteFile(python="/opt/python", prelude=["module load cuda; true"], network_interface="ib0")

    assert start_of(environment(script, facts)) == SiteLaunch.of(resolve_site(facts))
    assert start_of({}) == SiteLaunch()


def test_downloads_go_through_the_proxies_of_the_site(script: Path) -> None:
    facts = SiteFile(proxies=Proxies(http="http://proxy:3128", no="localhost,.example.org"))

    variables = environment(script, facts)

    assert variables["http_proxy"] == "http://proxy:3128"
    assert variables["no_proxy"] == "localhost,.example.org"
    assert "https_proxy" not in variables
