"""No foreign script runs in a page, and the tests see it if one does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.browser.chromium import open_watched

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
    policy: str, ran: list[str], two_series: Path, tmp_path: Path, browser: Browser
) -> None:
    text = two_series.read_text(encoding="utf-8").replace("<h1>", f"{FOREIGN}<h1>", 1)
    path = tmp_path / "page.html"
    path.write_text(re.sub(f"<meta http-equiv={policy}>", "", text), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    assert sorted(page.evaluate("globalThis.ran ?? []")) == ran
    # the page's own script makes the headings of tables buttons
    assert page.locator("thead button").count() > 5
    page.close()


PAGE = """\
<!doctype html><title>page</title>
<img alt="" src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">
<img alt="" src="https://example.org/pixel.png">
<script>
console.log("hello");
alert("look");
fetch("beside.json").catch(() => 0);
throw new Error("broken");
</script>
"""


def test_only_messages_errors_and_requests_that_leave_a_page_are_complaints(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    context = browser.new_context()
    file.write_text(PAGE.partition('<img alt="" src="https')[0], encoding="utf-8")
    assert open_watched(context, file)[1] == []
    file.write_text(PAGE, encoding="utf-8")
    _, complaints = open_watched(context, file)
    context.close()
    assert {"console: hello", "dialog: look", "error: broken"} < set(complaints)
    elsewhere = ("https://example.org/pixel.png", (tmp_path / "beside.json").as_uri())
    assert {f"request: {address}" for address in elsewhere} < set(complaints)
    assert not [complaint for complaint in complaints if "data:" in complaint]
