"""A figure from a results folder of others brings no script into the report, and none would run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser
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


@pytest.mark.parametrize(
    "markup",
    [
        "<script>document.title = 'ran'</script>",
        "<img src='data:,' onerror=\"document.title = 'ran'\">",
        "<svg onload=\"document.title = 'onload'\"><script>document.title = 'script'</script></svg>",
    ],
    ids=["script", "handler", "svg"],
)
def test_the_policy_of_the_page_runs_its_own_scripts_and_no_other(
    markup: str, two_series: Path, tmp_path: Path, browser: Browser
) -> None:
    text = two_series.read_text(encoding="utf-8")
    for policy in (True, False):
        html = text.replace("<h1>", f"{markup}<h1>", 1)
        if not policy:
            html = re.sub("<meta http-equiv=[^>]*>", "", html)
        path = tmp_path / f"{policy}.html"
        path.write_text(html, encoding="utf-8")
        page = browser.new_page()
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
        ran = page.title() in {"ran", "script", "onload", "child"}
        assert ran is not policy
        # the page's own scripts fill the toolbox
        assert page.locator(r"#page\.toolbox").is_visible()
        page.close()
