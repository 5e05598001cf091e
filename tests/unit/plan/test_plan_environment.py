"""The proxies of a site, and the version of the workflow that a result keeps."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scalewise.plan.config.site import Proxies, SiteFile, resolve_site
from scalewise.plan.jobs.make_plan import site_environment
from scalewise.ranks.monitoring.environments import source_version


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


def test_downloads_go_through_the_proxies_of_the_site() -> None:
    facts = SiteFile(proxies=Proxies(http="http://proxy:3128", no="localhost,.example.org"))

    variables = site_environment(resolve_site(facts))

    assert variables["http_proxy"] == "http://proxy:3128"
    assert variables["no_proxy"] == "localhost,.example.org"
    assert "https_proxy" not in variables
