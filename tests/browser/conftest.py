"""One browser for all tests in this folder, and pages that fail their test when they complain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from tests.browser import reports
from tests.browser.chromium import missing, open_watched, started
from tests.paths import ROOT
from tests.planted_study import PlantedStudy

OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def two_series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on a study of the shipped one's shape, with names that are unkind to a page."""
    return reports.two_series(tmp_path_factory.mktemp("two-series"))


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on what has finished of three experiments, of which one chooses its counts."""
    return reports.several(tmp_path_factory.mktemp("several"))


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on the shipped study, with planted speeds."""
    text = (ROOT / "config" / "experiments.yaml").read_text(encoding="utf-8")
    site: dict[str, object] = {"accelerator": "cpu", "cpus_per_node": 32, "devices_per_node": 4}
    return PlantedStudy(tmp_path_factory.mktemp("shipped"), text, site=site).finish()


@pytest.fixture(scope="session")
def two_partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on an experiment on two partitions."""
    return reports.two_partitions(tmp_path_factory.mktemp("two-partitions"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; where there is none the test is skipped, or fails where there must be one, as in CI."""
    if reason := missing():
        if os.environ.get("SCALEWISE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with started() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a file in a new window; keywords are those of Playwright's ``Browser.new_context``.

    The test fails when a page leaves a message in the console, raises, or asks for anything but itself.
    """
    opened = []

    def open_file(file: Path, **settings: Any) -> Page:
        page, complaints = open_watched(browser.new_context(**settings), file)
        opened.append((page, complaints))
        return page

    yield open_file
    for page, _ in opened:
        page.context.close()
    assert [complaint for _, complaints in opened for complaint in complaints] == []
