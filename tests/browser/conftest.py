"""One browser for the tests in this folder, the reports they read, and pages that fail if they complain."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Page
from tests.browser.chromium import missing, open_watched, started
from tests.paths import ROOT
from tests.planted_study import CHOOSING, Law, PlantedStudy, experiments

from scalewise.plan.run_definition import RunDefinition

OpenPage = Callable[..., Page]

UNKIND = "<b>not bold</b> & \"quoted\" 'twice' </script><script>alert(1)</script>"
"""A title that would break a page which takes it for markup."""
WEAK = {"scaling": "weak", "global_batch_size": None, "batch_size_per_device": 16}


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on what has finished of three experiments.

    The first chooses its device counts, all runs of the second have failed, and of the third all on 4 devices
    and one on 2.
    """

    def speed(run: RunDefinition) -> float | None:
        lost = run.experiment == "listed" and (run.shape.world_size == 4 or run.run == "d2.r2")
        return None if lost or run.experiment == "nothing" else Law(serial=0.05).speed(run)

    text = experiments(
        chosen=CHOOSING,
        nothing=WEAK | {"title": "All runs failed", "devices": [1, 2], "repeats": 1},
        listed=WEAK | {"title": "Three counts, of which one failed", "devices": [1, 2, 4]},
    )
    study = PlantedStudy(tmp_path_factory.mktemp("several"), text, speed)
    study.play()
    return study.write_partial()


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on the shipped study, with planted speeds and a title that is unkind to a page."""
    study = yaml.safe_load((ROOT / "config" / "experiments.yaml").read_text(encoding="utf-8"))
    study["experiments"]["digits-strong"]["title"] = UNKIND
    site: dict[str, object] = {"accelerator": "cpu", "cpus_per_node": 32, "devices_per_node": 4}
    return PlantedStudy(tmp_path_factory.mktemp("shipped"), yaml.safe_dump(study), site=site).finish()


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
