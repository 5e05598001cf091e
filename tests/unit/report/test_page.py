"""The page: the answer first, whatever users call things is text, and tables have what the results have."""

import re
from html import unescape

import pandas as pd
import pytest
from tests.unit.report.planted_sections import ANSWER, HOSTILE, points, section

from scalewise.analysis.disturbed import DISTURBED
from scalewise.report.figures import draw
from scalewise.report.page import write_page

SPEEDUPS = {"all runs": {1: 1.0, 2: 1.9, 4: 3.4}}


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page on a plain experiment, and on one whose user writes HTML everywhere."""
    folder = tmp_path_factory.mktemp("page")
    table = points(SPEEDUPS).assign(final_accuracy=float("nan"))
    table.loc[1, "peak_memory_bytes"] = float("nan")
    hostile = points({HOSTILE: SPEEDUPS["all runs"], "other": SPEEDUPS["all runs"]})
    run = {"run": HOSTILE, "outcome": DISTURBED, "reason": HOSTILE, "devices": 1}
    runs = pd.DataFrame([run | {"started_at": "2026-01-01T00:00:00+00:00", "device_name": "A GPU"}])
    sections = [
        section(folder / "a", table, name="first", title="First"),
        section(folder / "b", hostile, name="second", title=HOSTILE, runs=runs),
    ]
    for each in sections:
        draw(each)
    write_page(sections, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def text_of(html: str) -> str:
    """Return all text of a page that is read."""
    return unescape(re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", "\n", html, flags=re.DOTALL))


def test_disturbed_runs_are_counted_as_completed_and_set_apart(html: str) -> None:
    assert "1 of 1 runs completed (1 disturbed, set apart), 2026-01-01, A GPU" in html


def test_all_answers_come_before_any_figure_and_each_section_has_its_parts(html: str) -> None:
    assert html.count("<h1>How many GPUs?</h1>") == html.count("<h1") == 1
    assert html.index("</nav>") < html.index("<svg")
    assert html[: html.index("</nav>")].count("Use 4 GPUs.") == 2
    text = text_of(html).replace("\N{NO-BREAK SPACE}", " ")
    for part in (*ANSWER.required[0], "Caution 3.", "Action 1.", "2 more", ANSWER.sentence, "4 GPUs on a100"):
        assert part in text
    assert "<code>repeats: 5</code>" in html, "what stands in backticks is code"
    ids = re.findall(r'<[^>]* id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert {"first.speedup", "second.points", "second.left-out"} <= set(ids)


def test_whatever_a_user_writes_is_text_and_never_markup(html: str) -> None:
    assert html.count("<script") == 1
    assert "<b>'bold'" not in html
    assert text_of(html).count("<script>alert(1)</script>") >= 4


def test_tables_show_values_intervals_and_dashes_and_leave_out_what_nobody_knows(html: str) -> None:
    table = re.split(r"<h3[^>]*>Scaling</h3>", html)[1].split("</table>")[0]
    rows = [re.sub(r"(<[^>]+>)+", "|", row) for row in re.findall(r"<tr\b.*?</tr>", table)]
    headings = "|GPUs|n|samples/s|speedup|efficiency|time of a run|cost in time of one GPU|memory (MB)|note|"
    assert rows[0] == headings
    assert rows[2].startswith("|2|3|190|181 to 200|1.90|1.82 to 1.98|0.95|")
    assert rows[2].endswith("|54.6 min|52.1 to 57.3|109 min|–|")
    assert rows[3].endswith("|31.4 min|30.0 to 32.9|2.09 h|3,000|")
