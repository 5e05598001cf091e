"""Two runs of each point have no interval: in no table, text or figure. The two values stand in its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pandas as pd
import pytest
from tests.planted_study import Law, PlantedStudy, experiments
from tests.unit.analysis.planted_tables import ONLY, make_runs

from scalewise.analysis.report.efficiency_figures import efficiency
from scalewise.analysis.report.scaling_figures import speedup
from scalewise.analysis.report.svg_file import draw_svg
from scalewise.analysis.scaling import scaling_table

RANGE = re.compile(r"[(\[]-?[\d.,]+x?(?: %)? to -?[\d.,]+")
"""An interval in a text, such as ``(2,057 to 2,150)`` or ``[0.00 to 383.39]``."""

BOUND = re.compile(r"_(low|high)$")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = {
        "repeats": 2,
        "scaling": "strong",
        "decision": {"min_efficiency": 0.7},
        "sweep": {"gradient_as_bucket_view": [False, True]},
        "target": {"accuracy": 0.9},
    }
    folder = tmp_path_factory.mktemp("two")
    return PlantedStudy(folder, experiments(two=keys), Law(serial=0.05, scatter=0.25).speed).finish()


@pytest.mark.slow
def test_no_text_of_a_study_of_two_runs_each_has_an_interval(report: Path) -> None:
    folder = report.parent / "two"
    page = re.sub(r"<script.*?</script>|<[^>]*>", " ", report.read_text(encoding="utf-8"), flags=re.S)
    texts = [page, (folder / "decision.json").read_text(encoding="utf-8")]
    texts += [each.read_text(encoding="utf-8") for each in (folder / "proposal").glob("proposal.*")]
    assert len(texts) == 4
    assert [RANGE.findall(text) for text in texts] == [[], [], [], []]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaling", "options", "gains", "proposal/table"])
def test_no_table_of_a_study_of_two_runs_each_has_bounds(report: Path, name: str) -> None:
    table = pd.read_csv(report.parent / "two" / f"{name}.csv")
    columns = [column for column in table if BOUND.search(str(column))]
    assert columns
    for column in columns:
        # a baseline over itself is exactly 1
        known = table[column].dropna()
        assert known.tolist() == [1.0] * len(known)


@pytest.mark.slow
def test_the_card_of_a_study_of_two_runs_each_has_no_bounds_and_is_not_clear(report: Path) -> None:
    decision = json.loads((report.parent / "two" / "decision.json").read_text(encoding="utf-8"))
    assert [(each["low"], each["high"]) for each in decision["card"]["figures"]] == [(None, None)] * 4
    assert not decision["clear"]
    assert decision["card"]["basis"].endswith("Two runs have no interval.")


def test_axes_follow_values_and_not_bars() -> None:
    """Of three runs that scatter by a factor of 20, bars reach to 25 times the values."""
    rates = {(ONLY, n): [n * 100 / 4, n * 100.0, n * 100 * 5.0] for n in (1, 2, 4)}
    table = scaling_table(make_runs(rates), "strong")
    assert table["speedup_high"].max() > 20 * table["speedup"].max()
    (axes,) = efficiency(table, None).axes
    assert axes.get_ylim()[1] < 2
    drawn = speedup(table)
    assert drawn.axes[0].get_ylim()[1] < 10
    # no cap of a bar lies outside of its panel
    svg, data = draw_svg(drawn, "speedup")
    _, top, _, bottom = data["panels"][0]["box"]
    heights = [float(each.get("y", "")) for each in fromstring(svg).iter() if each.tag.endswith("use")]
    assert heights
    assert all(top - 1 <= height <= bottom + 1 for height in heights)
