"""No foreign script runs in a page, no page requests anything, and the tests see it if one does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.browser.chromium import open_watched
from tests.browser.conftest import OpenPage

from scalewise.analysis.report.inline_figures import inline_figure

HOSTILE = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
 viewBox="0 0 241 100" onload="document.title='onload'"><script>document.title='script'</script>
<g onclick="document.title='handler'"><rect onmouseover="document.title='over'" width="9" height="9"/>
<path d="M0 0H9" stroke="#000" onload="document.title='child'"/></g>
<a xlink:href="javascript:document.title='link'"><text x="1" y="9">link</text></a>
<use xlink:href="https://example.org/x.svg#a"/>
<path d="M0 1" fill="url(https://example.org/x.svg#a)"/><foreignObject><iframe src="data:,x"/></foreignObject>
<style>* {background: url(https://example.org)}</style><animate onbegin="document.title='begin'"/></svg>"""


def test_nothing_but_drawing_comes_from_a_figure_into_the_page(tmp_path: Path, open_page: OpenPage) -> None:
    path = tmp_path / "speedup.svg"
    path.write_text(HOSTILE, encoding="utf-8")
    drawn = str(inline_figure(path, "Speedup", "f1-", {"panels": [], "traces": []}).svg)
    assert "M0 0" in drawn
    assert not re.search(r"script|\son[a-z]+=|example|<a |iframe|<style|animate|document", drawn)
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><title>as it was</title>{drawn}", encoding="utf-8")
    assert open_page(page).title() == "as it was"


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
    # the page's own scripts fill the toolbox
    assert page.locator(r"#page\.toolbox").is_visible()
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
