"""What the tests in a browser rely on: nothing that a page says, raises or asks for goes unseen."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser
from tests.browser.watched_pages import open_watched

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


def test_messages_errors_and_requests_that_leave_the_page_are_seen(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGE, encoding="utf-8")
    context = browser.new_context()
    _, complaints = open_watched(context, file)
    context.close()
    assert {"console: hello", "dialog: look", "error: broken"} < set(complaints)
    elsewhere = ("https://example.org/pixel.png", (tmp_path / "beside.json").as_uri())
    assert {f"request: {address}" for address in elsewhere} < set(complaints)
    assert not [complaint for complaint in complaints if "data:" in complaint]


def test_a_page_that_is_a_file_alone_has_nothing_to_complain_about(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGE.partition('<img alt="" src="https')[0], encoding="utf-8")
    context = browser.new_context()
    _, complaints = open_watched(context, file)
    context.close()
    assert complaints == []
