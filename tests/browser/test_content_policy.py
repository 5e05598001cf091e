"""No foreign script runs in a page, and the tests see it if one does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser

FOREIGN = """\
<script>(globalThis.ran ??= []).push("script")</script>
<img src='data:,' onerror='(globalThis.ran ??= []).push("handler")'>
<svg onload='(globalThis.ran ??= []).push("onload")'>
<script>(globalThis.ran ??= []).push("svg")</script></svg>
"""


@pytest.mark.parametrize(
    ("policy", "ran"),
    [("[^>]*", ["handler", "onload", "script", "svg"]), ("never", [])],
    ids=["without", "with"],
)
def test_the_policy_of_the_page_runs_its_own_scripts_and_no_other(
    policy: str, ran: list[str], shipped: Path, tmp_path: Path, browser: Browser
) -> None:
    text = shipped.read_text(encoding="utf-8").replace("<h1>", f"{FOREIGN}<h1>", 1)
    path = tmp_path / "page.html"
    path.write_text(re.sub(f"<meta http-equiv={policy}>", "", text), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    assert sorted(page.evaluate("globalThis.ran ?? []")) == ran
    # the page's own script makes the headings of tables buttons
    assert page.locator("thead button").count() > 5
    page.close()
